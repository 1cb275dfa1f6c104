"""How wide the priors of a view should be, by the releases' own evidence (type-II maximum likelihood).

A release of few records says little about each of many gains; a prior that is too wide would fill the view with noise,
one too narrow would keep out a shift that is there. The widths themselves are few, so the release can tell: with
residuals linear in the parameters around the identity, r(t) = r + J t and t ~ N(0, A), A = diag(a_g^2) by group g,

    -r ~ N(0, v I + J A J^T),   v >= 1: the release's own noise and what no view explains

is maximised over the a_g and v, times exp(-10 sum_g a_g): a group gets a width only where the release speaks for it
by many nats, because a view that is wrong costs more than one that is missing. All of it is post-processing of what
has been released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_STEPS = 200
_RATE = 0.05
_CAUTION = 10.0  # nats for one usual width
_WIDEST, _NARROWEST = 3.0, 0.01  # times the width that is usual


@dataclass(frozen=True)
class Widths:
    """The most probable widths.

    Attributes:
        factors: one for each group, times the width that is usual; near 0 where the release shows no such shift.
        variance: v, of a residual.
    """

    factors: tuple[float, ...]
    variance: float


def widths(residuals: Callable[[Tensor], Tensor], groups: Sequence[int], like: Tensor) -> Widths:
    """Finds them by gradient steps on the marginal likelihood.

    Args:
        residuals: parameters (p,), in units of their usual widths, to residuals (r,), in units of the noise.
        groups: numbers of parameters in each group, in order; they add up to p.
        like: any tensor of the parameters' type, on their device.
    """
    count = sum(groups)
    origin = torch.zeros(count, device=like.device, dtype=like.dtype)
    columns = []
    for unit in torch.eye(count, device=like.device, dtype=like.dtype):
        moved = torch.func.jvp(residuals, (origin,), (unit,))
        at_origin = moved[0]
        columns.append(moved[1].detach().double())
    jacobian, wanted = torch.stack(columns, dim=1), -at_origin.detach().double()  # (r, p), (r,)
    gram, pulled, energy = jacobian.T @ jacobian, jacobian.T @ wanted, wanted.square().sum()
    of_group = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor(groups)).to(like.device)
    low, high = math.log(_NARROWEST), math.log(_WIDEST)
    logs = torch.zeros(len(groups) + 1, dtype=torch.float64, device=like.device)
    logs[-1] = math.log(0.1 * max(float(energy) / len(wanted), 1e-6))
    logs.requires_grad_(True)
    optimizer = torch.optim.Adam([logs], lr=_RATE)
    for _ in range(_STEPS):
        each = torch.exp(logs[:-1].clamp(low, high))
        factors = each[of_group]  # (p,)
        variance = 1.0 + torch.exp(logs[-1])
        scaled = factors[:, None] * gram * factors / variance
        eye = torch.eye(count, dtype=torch.float64, device=like.device)
        lower = torch.linalg.cholesky(eye + scaled)
        explained = torch.linalg.solve_triangular(lower, (factors * pulled)[:, None] / variance, upper=False)
        log_determinant = len(wanted) * torch.log(variance) + 2 * torch.log(torch.diagonal(lower)).sum()
        loss = 0.5 * log_determinant + 0.5 * (energy / variance - explained.square().sum()) + _CAUTION * each.sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    with torch.no_grad():
        variance = 1.0 + torch.exp(logs[-1])
        return Widths(tuple(float(x) for x in torch.exp(logs[:-1].clamp(low, high))), float(variance))
