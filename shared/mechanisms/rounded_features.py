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


def rounded_features(features: Tensor, feature_map: FeatureMap | None, *, bits: int) -> Tensor:
    """Whole numbers v = round(2^p u), |u| <= 1, each row a function of its own record.

    Args:
        features: (m, d), as the extractor computes them.
        feature_map: public, on their device; None for the identity.
        bits: p.

    Returns:
        (m, d) float64, rows of norm at most `radius`; v / (2 radius) is a clipped feature vector of norm 1/2 at most.
    """
    mapped = neutralise(features if feature_map is None else feature_map.apply(features))
    exact = mapped.to(torch.float64)
    factors = clip_factors(exact, RECORD_NORM) * math.ldexp(1.0 / RECORD_NORM, bits)
    return exact.mul_(factors).round_() if exact is not mapped else (exact * factors).round_()


def radius(dimension: int, bits: int) -> int:
    """A whole number that no rounded record's norm exceeds: 2^p, and half a unit in each of d coordinates."""
    return (1 << bits) + math.isqrt(dimension) // 2 + 1
