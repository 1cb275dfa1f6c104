"""DP-SWD between released rows and equally noised source rows, and its gradients (DP-SWD, Algorithm 2).

All of it is post-processing: P is released, the source and its noise are public. The source gets the same noise so
that both sides are smeared alike and the distance compares like with like.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.noise import grid_step
from dpswd.shared.published_mechanisms.gradient.quantile_cotangents import mean_norm
from dpswd.shared.seeded_noise import SeededNoise


def noised_source_projections(source_features: Tensor, U: Tensor, *, sigma: float, seed: bytes) -> Tensor:
    """Source projections with the release's noise law, from a public seed: the same bits at both parties.

    Args:
        source_features: (m, d), mapped and clipped like the target's.
        U: (d, k).
        sigma: standard deviation of the release's noise.
        seed: 32 public bytes; the seed of U serves, its uses do not overlap.

    Returns:
        (m, k); differentiable in the features.
    """
    step = grid_step(sigma)
    steps = SeededNoise(seed, purpose="source noise").grid_gaussian(
        (source_features.shape[0], U.shape[1]), sigma=sigma, step=step
    )
    return source_features @ U.to(source_features) + torch.from_numpy(steps * step).to(source_features)


def row_cotangents(released: Tensor, noised_source: Tensor, U: Tensor) -> tuple[Tensor, float]:
    """The gradient of the squared sliced W_2 distance with respect to the target rows, mapped back to features.

    Row r moves by (d / k) sum_j u_j (P_rj - the source quantile that the sorted matching gives to P_rj), b d / 2
    times the gradient: a displacement in feature units, which does not shrink as b or k grows.

    Args:
        released: (b, k), noised target projections.
        noised_source: (m, k).
        U: (d, k).

    Returns:
        Cotangents (b, d), in the sample's order and divided by their scale; and that scale, the mean norm of the source
        rows' own cotangents, in feature units: it comes from the source rows alone.

    Raises:
        InvalidValue: the shapes do not fit together.
    """
    if (
        released.dim() != 2
        or noised_source.dim() != 2
        or not (released.shape[1] == noised_source.shape[1] == U.shape[1])
    ):
        raise InvalidValue(
            f"released rows have shape {tuple(released.shape)}, source rows {tuple(noised_source.shape)} and "
            f"directions {tuple(U.shape)}; use (b, k), (m, k) and (d, k)"
        )
    source = noised_source.detach()
    target, directions = released.detach().to(source), U.to(source)
    scale = mean_norm(_displacements(source, target, directions))
    return _displacements(target, source, directions) / scale, scale


def _displacements(rows: Tensor, others: Tensor, U: Tensor) -> Tensor:
    """(n, d): from each row's partner under the sorted matching to the row, averaged over directions."""
    partners = resample_quantiles(others.sort(dim=0).values, rows.shape[0])  # (n, k)
    order = rows.argsort(dim=0)
    matched = torch.empty_like(rows).scatter_(0, order, partners)
    d, k = U.shape
    return (rows - matched) @ U.T * (d / k)


def resample_quantiles(ordered: Tensor, count: int) -> Tensor:
    """Averages of a sorted sample's quantile function over `count` equal parts of (0, 1).

    For count == m this is the sorted sample itself; otherwise it is the sorted sample of `count` points that is
    nearest in W_2.

    Args:
        ordered: (m, k), each column sorted upwards.
        count: b, at least 1.

    Returns:
        (b, k), each column sorted upwards; differentiable.

    Raises:
        InvalidValue: count is below 1.
    """
    if count < 1:
        raise InvalidValue(f"asked for {count} quantiles; ask for at least 1")
    m = ordered.shape[0]
    if m == count:
        return ordered
    # Integral of the quantile function from 0 to r / b: whole points, and a part of the next one.
    edges = np.arange(count + 1, dtype=np.int64) * m
    whole = torch.from_numpy(edges // count).to(ordered.device)
    part = torch.from_numpy((edges % count) / count).to(device=ordered.device, dtype=torch.float64)
    exact = ordered.to(torch.float64)
    sums = torch.cat([torch.zeros_like(exact[:1]), exact.cumsum(dim=0)])  # (m + 1, k)
    following = torch.cat([exact, torch.zeros_like(exact[:1])])  # nothing follows the last point
    integral = sums[whole] + part[:, None] * following[whole]
    return (integral.diff(dim=0) * (count / m)).to(ordered.dtype)
