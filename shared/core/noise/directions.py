"""Random directions of the sliced mechanisms.

The curator draws a fresh seed after the weights of a step have arrived and publishes it with the release; the client
repeats the draw. Whoever knew the directions before choosing the extractor could line the features up with them, so
a seed never comes from a client.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.grid_gaussian import grid_gaussian_table
from dpswd.shared.core.noise.keystream import Keystream, derived_key

_FINER = 512  # steps of the small Gaussian in one of the large one's: `release_finely`'s construction
_CHUNK = 1 << 13  # directions' entries at a time on a CPU: what they are made of stays in a core's own cache

Draw = Callable[[bytes], Callable[[int], Tensor]]
"""From a key, gives the next so many values of round(2^11 Z) at each call: the same ones wherever they are drawn."""


def drawn_here(key: bytes) -> Callable[[int], Tensor]:
    """The `Draw` of a CPU."""
    stream, table = Keystream(key), grid_gaussian_table()
    return lambda count: torch.from_numpy(table.sample(stream, count))


def directions(
    seed: bytes,
    feature_dimension: int,
    directions: int,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    draw: Draw = drawn_here,
) -> Tensor:
    """U: independent columns, uniform on the unit sphere.

    A normalised Gaussian vector is uniform on the sphere. The Gaussians are integers from the noise's table, on a grid
    of 2^-20 of their deviation (docs/privacy/noise.md); sums of their squares are exact, and what follows are a root
    and a division as IEEE 754 rounds them. So both parties get the same bits, on a CPU and on a device.

    Args:
        seed: 32 bytes.
        feature_dimension: d, at least 1.
        directions: k, at least 1.
        device: where the tensor lives.
        dtype: of the result; the draw itself is always float64.
        draw: where the Gaussians are drawn; what they are does not depend on it.

    Returns:
        (d, k), columns of norm 1 up to rounding in `dtype`.

    Raises:
        InvalidValue: the seed does not have 32 bytes, or d or k is below 1.
    """
    if feature_dimension < 1 or directions < 1:
        raise InvalidValue(
            f"asked for {directions} directions in {feature_dimension} dimensions; both must be at least 1"
        )
    place, key = torch.device(device), derived_key(seed, "directions")
    points = torch.empty(feature_dimension, directions, dtype=torch.float64, device=place)
    squared = torch.zeros(directions, dtype=torch.int64, device=place)
    following = draw(key)
    at_once = feature_dimension if place.type == "cuda" else max(1, _CHUNK // directions)
    for start in range(0, feature_dimension, at_once):
        rows = points[start : start + at_once]
        large, small = following(2 * rows.numel()).to(place).reshape(len(rows), 2, directions).unbind(dim=1)
        whole = large * _FINER + small  # some 2^20 large
        rows.copy_(whole)
        squared += (whole * whole).sum(dim=0)  # about d 2^40, exact in any order
    # A column of zeros stays one and shows nothing: probability 2^-21 for d = 1, and its power for more.
    # numpy's root is IEEE 754's on every machine; torch's on a CPU is MKL's, whose last bit is off once in seventy.
    norms = np.sqrt(squared.clamp(min=1).cpu().numpy().astype(np.float64))
    return points.div_(torch.from_numpy(norms).to(place)).to(dtype)
