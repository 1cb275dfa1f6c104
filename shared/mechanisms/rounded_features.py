"""Features as whole numbers, record by record, so that sums over records are exact in any order.

Products of whole numbers are whole, and in float64 a matrix product of them is exact as long as no sum leaves 53 bits,
in whatever order a library takes it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shared.kernels.clipping import RECORD_NORM, clip_factors, neutralise
from shared.kernels.feature_map import FeatureMap


def rounded_features(
    features: Tensor, feature_map: FeatureMap | None, *, bits: int, counted: Tensor | None = None
) -> Tensor:
    """Whole numbers v = round(2^p u), |u| <= 1, each row a function of its own record.

    Args:
        features: (m, d), as the extractor computes them.
        feature_map: public, on their device; None for the identity.
        bits: p.
        counted: (m,) of bool; rows of the others are 0. None for all.

    Returns:
        (m, d) float64, rows of norm at most `radius`; v / (2 radius) is a clipped feature vector of norm 1/2 at most.
    """
    exact = neutralise(features if feature_map is None else feature_map.apply(features)).to(torch.float64)
    factors = clip_factors(exact, RECORD_NORM).mul_(math.ldexp(1.0 / RECORD_NORM, bits))
    if counted is not None:  # a product, as for all rows: it takes the same time whatever is not counted
        factors.mul_(counted[:, None])
    return exact.mul_(factors).round_()  # `neutralise` has made a copy


def radius(dimension: int, bits: int) -> int:
    """A whole number that no rounded record's norm exceeds: 2^p, and half a unit in each of d coordinates."""
    return (1 << bits) + math.isqrt(dimension) // 2 + 1
