"""The private distance as a loss: what one step's release says, differentiable in the public source features.

Of rows or of quantile coefficients it estimates the same number,

    F = d/2 * mean_j W2(source projected on u_j, target projected on u_j)^2,

between mapped and clipped features: a target that is the source shifted by the vector m gives F = |m|^2 / 2. The
target's share in the gradient does not come from here, its private Jacobians never leave the curator: it comes as the
sanitized gradient.

On the line the sorted matching is optimal for every p >= 1: W_p^p is the integral over t in (0, 1) of
|Q_x(t) - Q_y(t)|^p, where Q is the quantile function (Santambrogio 2015, Proposition 2.17).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.device_noise.noise import draw_on
from dpswd.shared.published_mechanisms.gradient.cotangents import noised_source_projections, source_coefficients


def sliced_loss(
    source_features: Tensor, release: SlicedReply, declared: SlicedDeclaration, *, feature_map: FeatureMap, batch: int
) -> Tensor:
    """F between raw source features (m, d) and a release, of rows or of coefficients as it was declared.

    Rows are compared with source rows of the same noise, from the step's public seed, as at the curator. Of
    coefficients the noise's known bias is subtracted, so F may be slightly negative.

    Args:
        source_features: (m, d); m need not be b.
        release: of one step: rows (b, k) or coefficients (L, k).
        declared: by the run.
        feature_map: the public map of the step.
        batch: b.
    """
    U = release.directions(source_features, draw_on(source_features.device))
    clipped = feature_map.to(source_features.device).clipped(source_features)
    released, sigma = release.values.to_tensor(), declared.sigma
    if declared.coefficients:
        source = source_coefficients(clipped @ U, batch=batch, coefficients=len(released))  # (L, k)
        apart = distance(source, released.to(source), sigma=sigma, batch=batch)
    else:
        source = noised_source_projections(clipped, U, sigma=sigma, seed=release.seed)  # (m, k)
        apart = wasserstein_1d(source, released.to(source)).mean()
    return 0.5 * source_features.shape[1] * apart


def wasserstein_1d(x: Tensor, y: Tensor, *, p: float = 2.0) -> Tensor:
    """W_p^p, column by column; the sizes of the two samples may differ.

    Args:
        x: (n, k), k samples of n points.
        y: (m, k).
        p: exponent of the cost |x - y|^p, at least 1.

    Returns:
        (k,), the p-th power of the distance; differentiable in x and y.
    """
    x, y = x.sort(dim=0).values, y.sort(dim=0).values
    n, m = x.shape[0], y.shape[0]
    if n == m:
        return (x - y).abs().pow(p).mean(dim=0)
    # Both quantile functions are constant between the merged levels i/n and j/m, which integers hold exactly.
    levels = np.union1d(np.arange(n + 1, dtype=np.int64) * m, np.arange(m + 1, dtype=np.int64) * n)  # times n m
    left = levels[:-1]
    rows_x = torch.from_numpy(left // m).to(x.device)
    rows_y = torch.from_numpy(left // n).to(y.device)
    weights = torch.from_numpy(np.diff(levels) / (n * m)).to(x)
    return (weights[:, None] * (x[rows_x] - y[rows_y]).abs().pow(p)).sum(dim=0)


def distance(source: Tensor, target: Tensor, *, sigma: float, batch: int) -> Tensor:
    """The squared sliced W_2 distance truncated to L coefficients, without the noise's bias.

    sum_j ||c_j^s - c_j^t||^2 / (b k) has expectation (true value) + L sigma^2 / b, which is subtracted; the result
    is unbiased and may therefore be negative.

    Args:
        source: (L, k), without noise.
        target: (L, k), released.
        sigma: standard deviation of the release's noise (0 for no noise).
        batch: b of the release.

    Returns:
        Scalar, in squared feature units; differentiable in both.
    """
    count, k = source.shape
    return (source - target).pow(2).sum() / (batch * k) - count * sigma**2 / batch


def gradient_term(parameters: Sequence[Tensor], gradient: Tensor) -> Tensor:
    """A term of value 0 whose gradient with respect to the parameters is the given one.

    Args:
        parameters: tensors of p numbers together.
        gradient: (p,), flat, in their order.
    """
    flat = torch.cat([parameter.reshape(-1) for parameter in parameters])  # (p,)
    return ((flat - flat.detach()) * gradient.to(flat)).sum()
