"""Features as whole numbers, record by record, so that sums over records are exact in any order.

Products of whole numbers are whole, and sums of them are exact in floating point as long as none leaves the 24 bits of
float32 or the 53 of float64, in whatever order a library takes them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpswd.shared.core.noise.clipping import RECORD_NORM, clip_factors
from dpswd.shared.core.noise.feature_map import FeatureMap


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
        (m, d) in the features' type, rows of norm at most `radius`; v / (2 radius) is a clipped feature vector of norm
        1/2 at most.
    """
    mapped = features.clone() if feature_map is None else feature_map.apply(features)
    exact = torch.nan_to_num_(mapped, nan=0.0, posinf=0.0, neginf=0.0)  # as `neutralise`, in the same memory
    # The clip's margin is 8 times what the two roundings to float32 may add to a row's norm.
    factors = clip_factors(exact, RECORD_NORM).mul_(math.ldexp(1.0 / RECORD_NORM, bits))
    if counted is not None:  # a product, as for all rows: it takes the same time whatever is not counted
        factors.mul_(counted[:, None])
    return exact.mul_(factors.to(exact.dtype)).round_()


def radius(dimension: int, bits: int) -> int:
    """A whole number that no rounded record's norm exceeds: 2^p, and half a unit in each of d coordinates."""
    return (1 << bits) + math.isqrt(dimension) // 2 + 1
