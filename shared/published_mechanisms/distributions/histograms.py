"""How many records' projections lie in each cell: whole numbers, whatever the order, the blocks or the device.

Features are whole numbers and directions whole multiples of 2^-20, so that a projection is exact in float64: all
partial sums of it are below 2^41 such multiples. One product and one rounding, both as IEEE 754 says, bring it to its
cell.
"""

from __future__ import annotations

import functools
import math
import threading

import torch
from torch import Tensor

from dpswd.shared.core.mechanisms.interface import LabelArray
from dpswd.shared.core.mechanisms.linear import Integers
from dpswd.shared.core.mechanisms.rounded_features import radius, rounded_features
from dpswd.shared.core.noise.directions import orthogonal_directions
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.published_mechanisms.distributions.encoding import CELLS, THRESHOLDS

_BITS = 20  # of a feature: 2^20 2^20 leaves 12 bits of float64 free
_AT_ONCE = 1 << 19  # projections in memory at a time, 4 MiB as numbers and as many as cells


_drawing = threading.Lock()


@functools.lru_cache(maxsize=2)  # of a pass over all records, and of a run that is tried meanwhile
def _drawn(seed: int, dimension: int, count: int) -> Tensor:
    return orthogonal_directions(seed.to_bytes(32, "little"), dimension, count)


def public_directions(seed: int, dimension: int, count: int) -> Tensor:
    """U (d, k) float64 of a declared seed, see `orthogonal_directions`; shared, so it must stay as it is.

    Shards that begin together wait for one draw: it takes seconds for thousands of directions.
    """
    with _drawing:
        return _drawn(seed, dimension, count)


class ProjectionCounts:
    """Records by class, direction and cell; see `Accumulator`.

    Args:
        classes: C; 0 where labels are not read.
        seed: of the directions.
        dimension: d.
        directions: k.
        window: w, in units of clipped features.
        feature_map: public, on the device.
        device: where the arithmetic runs.
    """

    def __init__(
        self,
        *,
        classes: int,
        seed: int,
        dimension: int,
        directions: int,
        window: float,
        feature_map: FeatureMap | None,
        device: torch.device,
    ) -> None:
        self._map, self._device, self._labelled = feature_map, device, classes > 0
        self._U = public_directions(seed, dimension, directions).to(device)  # whole multiples of 2^-20
        # A projection times this is the number of cells from the middle.
        self._scale = THRESHOLDS / (window * 2.0 * radius(dimension, _BITS))
        # Records without a label are counted as one class more: leaving them out would take a time that tells how many.
        self._shape = classes + 1, directions, CELLS
        self._counts = torch.zeros(math.prod(self._shape), dtype=torch.int64, device=device)
        self._middles = CELLS * torch.arange(directions, device=device) + THRESHOLDS // 2

    @property
    def sums(self) -> tuple[Integers, ...]:
        """Records (C, k, M + 1), of one class where labels are not read."""
        return (self._counts.reshape(self._shape)[: max(1, self._shape[0] - 1)].cpu().numpy(),)

    def add(self, features: Tensor, labels: LabelArray | None) -> None:
        """See `Accumulator`."""
        classes, k, cells = self._shape
        rows = max(1, _AT_ONCE // k)
        for start in range(0, len(features), rows):
            v = rounded_features(features[start : start + rows], self._map, bits=_BITS).double()
            reach = THRESHOLDS // 2
            places = (v @ self._U).mul_(self._scale).round_().clamp_(-reach, reach).to(torch.int64)  # (m, k)
            places += self._middles
            if self._labelled:
                assert labels is not None, "offered only where there are labels"
                kinds = torch.from_numpy(labels[start : start + rows]).to(self._device)
                places += torch.where(kinds == UNLABELLED, classes - 1, kinds)[:, None] * (k * cells)
            self._counts += torch.bincount(places.reshape(-1), minlength=len(self._counts))
