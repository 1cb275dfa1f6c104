"""The evidence of models that are linear and Gaussian: which of several explains a release, and how wide priors are.

A release of few records says little about each of many parameters; a prior that is too wide would fill a model with
noise, one too narrow would keep out a shift that is there. The widths themselves are few, so the release can tell. With
what the parameters are to explain, y = J t + e, t ~ N(0, A), A = diag(a_g^2) by group g, and e ~ N(0, v N),

    y ~ N(0, v N + J A J^T),   N: noise that is known; v >= 1: it, and what no parameters explain

is the evidence (the marginal likelihood) of the widths (empirical Bayes; MacKay 1992). The same figure, with and
without a part of a model, says whether the release speaks for that part at all. Where a model is not linear it is taken
as linear around the last fit, and a step that does not gain is shortened (Gauss-Newton).
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

_STEPS = 200
_RATE = 0.05
CAUTION = 10.0
"""Nats that one usual width costs a group, the rate of the widths' exponential prior: a group gets a width only where
the release speaks for it by many nats, because a view that is wrong costs more than one that is missing."""
_FORWARD = threading.Lock()
"""Torch keeps the level of its forward derivatives in one place for the whole process; sites are fitted by threads."""
_WIDEST, _NARROWEST = 3.0, 0.01  # times the width that is usual

_At = TypeVar("_At")


@dataclass(frozen=True)
class Widths:
    """The most probable widths.

    Attributes:
        factors: one for each group, times the width that is usual; near 0 where the release shows no such shift.
        variance: v, of a residual.
        log_posterior: logarithm of the evidence times the widths' prior, up to a constant of y's size.
    """

    factors: tuple[float, ...]
    variance: float = 1.0
    log_posterior: float = math.nan


@dataclass(frozen=True, eq=False)
class Normal:
    """The parameters' posterior under some widths, or under each of several: ... is (), or their number.

    Attributes:
        widths: (..., p), of the prior of each.
        root: (..., p, p), lower triangular: of the precision in units of these widths.
        explained: (..., p), what of y each column of the root's inverse explains, in deviations.
        left: squared length of y in units of the noise alone.
        log_noise: twice the logarithm of the noise's volume.
    """

    widths: Tensor
    root: Tensor
    explained: Tensor
    left: Tensor
    log_noise: Tensor

    @property
    def mean(self) -> Tensor:
        """(..., p), the most probable parameters."""
        turned = torch.linalg.solve_triangular(self.root.mT, self.explained[..., None], upper=True)
        return self.widths * torch.as_tensor(turned)[..., 0]

    @property
    def covariance(self) -> Tensor:
        """(..., p, p)."""
        return self.widths[..., None] * torch.cholesky_inverse(self.root) * self.widths[..., None, :]

    @property
    def spread(self) -> Tensor:
        """S (..., p, p), with the covariance S S^T: S times standard normal numbers is a draw about the mean."""
        unit = torch.eye(self.root.shape[-1]).to(self.root)
        spread: Tensor = self.widths[..., None] * torch.linalg.solve_triangular(self.root, unit, upper=False).mT
        return spread

    @property
    def square(self) -> Tensor:
        """(...), squared length of y in units of its own deviations."""
        return self.left - self.explained.square().sum(dim=-1)

    @property
    def volume(self) -> Tensor:
        """(...), nats that the parameters cost: the logarithm of the prior's over the posterior's volume."""
        return torch.log(torch.diagonal(self.root, dim1=-2, dim2=-1)).sum(dim=-1)

    @property
    def log_evidence(self) -> Tensor:
        """(...), the logarithm of the marginal likelihood, but for r / 2 log 2 pi."""
        return -0.5 * (self.log_noise + 2.0 * self.volume + self.square)


class LinearModel:
    """What is to be explained as a linear function of the parameters, y = J t + e.

    Args:
        jacobian: J (r, p), by parameters in units of their usual widths.
        target: y (r,).
        groups: numbers of parameters in each group, in order; they add up to p.
        noise: N, of e: a covariance (r, r), or variances (r,) where it is diagonal; 1 by default.
    """

    def __init__(self, jacobian: Tensor, target: Tensor, groups: Sequence[int], *, noise: Tensor | None = None) -> None:
        self._jacobian, self._target, self._log_noise = jacobian.double(), target.double(), 0.0
        if noise is not None and noise.dim() == 1:
            root = noise.sqrt()
            self._jacobian, self._target = self._jacobian / root[:, None], self._target / root
            self._log_noise = float(noise.log().sum())
        elif noise is not None:
            lower = torch.linalg.cholesky(noise)
            both = torch.cat([self._jacobian, self._target[:, None]], dim=1)
            white = torch.linalg.solve_triangular(lower, both, upper=False)
            self._jacobian, self._target = white[:, :-1], white[:, -1]
            self._log_noise = 2.0 * float(lower.diagonal().log().sum())
        self._gram = self._jacobian.T @ self._jacobian
        self._energy, self._pulled = self._target.square().sum(), self._jacobian.T @ self._target
        self._of_group = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor(groups)).to(jacobian.device)
        self._groups = len(groups)

    @classmethod
    def at_identity(
        cls, residuals: Callable[[Tensor], Tensor], groups: Sequence[int], like: Tensor, step: float | None = None
    ) -> LinearModel:
        """The model around 0 that explains residuals away.

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
            factors, variance = torch.exp(logs[:-1].clamp(low, high)), 1.0 + torch.exp(logs[-1])
            return self.under(factors, variance).log_evidence - caution * factors.sum(), factors, variance

        for _ in range(_STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(-log_posterior()[0])
            optimizer.step()
        with torch.no_grad():
            evidence, factors, variance = log_posterior()
        return Widths(tuple(factors.tolist()), float(variance), float(evidence))

    @property
    def values(self) -> int:
        """R, numbers that are to be explained."""
        return len(self._target)

    def under(self, factors: Tensor | Sequence[float], variance: Tensor | float = 1.0) -> Normal:
        """The posterior under given widths.

        Args:
            factors: of each group, (..., groups), times the width that is usual; 0 for what does not move.
            variance: v.
        """
        each = torch.as_tensor(factors, dtype=torch.float64).to(self._target)[..., self._of_group]
        v = torch.as_tensor(variance, dtype=torch.float64).to(self._target)
        precision = each[..., None] * self._gram * (each / v)[..., None, :]
        precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
        root = torch.linalg.cholesky(precision)
        explained = torch.linalg.solve_triangular(root, (each * self._pulled / v)[..., None], upper=False)[..., 0]
        return Normal(each, root, explained, self._energy / v, self._log_noise + len(self._target) * torch.log(v))

    def alone(self, group: int) -> LinearModel:
        """The same with the parameters of one group alone."""
        own = self._of_group == group
        other = LinearModel(self._jacobian[:, own], self._target, (int(own.sum()),))
        other._log_noise = self._log_noise
        return other

    def explaining(self, target: Tensor) -> LinearModel:
        """The same slopes for another y (r,), in units of the noise."""
        other = copy.copy(self)
        other._target = target.detach().double()
        other._energy, other._pulled = other._target.square().sum(), other._jacobian.T @ other._target
        return other

    def better_factors(self, factors: Tensor, values: Tensor) -> Tensor:
        """One step to the most probable widths: each group's size over how much of it is determined (MacKay 1992).

        Args:
            factors: of each group, the widths as they are, times the width that is usual; at v = 1.
            values: (p,), the parameters, in units of their usual widths.
        """
        free = torch.diagonal(torch.cholesky_inverse(self.under(factors).root))
        none = torch.zeros(self._groups).to(self._target)
        determined = none.index_add(0, self._of_group, 1.0 - free)
        sizes = none.index_add(0, self._of_group, values.square())
        return (sizes / (determined + CAUTION * factors)).sqrt()


def shortened(
    cost: Callable[[_At], float], now: float, move: Callable[[float], _At], shares: Iterable[float]
) -> tuple[_At | None, float]:
    """The longest of some steps that gains, with what it gains; none, and 0, where none does.

    Args:
        cost: of a place, in nats.
        now: that of where the step begins.
        move: so much of the step, a share of 1 for all of it, to where that leads.
        shares: the longest first.
    """
    for share in shares:
        other = move(share)
        if (gained := now - cost(other)) > 0.0:
            return other, gained
    return None, 0.0
