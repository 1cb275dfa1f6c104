"""The public map of features, from public source features."""

from __future__ import annotations

import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.feature_map import FeatureMap

DEFAULT_TARGET_NORM = 0.25  # half the clip norm: source records then seldom reach it


def map_from_source(features: Tensor, *, target_norm: float = DEFAULT_TARGET_NORM) -> FeatureMap:
    """The map, in the features' type and place, that centres them and brings their mean norm to `target_norm`.

    One scale serves all features, so the geometry that the distance sees is the extractor's own.

    Args:
        features: (m, d) source features, m at least 1.
        target_norm: mean norm of the mapped source features.

    Raises:
        InvalidValue: the features are empty or not finite, or the target norm is not positive.
    """
    if features.dim() != 2 or features.shape[0] < 1:
        raise InvalidValue(f"source features have shape {tuple(features.shape)}; use (m, d) with m >= 1")
    if not bool(torch.isfinite(features).all()):
        raise InvalidValue("source features hold NaN or infinity; check the extractor's weights")
    if not 0.0 < target_norm < float("inf"):
        raise InvalidValue(f"the target norm is {target_norm}; it must be positive and finite")
    exact = features.detach().to(torch.float64)
    center = exact.mean(dim=0)
    norm = torch.linalg.vector_norm(exact - center, dim=1).mean()
    # Identical features have no size of their own: any positive scale is as good as another.
    scale = target_norm / norm if float(norm) > 0.0 else torch.ones_like(norm)
    return FeatureMap(
        center=center.to(features.dtype), scale=scale.expand(center.shape).to(features.dtype).contiguous()
    )
