"""Sliced Wasserstein distances, from exact ones between one-dimensional samples with equal weights.

On the line the sorted matching is optimal for every p >= 1: W_p^p is the integral over t in (0, 1) of
|Q_x(t) - Q_y(t)|^p, where Q is the quantile function (Santambrogio 2015, Proposition 2.17).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue


def wasserstein_1d(x: Tensor, y: Tensor, *, p: float = 2.0) -> Tensor:
    """W_p^p, column by column; the sizes of the two samples may differ.

    Args:
        x: (n, k), k samples of n points.
        y: (m, k).
        p: exponent of the cost |x - y|^p, at least 1.

    Returns:
        (k,), the p-th power of the distance; differentiable in x and y.

    Raises:
        InvalidValue: the shapes or p are outside what is allowed.
    """
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1] or min(x.shape[0], y.shape[0]) < 1:
        raise InvalidValue(f"samples have shapes {tuple(x.shape)} and {tuple(y.shape)}; use (n, k) and (m, k)")
    if not p >= 1.0:
        raise InvalidValue(f"p is {p}; it must be at least 1")
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


def row_distance(released: Tensor, noised_source: Tensor) -> Tensor:
    """DP-SWD: the squared sliced W_2 distance of two projected, noised samples.

    Args:
        released: (b, k), noised target projections.
        noised_source: (m, k); m may differ from b.

    Returns:
        Scalar: the mean over directions and sorted rows of the squared difference; differentiable in both.
    """
    return wasserstein_1d(noised_source, released, p=2.0).mean()


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

    Raises:
        InvalidValue: the shapes differ.
    """
    if source.shape != target.shape or source.dim() != 2:
        raise InvalidValue(
            f"coefficients have shapes {tuple(source.shape)} and {tuple(target.shape)}; both must be (L, k)"
        )
    count, k = source.shape
    return (source - target).pow(2).sum() / (batch * k) - count * sigma**2 / batch
