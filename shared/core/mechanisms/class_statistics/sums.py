"""The exact sum of class statistics: whole numbers, whatever the order, the blocks, the threads or the device.

Features are rounded once, each record's by itself, to v = round(2^p u), |u| <= 1. Products of whole numbers are whole,
so the fast product of a library gives exact sums where its numbers are long enough. p = 13 leaves room for sums of
2,048 records in float32, and is what fits in two whole numbers of 8 bits, which processors multiply several times as
fast as float64. docs/privacy/class-statistics.md says why rounding costs no sensitivity, and what it costs in accuracy.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator

import numpy as np
import torch
from scipy.linalg import blas
from torch import Tensor

from dpswd.shared.core.mechanisms.interface import LabelArray
from dpswd.shared.core.mechanisms.linear import Integers
from dpswd.shared.core.mechanisms.rounded_features import rounded_features
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.limits import UNLABELLED

_ROWS = 16384  # at a time, a whole block; their products stay within 31 bits by bytes, and 53 as they are
_EXACT_ROWS = 2048  # whose numbers, 2^13 at most, add up within 24 bits
_MOST_BITS = 13
_BYTE = 256
_STRIP = 64  # bytes of a record that are multiplied by themselves and all that follow: what comes before is symmetric
_MOST_SHORT = 256  # features whose products are taken byte by byte: of more, float64 is as fast and takes less memory
_SUM_BITS = 62  # of an int64 sum of n products


def feature_bits(records: int) -> int:
    """P of the unit 2^-p of rounded features: as fine as exact sums over n records allow, at most 13."""
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
        self._features = torch.zeros((classes, dimension), dtype=torch.int64, device=device)
        self._short = device.type == "cpu" and dimension <= _MOST_SHORT and short_products()
        size = (2 * dimension if self._short else dimension) if moments else 0
        self._products = torch.zeros((size, size), dtype=torch.int64, device=device)

    @property
    def sums(self) -> tuple[Integers, ...]:
        """Counts (C,), class sums (C, d) in units of 2^-p, second moments (d, d) in units of 2^-2p, or (0, 0).

        Of the second moments only the upper triangle is filled.
        """
        products = self._products
        if self._short:  # of bytes: v = 256 h + l
            low, high = products[::2], products[1::2]
            crossed = low[:, 1::2] + high[:, ::2]
            products = low[:, ::2] + crossed * _BYTE + high[:, 1::2] * _BYTE**2
        return self._counts, self._features.cpu().numpy(), torch.triu(products).cpu().numpy()

    def add(self, features: Tensor, labels: LabelArray | None) -> None:
        """See `Accumulator`."""
        assert labels is not None, "offered only where there are labels"
        classes, d = self._features.shape
        for start in range(0, len(features), _ROWS):
            own = labels[start : start + _ROWS]
            kinds = torch.from_numpy(own).to(self._device, copy=True)
            # A record without a label adds nothing to any block.
            v = rounded_features(
                features[start : start + _ROWS], self._map, bits=self._bits, counted=kinds != UNLABELLED
            ).to(torch.float32)  # (m, d) whole numbers
            self._counts += np.bincount(own - UNLABELLED, minlength=classes + 1)[1:]
            among = kinds.clamp_(min=0)
            for few in range(0, len(v), _EXACT_ROWS):
                by_class = torch.zeros((classes, d), device=self._device)
                by_class.index_add_(0, among[few : few + _EXACT_ROWS], v[few : few + _EXACT_ROWS])
                self._features += by_class.to(torch.int64)
            if self._products.numel():
                self._add_products(v)

    def _add_products(self, v: Tensor) -> None:
        """Adds v^T v, at least its upper triangle, or that of v's bytes."""
        if self._short:
            halves = signed_bytes(v)
            for start, product in _strips(halves):
                self._products[start : start + _STRIP, start:] += product
        elif v.device.type == "cpu":  # in BLAS's order of axes v's memory is its transpose: no copy is made
            self._products += torch.from_numpy(blas.dsyrk(1.0, v.double().numpy().T)).to(torch.int64)
        else:
            self._products += (v.T.double() @ v.double()).to(torch.int64)


def _strips(halves: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Where each strip of bytes (m, n) begins, and its products with itself and all that follow, int32."""
    for start in range(0, halves.shape[1], _STRIP):
        yield start, torch._int_mm(halves[:, start : start + _STRIP].T, halves[:, start:])


def signed_bytes(v: Tensor) -> Tensor:
    """Whole numbers as l and h, from -128 to 127, one after the other: v = 256 h + l.

    Args:
        v: (m, d) of any type, from -32,640 to 32,639.

    Returns:
        (m, 2 d) int8.
    """
    # With 128 more, the lower byte is l + 128 from 0 to 255, whose first bit turned round is l as a signed number.
    return v.to(torch.int16).contiguous().add_(_BYTE // 2).bitwise_xor_(_BYTE // 2).view(torch.int8)


@functools.cache
def short_products() -> bool:
    """Whether this processor multiplies whole numbers of 8 bits fast and exactly.

    Some add pairs of products in 16 bits and cut off what is larger, so it is tried.
    """
    if sys.byteorder != "little" or torch.backends.cpu.get_cpu_capability() not in ("AVX512", "AMX"):
        return False
    extremes = torch.full((_ROWS, _STRIP + 32), -_BYTE // 2, dtype=torch.int8)
    extremes[:, ::3] = _BYTE // 2 - 1
    exact = extremes.double()
    whole = exact.T @ exact
    return all(
        torch.equal(product.double(), whole[start : start + _STRIP, start:]) for start, product in _strips(extremes)
    )
