"""How wide the priors of a view should be, by the releases' evidence (empirical Bayes, MacKay 1992).

A release of few records says little about each of many gains; a prior that is too wide would fill the view with noise,
one too narrow would keep out a shift that is there. The widths themselves are few, so the release can tell: with
residuals linear in the parameters around the identity, r(t) = r + J t and t ~ N(0, A), A = diag(a_g^2) by group g,

    -r ~ N(0, v I + J A J^T),   v >= 1: the release's own noise and what no view explains

is the evidence (the marginal likelihood) of the widths. It is maximised over the a_g and v, times the widths' own
prior, proportional to exp(-10 sum_g a_g): a group gets a width only where the release speaks for it by many nats,
because a view that is wrong costs more than one that is missing. The same figure, with and without a part of the
model, says whether the release speaks for that part at all. All of it is post-processing of what has been released.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

_STEPS = 200
_RATE = 0.05
CAUTION = 10.0
"""Nats that one usual width costs a group: the rate of the widths' exponential prior."""
_FORWARD = threading.Lock()
"""Torch keeps the level of its forward derivatives in one place for the whole process; sites are fitted by threads."""
_WIDEST, _NARROWEST = 3.0, 0.01  # times the width that is usual


@dataclass(frozen=True)
class Widths:
    """The most probable widths.

    Attributes:
        factors: one for each group, times the width that is usual; near 0 where the release shows no such shift.
        variance: v, of a residual.
        log_posterior: logarithm of the evidence times the widths' prior, up to a constant of r's size.
    """

    factors: tuple[float, ...]
    variance: float
    log_posterior: float


class LinearModel:
    """Residuals as a linear function of the parameters, r(t) = J t - y.

    Args:
        jacobian: J (r, p), of residuals in units of the noise by parameters in units of their usual widths.
        wanted: y (r,), what the parameters should do away with.
        groups: numbers of parameters in each group, in order; they add up to p.
    """

    def __init__(self, jacobian: Tensor, target: Tensor, groups: Sequence[int]) -> None:
        self._jacobian, self._target = jacobian.double(), target.double()
        self._gram = self._jacobian.T @ self._jacobian
        self._energy, self._pulled = self._target.square().sum(), self._jacobian.T @ self._target
        self._of_group = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor(groups)).to(jacobian.device)
        self._groups = len(groups)

    @classmethod
    def at_identity(
        cls, residuals: Callable[[Tensor], Tensor], groups: Sequence[int], like: Tensor, step: float | None = None
    ) -> LinearModel:
        """The linear model around 0.

        Args:
            residuals: parameters (p,), in units of their usual widths, to residuals (r,), in units of the noise.
            groups: numbers of parameters in each group, in order; they add up to p.
            like: any tensor of the parameters' type, on their device.
            step: slopes by differences over so many usual widths, several times cheaper than derivatives through a
                sort; derivatives by default.
        """
        origin = like.new_zeros(sum(groups))
        at_origin = residuals(origin).detach()

        def slope(unit: Tensor) -> Tensor:
            if step is None:
                with _FORWARD, forward_ad.dual_level():  # not torch.func, which hides the numbers that are sorted
                    dual = forward_ad.make_dual(origin, unit)  # type: ignore[no-untyped-call]
                    _, moved = forward_ad.unpack_dual(residuals(dual))  # type: ignore[no-untyped-call]
                    return moved.detach()  # type: ignore[no-any-return]
            return (residuals(step * unit).detach() - at_origin) / step

        units = torch.eye(len(origin)).to(origin)
        return cls(torch.stack([slope(unit).double() for unit in units], dim=1), -at_origin, groups)

    def widths(self, caution: float = CAUTION) -> Widths:
        """The most probable widths, by gradient steps.

        Args:
            caution: nats that one usual width costs a group; 0 where a wide prior does no harm.
        """
        low, high = math.log(_NARROWEST), math.log(_WIDEST)
        logs = torch.zeros(self._groups + 1, dtype=torch.float64, device=self._energy.device)
        logs[-1] = math.log(0.1 * max(float(self._energy) / len(self._target), 1e-6))
        logs.requires_grad_(True)
        optimizer = torch.optim.Adam([logs], lr=_RATE)

        def log_posterior() -> tuple[Tensor, Tensor, Tensor]:
            each, variance = torch.exp(logs[:-1].clamp(low, high)), 1.0 + torch.exp(logs[-1])
            return self._log_evidence(self._energy, self._pulled, each, variance) - caution * each.sum(), each, variance

        for _ in range(_STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(-log_posterior()[0])
            optimizer.step()
        with torch.no_grad():
            evidence, each, variance = log_posterior()
        return Widths(tuple(each.tolist()), float(variance), float(evidence))

    def log_evidence(self, residuals: Tensor, widths: Widths) -> float:
        """The logarithm of the marginal likelihood, up to a constant of r's size.

        Args:
            residuals: (r,), others at the origin; the slopes are the same.
            widths: the widths.
        """
        each, variance = torch.tensor(widths.factors).to(self._target), torch.tensor(widths.variance).to(self._target)
        target = -residuals.detach().double()
        return float(self._log_evidence(target.square().sum(), self._jacobian.T @ target, each, variance))

    def mode(self, widths: Widths) -> Tensor:
        """The most probable parameters under these widths.

        Returns:
            (p,), in units of their usual widths.
        """
        precision, pulled = self._under(widths)
        return self._each(widths) * torch.as_tensor(torch.linalg.solve(precision, pulled))

    def volume(self, widths: Widths) -> float:
        """Nats that parameters of these widths cost: the logarithm of the prior's over the posterior's volume."""
        return 0.5 * float(torch.logdet(self._under(widths)[0]))

    def better_factors(self, widths: Widths, values: Tensor) -> Tensor:
        """One step to the most probable widths: each group's size over how much of it is determined (MacKay 1992).

        Args:
            widths: the widths as they are.
            values: (p,), the parameters, in units of their usual widths.

        Returns:
            Of each group, times the width that is usual.
        """
        free = torch.diagonal(torch.linalg.inv(self._under(widths)[0]))
        none = torch.zeros(self._groups).to(self._target)
        determined = none.index_add(0, self._of_group, 1.0 - free)
        sizes = none.index_add(0, self._of_group, values.square())
        return (sizes / (determined + CAUTION * torch.tensor(widths.factors).to(sizes))).sqrt()

    def _each(self, widths: Widths) -> Tensor:
        return torch.tensor(widths.factors).to(self._target)[self._of_group]

    def _under(self, widths: Widths) -> tuple[Tensor, Tensor]:
        return self._precision(self._pulled, self._each(widths), torch.tensor(widths.variance).to(self._target))

    def _precision(self, pulled: Tensor, factors: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """The posterior's precision (p, p) in units of the prior's widths, and what its mean solves it for, (p,)."""
        scaled = factors[:, None] * self._gram * factors / variance
        return torch.eye(len(factors)).to(scaled) + scaled, factors * pulled / variance

    def _log_evidence(self, energy: Tensor, pulled: Tensor, each: Tensor, variance: Tensor) -> Tensor:
        """For what the parameters should do away with, y: energy y^T y, and J^T y (p,)."""
        precision, turned = self._precision(pulled, each[self._of_group], variance)
        lower = torch.linalg.cholesky(precision)
        explained = torch.linalg.solve_triangular(lower, turned[:, None], upper=False)
        log_determinant = len(self._target) * torch.log(variance) + 2 * torch.log(torch.diagonal(lower)).sum()
        return torch.as_tensor(-0.5 * (log_determinant + energy / variance - explained.square().sum()))
