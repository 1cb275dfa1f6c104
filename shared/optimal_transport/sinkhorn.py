"""The debiased Sinkhorn divergence between two samples (Feydy et al. 2019), in the log domain.

With C(x, y) = ||x - y||^p, uniform weights and entropic regularisation epsilon:
S(x, y) = OT(x, y) - OT(x, x) / 2 - OT(y, y) / 2, which is zero for equal samples, unlike OT itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shared.errors import InvalidValue

_SHRINK = 0.5  # factor of epsilon from one annealing step to the next


def sinkhorn_divergence(
    x: Tensor,
    y: Tensor,
    *,
    epsilon: float,
    p: float = 2.0,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Tensor:
    """S(x, y), with gradients by the envelope theorem (the potentials' own derivatives cancel at the optimum).

    Args:
        x: (n, d).
        y: (m, d).
        epsilon: regularisation, in units of the cost (length^p), positive.
        p: exponent of the cost, at least 1.
        tolerance: the potentials' largest change in an iteration, relative to epsilon, at which to stop.
        max_iterations: cap for the iterations at the final epsilon.

    Returns:
        Scalar, in units of the cost; differentiable in x and y.

    Raises:
        InvalidValue: a shape or number is outside what is allowed.
    """
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1] or min(x.shape[0], y.shape[0]) < 1:
        raise InvalidValue(f"samples have shapes {tuple(x.shape)} and {tuple(y.shape)}; use (n, d) and (m, d)")
    if not (epsilon > 0.0 and p >= 1.0 and tolerance > 0.0 and max_iterations >= 1):
        raise InvalidValue(
            f"epsilon is {epsilon}, p {p}, tolerance {tolerance}, max_iterations {max_iterations}; "
            "use positive numbers and p at least 1"
        )
    with torch.no_grad():
        cost_xy, cost_xx, cost_yy = _cost(x, y, p), _cost(x, x, p), _cost(y, y, p)
        largest = max(float(cost_xy.max()), float(cost_xx.max()), float(cost_yy.max()), epsilon)
        schedule = _annealing(largest, epsilon)
        f, g = _potentials(cost_xy, schedule, tolerance, max_iterations)
        f_own, _ = _potentials(cost_xx, schedule, tolerance, max_iterations)
        g_own, _ = _potentials(cost_yy, schedule, tolerance, max_iterations)
    # One more iteration, differentiable, in which each side sees the other as fixed.
    f_xy = _softmin(_cost(x, y.detach(), p), g, epsilon)
    g_xy = _softmin(_cost(y, x.detach(), p), f, epsilon)
    f_xx = _softmin(_cost(x, x.detach(), p), f_own, epsilon)
    g_yy = _softmin(_cost(y, y.detach(), p), g_own, epsilon)
    return (f_xy - f_xx).mean() + (g_xy - g_yy).mean()


def _cost(x: Tensor, y: Tensor, p: float) -> Tensor:
    """(n, m) costs; squared by expansion of the difference itself, which keeps equal points at exactly zero."""
    squared = (x[:, None, :] - y[None, :, :]).pow(2).sum(dim=2)
    if p == 2.0:
        return squared
    # A root has no derivative at zero: equal points get the subgradient zero.
    positive = squared > 0.0
    return torch.where(positive, torch.where(positive, squared, 1.0).pow(p / 2.0), 0.0)


def _softmin(cost: Tensor, potential: Tensor, epsilon: float) -> Tensor:
    """-epsilon log mean_j exp((potential_j - cost_ij) / epsilon), shape (n,)."""
    return -epsilon * (torch.logsumexp((potential[None, :] - cost) / epsilon, dim=1) - math.log(cost.shape[1]))


def _annealing(largest: float, epsilon: float) -> list[float]:
    """From the largest cost down to epsilon: each stage starts near its answer (Schmitzer 2019)."""
    stages = max(0, math.ceil(math.log(largest / epsilon) / -math.log(_SHRINK)))
    return [largest * _SHRINK**i for i in range(stages)] + [epsilon]


def _potentials(cost: Tensor, schedule: list[float], tolerance: float, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Dual potentials by averaged, symmetric Sinkhorn updates."""
    f, g = torch.zeros_like(cost[:, 0]), torch.zeros_like(cost[0])
    for epsilon in schedule:
        for _ in range(max_iterations if epsilon == schedule[-1] else 1):
            f_next, g_next = _softmin(cost, g, epsilon), _softmin(cost.T, f, epsilon)
            change = max(float((f_next - f).abs().max()), float((g_next - g).abs().max()))
            f, g = (f + f_next) / 2.0, (g + g_next) / 2.0
            if change <= tolerance * epsilon:
                break
    return f, g
