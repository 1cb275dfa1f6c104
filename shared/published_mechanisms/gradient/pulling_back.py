"""Cotangents of mapped and clipped features, carried back to the features as the extractor computes them."""

from __future__ import annotations

import torch
from torch import Tensor

from dpswd.shared.core.noise.clipping import RECORD_NORM, clip_factors, neutralise
from dpswd.shared.core.noise.feature_map import FeatureMap


def pulled_back(feature_map: FeatureMap, features: Tensor, cotangents: Tensor) -> Tensor:
    """Carry cotangents of the clipped features back to the raw ones: the transposed Jacobian of `clipped`.

    A clipped row moves on a sphere, so the part of its cotangent along the row drops out; entries that
    were not finite are constants and get zero.

    Args:
        feature_map: of the step.
        features: (b, d) raw features.
        cotangents: (b, d) with respect to `clipped(features)`.

    Returns:
        (b, d), each row a function of its own record and cotangent alone.
    """
    mapped = feature_map.apply(features)
    finite = neutralise(mapped).to(torch.float64)
    factors = clip_factors(finite, RECORD_NORM)  # (b, 1)
    pulled = cotangents.to(torch.float64) * factors
    squared = (finite * finite).sum(dim=1, keepdim=True)
    radial = (finite * pulled).sum(dim=1, keepdim=True) / torch.where(squared > 0.0, squared, 1.0)
    pulled = torch.where(factors < 1.0, pulled - radial * finite, pulled)
    # A product, for `where` takes longer for some patterns than for others; what is multiplied is finite.
    pulled = pulled * torch.isfinite(mapped) * feature_map.scale
    return neutralise(pulled).to(features.dtype)
