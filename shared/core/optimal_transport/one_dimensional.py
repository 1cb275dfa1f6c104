"""Exact Wasserstein distances between one-dimensional samples with equal weights.

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
