"""The exact sum of class statistics: whole numbers, whatever the order, the blocks, the threads or the device.

Features are rounded once, each record's by itself, to v = round(2^p u), |u| <= 1. Products of whole numbers are whole,
and in float64 a matrix product of them is exact as long as no sum leaves 53 bits, in whatever order it is taken. So the
fast product of a library gives exact sums. docs/privacy/class-statistics.md says why rounding costs no sensitivity.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.linalg import blas
from torch import Tensor

from shared.kernels.feature_map import FeatureMap
from shared.mechanisms.interface import LabelArray
from shared.mechanisms.linear import Integers
from shared.mechanisms.rounded_features import rounded_features
from shared.protocol.limits import UNLABELLED

_ROWS = 4096  # of one exact product: 2^12 rows of products below 2^40 stay within 53 bits
_MOST_BITS = 20
_SUM_BITS = 62  # of an int64 sum of n products


def feature_bits(records: int) -> int:
    """P of the unit 2^-p of rounded features: as fine as exact sums over n records allow, at most 20."""
    return min(_MOST_BITS, (_SUM_BITS - math.ceil(math.log2(max(2, records)))) // 2)


class ClassSums:
    """Counts, sums of v by class, and the sum of v v^T; see `Accumulator`.

    Args:
        classes: C.
        dimension: d.
        moments: whether second moments are wanted.
        bits: p.
        feature_map: public, on the device.
        device: where the arithmetic runs.
    """

    def __init__(
        self,
        *,
        classes: int,
        dimension: int,
        moments: bool,
        bits: int,
        feature_map: FeatureMap | None,
        device: torch.device,
    ) -> None:
        self._map = feature_map
        self._bits = bits
        self._device = device
        self._counts: Integers = np.zeros(classes, dtype=np.int64)
        shape = (dimension, dimension) if moments else (0, 0)
        self._features = torch.zeros((classes, dimension), dtype=torch.int64, device=device)
        self._moments = torch.zeros(shape, dtype=torch.int64, device=device)

    @property
    def sums(self) -> tuple[Integers, ...]:
        """Counts (C,), class sums (C, d) in units of 2^-p, second moments (d, d) in units of 2^-2p, or (0, 0).

        Of the second moments only the upper triangle is filled.
        """
        return self._counts, self._features.cpu().numpy(), self._moments.cpu().numpy()

    def add(self, features: Tensor, labels: LabelArray | None) -> None:
        """See `Accumulator`."""
        assert labels is not None, "offered only where there are labels"
        classes, d = self._features.shape
        for start in range(0, len(features), _ROWS):
            kinds = torch.from_numpy(labels[start : start + _ROWS]).to(self._device)
            # A record without a label adds nothing to any block.
            v = rounded_features(
                features[start : start + _ROWS], self._map, bits=self._bits, counted=kinds != UNLABELLED
            )  # (m, d) whole numbers
            by_class = torch.zeros((classes, d), dtype=torch.float64, device=self._device)
            by_class.index_add_(0, kinds.clamp(min=0), v)
            own = labels[start : start + _ROWS]
            self._counts += np.bincount(own[own != UNLABELLED], minlength=classes)
            self._features += by_class.to(torch.int64)
            if self._moments.numel():
                self._moments += _upper_product(v)


def _upper_product(v: Tensor) -> Tensor:
    """v^T v of whole numbers, exact; on a CPU only the upper triangle is computed, which halves the time."""
    # In BLAS's order of axes v's memory is its transpose: no copy is made.
    product = torch.from_numpy(blas.dsyrk(1.0, v.numpy().T)) if v.device.type == "cpu" else torch.triu(v.T @ v)
    return product.to(torch.int64)
