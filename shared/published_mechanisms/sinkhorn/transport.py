"""Entropic optimal transport between two samples with equal weights, in the log domain (Cuturi 2013; Schmitzer 2019).

    W(x, y) = min_P  sum_ij P_ij C_ij + blur KL(P | uniform),    P with the marginals 1/n and 1/m,

C the ground cost. A curator computes this of private points, so what stands here takes the same time for all numbers
(`dpswd.shared.sandbox.steady` says which operations do): a fixed number of iterations, `exp2` of bounded arguments,
`relu`.

At the optimum P_ij = exp((f_i + g_j - C_ij) / blur) / (n m), W = mean f + mean g, and the gradient of W in
the points is that of sum_ij P_ij C_ij at fixed P (the envelope theorem; Feydy and others 2019, section 3).

The semi-debiased loss of DP-Sinkhorn (Cao and others, NeurIPS 2021, section 4.2) is made of it. The generator draws
n + n' points, n' = p n for a mixture fraction p. The first n, X, are compared with the data Y; what they are compared
with among themselves, X', are the last n of all:

    L = 2 W(X, Y) - W(X, X').

At p = 0, X' = X, and the loss is the Sinkhorn divergence of the batches, less W(Y, Y), which the generator cannot move:
it varies little, and is biased. At p = 1, X' is drawn anew, without bias and with more variance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.errors import InvalidValue

_LOG2_E = math.log2(math.e)
_SMALLEST = 80.0  # -log2 of the smallest share; of thousands of them nothing is seen in float64


def ground_cost(x: Tensor, y: Tensor, *, l1: float = 0.0) -> Tensor:
    """|x_i - y_j|_2^2 + l1 |x_i - y_j|_1, the cost of DP-Sinkhorn (Cao and others 2021, section 5.1).

    Args:
        x: (n, d), float64 for results that hold to the last digits.
        y: (m, d).
        l1: weight of the second term, 0 or more.

    Returns:
        (n, m); differentiable.
    """
    squares = x.square().sum(dim=1)[:, None] + y.square().sum(dim=1) - 2.0 * (x @ y.T)
    cost = torch.relu(squares)  # rounding may leave it a little below 0
    return cost + l1 * torch.cdist(x, y, p=1.0) if l1 else cost


def coupling(cost: Tensor, *, blur: float, iterations: int) -> tuple[Tensor, Tensor]:
    """Sinkhorn's iterations on a cost matrix; the blur falls from the largest cost to its own value in the first half.

    Their number is fixed, and so is the time that they take, whatever the costs.

    Args:
        cost: (n, m), finite.
        blur: weight of the entropy, in the cost's units, positive.
        iterations: each updates f and g once; at least one.

    Returns:
        The plan P (n, m), whose rows sum to 1/n but for rounding, its columns to 1/m the better the more iterations;
        and W, a scalar.

    Raises:
        InvalidValue: a cost is not finite.
    """
    fixed = cost.detach()
    n, m = fixed.shape
    spread = float(fixed.abs().max())
    if not math.isfinite(spread):
        raise InvalidValue("a ground cost is not finite; bring the points into a range whose squares are")
    g, cooling, start = fixed.new_zeros(m), max(1, iterations // 2), max(spread, blur)
    for done in range(iterations):
        width = blur * (start / blur) ** max(0.0, 1.0 - done / cooling)
        f = _smallest(fixed - g, width, dim=1)
        g = _smallest(fixed - f[:, None], width, dim=0)
    f = _smallest(fixed - g, blur, dim=1)
    return _rows(fixed - g, blur) / n, f.mean() + g.mean()


def sinkhorn(x: Tensor, y: Tensor, *, l1: float = 0.0, blur: float, iterations: int) -> Tensor:
    """W(x, y) of the ground cost; see `ground_cost` and `coupling`.

    Returns:
        Scalar; its gradient in x and y is that at the coupling.
    """
    cost = ground_cost(x, y, l1=l1)
    plan, value = coupling(cost, blur=blur, iterations=iterations)
    moved: Tensor = (plan * (cost - cost.detach())).sum()
    return value + moved


def _smallest(values: Tensor, blur: float, *, dim: int) -> Tensor:
    """The soft minimum along a dimension: -blur log mean exp(-values / blur)."""
    scaled = values * (-_LOG2_E / blur)
    largest = scaled.amax(dim=dim, keepdim=True)
    mean = _exp2(scaled - largest).mean(dim=dim)  # between 1 / count and 1
    return (largest.squeeze(dim) + torch.log2(mean)) * (-blur / _LOG2_E)


def _rows(values: Tensor, blur: float) -> Tensor:
    """exp(-values / blur), each row divided by its sum."""
    scaled = values * (-_LOG2_E / blur)
    shares = _exp2(scaled - scaled.amax(dim=1, keepdim=True))
    return shares / shares.sum(dim=1, keepdim=True)


def _exp2(x: Tensor) -> Tensor:
    """2^x, where what is below 2^-80 counts as that."""
    return torch.exp2(functional.hardtanh(x, -_SMALLEST, _SMALLEST))


def semi_debiased(generated: Tensor, data: Tensor, *, fresh: int, l1: float, blur: float, iterations: int) -> Tensor:
    """L of generated and real points.

    Args:
        generated: (n + n', d); may require gradients.
        data: (b, d).
        fresh: n', from 0 to n.
        l1: see `ground_cost`.
        blur: see `coupling`.
        iterations: of each of the two couplings.

    Returns:
        Scalar; differentiable in `generated`.
    """
    count = len(generated) - fresh
    options = {"l1": l1, "blur": blur}
    towards = sinkhorn(generated[:count], data, iterations=iterations, **options)
    among = sinkhorn(generated[:count], generated[fresh:], iterations=iterations, **options)
    return 2.0 * towards - among
