"""Random directions of the sliced mechanisms.

The curator draws a fresh seed after the weights of a step have arrived and publishes it with the release; the client
repeats the draw. Whoever knew the directions before choosing the extractor could line the features up with them, so
a seed never comes from a client.
"""

from __future__ import annotations

import numpy as np
import torch
from randomgen import ChaCha
from torch import Tensor

from shared.errors import InvalidValue
from shared.kernels.keystream import derived_key


def directions(
    seed: bytes,
    feature_dimension: int,
    directions: int,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """U: independent columns, uniform on the unit sphere.

    A normalised Gaussian vector is uniform on the sphere. The law needs no integer grid here: U is public and
    independent of the records, so its float details reveal nothing. Every operation after the Gaussians is
    an IEEE-exact one in a fixed order, so both parties get the same bits.

    Args:
        seed: 32 bytes.
        feature_dimension: d, at least 1.
        directions: k, at least 1.
        device: where the tensor lives.
        dtype: of the result; the draw itself is always float64.

    Returns:
        (d, k), columns of norm 1 up to rounding in `dtype`.

    Raises:
        InvalidValue: the seed does not have 32 bytes, or d or k is below 1.
    """
    if feature_dimension < 1 or directions < 1:
        raise InvalidValue(
            f"asked for {directions} directions in {feature_dimension} dimensions; both must be at least 1"
        )
    key = int.from_bytes(derived_key(seed, "directions"), "little")
    gaussian = np.random.Generator(ChaCha(key=key)).standard_normal((feature_dimension, directions))
    # Summing over the slow axis adds row by row: the order, and so the last bit, is the same on every processor.
    norms = np.sqrt(np.add.reduce(gaussian * gaussian, axis=0))
    return torch.from_numpy(gaussian / norms).to(device=device, dtype=dtype)
