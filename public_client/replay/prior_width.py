"""How wide the priors of a view should be, by the releases' own evidence (type-II maximum likelihood).

A release of few records says little about each of many gains; a prior that is too wide would fill the view with noise,
one too narrow would keep out a shift that is there. The widths themselves are few, so the release can tell: with
residuals linear in the parameters around the identity, r(t) = r + J t and t ~ N(0, A), A = diag(a_g^2) by group g,

    -r ~ N(0, v I + J A J^T),   v >= 1: the release's own noise and what no view explains

is maximised over the a_g and v, times exp(-10 sum_g a_g): a group gets a width only where the release speaks for it
by many nats, because a view that is wrong costs more than one that is missing. The same figure,
with and without a part of the model, says whether the release speaks for that part at all. All of it is post-processing
of what has been released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_STEPS = 200
_RATE = 0.05
CAUTION = 10.0
"""Nats that one usual width costs a group."""
_WIDEST, _NARROWEST = 3.0, 0.01  # times the width that is usual


@dataclass(frozen=True)
class Widths:
    """The most probable widths.

    Attributes:
        factors: one for each group, times the width that is usual; near 0 where the release shows no such shift.
        variance: v, of a residual.
        evidence: logarithm of the marginal likelihood with these, less what they cost; up to a constant of r's size.
    """

    factors: tuple[float, ...]
    variance: float
    evidence: float


class Linearised:
    """Residuals as a linear function of the parameters around the identity.

    Args:
        residuals: parameters (p,), in units of their usual widths, to residuals (r,), in units of the noise.
        groups: numbers of parameters in each group, in order; they add up to p.
        like: any tensor of the parameters' type, on their device.
        step: slopes by differences over so many usual widths, several times cheaper than derivatives through a sort;
            derivatives by default.
    """

    def __init__(
        self,
        residuals: Callable[[Tensor], Tensor],
        groups: Sequence[int],
        like: Tensor,
        step: float | None = None,
    ) -> None:
        count = sum(groups)
        origin = torch.zeros(count, device=like.device, dtype=like.dtype)
        columns = []
        at_origin = residuals(origin) if step is not None else origin
        for unit in torch.eye(count, device=like.device, dtype=like.dtype):
            if step is not None:
                columns.append((residuals(step * unit) - at_origin).detach().double() / step)
                continue
            moved = torch.func.jvp(residuals, (origin,), (unit,))
            at_origin = moved[0]
            columns.append(moved[1].detach().double())
        self._jacobian = torch.stack(columns, dim=1)  # (r, p)
        self._wanted = -at_origin.detach().double()
        self._gram = self._jacobian.T @ self._jacobian
        self._of_group = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor(groups)).to(like.device)
        self._groups = len(groups)

    def widths(self, caution: float = CAUTION) -> Widths:
        """The widths of most evidence, by gradient steps.

        Args:
            caution: nats that one usual width costs a group; 0 where a wide prior does no harm.
        """
        energy = self._wanted.square().sum()
        low, high = math.log(_NARROWEST), math.log(_WIDEST)
        logs = torch.zeros(self._groups + 1, dtype=torch.float64, device=energy.device)
        logs[-1] = math.log(0.1 * max(float(energy) / len(self._wanted), 1e-6))
        logs.requires_grad_(True)
        optimizer = torch.optim.Adam([logs], lr=_RATE)
        for _ in range(_STEPS):
            each, variance = torch.exp(logs[:-1].clamp(low, high)), 1.0 + torch.exp(logs[-1])
            loss = caution * each.sum() - self._log_likelihood(self._wanted, each, variance)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        with torch.no_grad():
            each, variance = torch.exp(logs[:-1].clamp(low, high)), 1.0 + torch.exp(logs[-1])
            evidence = self._log_likelihood(self._wanted, each, variance) - caution * each.sum()
        return Widths(tuple(float(x) for x in each), float(variance), float(evidence))

    def log_likelihood(self, residuals: Tensor, found: Widths) -> float:
        """Of other residuals (r,) at the origin, with the same slopes and with these widths."""
        each = torch.tensor(found.factors, dtype=torch.float64, device=residuals.device)
        variance = torch.tensor(found.variance, dtype=torch.float64, device=residuals.device)
        return float(self._log_likelihood(-residuals.detach().double(), each, variance))

    def mode(self, found: Widths) -> Tensor:
        """The most probable parameters (p,) under these widths."""
        factors = torch.tensor(found.factors, dtype=torch.float64, device=self._wanted.device)[self._of_group]
        scaled = factors[:, None] * self._gram * factors / found.variance
        pulled = factors * (self._jacobian.T @ self._wanted) / found.variance
        return factors * torch.as_tensor(torch.linalg.solve(torch.eye(len(factors)).to(scaled) + scaled, pulled))

    def _log_likelihood(self, wanted: Tensor, each: Tensor, variance: Tensor) -> Tensor:
        factors = each[self._of_group]  # (p,)
        scaled = factors[:, None] * self._gram * factors / variance
        eye = torch.eye(len(factors), dtype=torch.float64, device=factors.device)
        lower = torch.linalg.cholesky(eye + scaled)
        pulled = (factors * (self._jacobian.T @ wanted))[:, None] / variance
        explained = torch.linalg.solve_triangular(lower, pulled, upper=False)
        log_determinant = len(wanted) * torch.log(variance) + 2 * torch.log(torch.diagonal(lower)).sum()
        return torch.as_tensor(-0.5 * (log_determinant + wanted.square().sum() / variance - explained.square().sum()))


def widths(residuals: Callable[[Tensor], Tensor], groups: Sequence[int], like: Tensor) -> Widths:
    """Finds them by gradient steps on the marginal likelihood.

    Args:
        residuals: parameters (p,), in units of their usual widths, to residuals (r,), in units of the noise.
        groups: numbers of parameters in each group, in order; they add up to p.
        like: any tensor of the parameters' type, on their device.
    """
    return Linearised(residuals, groups, like).widths()
