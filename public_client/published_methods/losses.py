"""The private distance as a loss: what one step's release says, differentiable in the public source features.

Both losses estimate the same number,

    F = d/2 * mean_j W2(source projected on u_j, target projected on u_j)^2,

between mapped and clipped features: a target that is the source shifted by the vector m gives F = |m|^2 / 2. The
target's share in the gradient does not come from here, its private Jacobians never leave the curator: it comes as the
sanitized gradient (`sanitized_term`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpswd.public_client.published_methods.sliced_distances import distance, row_distance
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.device_noise.noise import draw_on
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientReply
from dpswd.shared.published_mechanisms.gradient.quantile_cotangents import source_coefficients
from dpswd.shared.published_mechanisms.rows.cotangents import noised_source_projections


def sliced_loss(
    source_features: Tensor, release: SlicedReply, declared: SlicedDeclaration, *, feature_map: FeatureMap, batch: int
) -> Tensor:
    """F between raw source features (m, d) and a release, of rows or of coefficients as it was declared.

    Args:
        source_features: (m, d); m need not be b.
        release: of one step.
        declared: by the run.
        feature_map: the public map of the step.
        batch: b.
    """
    used, sigma = feature_map.to(source_features.device), declared.sigma
    if declared.coefficients:
        return quantile_loss(source_features, release, feature_map=used, batch=batch, sigma=sigma)
    return row_loss(source_features, release, feature_map=used, sigma=sigma)


def quantile_loss(
    source_features: Tensor, release: SlicedReply, *, feature_map: FeatureMap, batch: int, sigma: float
) -> Tensor:
    """F from sliced quantile coefficients; the noise's known bias is subtracted, so it may be slightly negative.

    Args:
        source_features: (m, d), raw; m need not be b.
        release: coefficients (L, k).
        feature_map: the public map of the step.
        batch: b.
        sigma: noise of each coefficient.
    """
    U = release.directions(source_features, draw_on(source_features.device))
    projections = feature_map.clipped(source_features) @ U  # (m, k)
    source = source_coefficients(projections, batch=batch, coefficients=release.values.values.shape[0])  # (L, k)
    target = release.values.to_tensor().to(source)
    return 0.5 * source_features.shape[1] * distance(source, target, sigma=sigma, batch=batch)


def row_loss(source_features: Tensor, release: SlicedReply, *, feature_map: FeatureMap, sigma: float) -> Tensor:
    """F from noisy rows: DP-SWD, between the noised target and the equally noised source.

    Args:
        source_features: (m, d), raw; m need not be b.
        release: rows (b, k).
        feature_map: the public map of the step.
        sigma: noise of each projection; the source gets the same, from the step's public seed, as at the curator.
    """
    U = release.directions(source_features, draw_on(source_features.device))
    clipped = feature_map.clipped(source_features)
    source = noised_source_projections(clipped, U, sigma=sigma, seed=release.seed)  # (m, k)
    target = release.values.to_tensor().to(source)  # (b, k)
    return 0.5 * source_features.shape[1] * row_distance(target, source)


def sanitized_term(parameters: Sequence[Tensor], reply: GradientReply, *, batch: int) -> Tensor:
    """A term of value 0 whose gradient with respect to the adapted parameters is the sanitized gradient of F.

    The curator returns the noised sum over b records of clipped gradients, taken for cotangents divided by the public
    scale; so the estimate of F's gradient is sum * scale / b.

    Args:
        parameters: the adapted tensors, in the declared order.
        reply: with a gradient (p,).
        batch: b.
    """
    return gradient_term(parameters, reply.gradient.to_tensor() * (reply.cotangent_scale / batch))


def gradient_term(parameters: Sequence[Tensor], gradient: Tensor) -> Tensor:
    """A term of value 0 whose gradient with respect to the parameters is the given one.

    Args:
        parameters: tensors of p numbers together.
        gradient: (p,), flat, in their order.
    """
    flat = torch.cat([parameter.reshape(-1) for parameter in parameters])  # (p,)
    return ((flat - flat.detach()) * gradient.to(flat)).sum()
