"""The papers' release: noised projections, row by row (DP-SWD, Algorithm 1; docs/privacy, section 2).

M(X) = (U, X U + V) with V iid N(0, sigma^2). For one replaced record z the shift is ||z U||, a sum of k independent
Beta(1/2, (d-1)/2) variables at ||z|| = 1.
"""

from __future__ import annotations

from torch import Tensor

from dpswd.shared.core.mechanisms.quantiles.coefficients import project
from dpswd.shared.core.noise.noise import GridArray, NoiseSource, narrowest_integer, release_on_grid


def release_rows(features: Tensor, U: Tensor, *, sigma: float, noise: NoiseSource) -> GridArray:
    """Noised projections of every record, in the order of the sample.

    Args:
        features: (b, d), each row clipped to norm 1/2 and in the sample's random order.
        U: (d, k), drawn after the extractor was fixed.
        sigma: standard deviation of the noise, in the features' units.
        noise: where the noise comes from.

    Returns:
        (b, k), as int16 unless the noise is so small that a projection (at most 1/2) is more than six sigma.
    """
    return release_on_grid(project(features, U), sigma=sigma, noise=noise, integer=narrowest_integer(0.5, sigma=sigma))
