"""Deep features of another site as an affine map of the source's, of low rank beside the identity.

    h -> h + (h - mean) U V^T + b,   U, V (d, r), r at most 3, b (d,)

A device, a stain or a style moves a few directions of a deep network's features together, which one gain and one bias
for each feature cannot say. The map is found by Gauss-Newton steps on the release's coefficients: their derivative with
respect to any affine map is known in closed form, because the quantile coefficients of projections x_i u_k have

    d T_l(k) = (1/m) sum_i B_l(rank of i along k) (d h_i) u_k

so U and V are solved for in turn, each a ridge regression, and every rank begins at the singular vectors of the
likelihood's slope. A rank is added only if that makes the release more probable by its marginal likelihood (Laplace's
method: the posterior's volume counts, so more parameters do not win by being more). U, V and b are normal a priori.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from public_client.replay.class_frequencies import FrequencyModel
from public_client.replay.residuals import Residuals
from public_client.replay.views import CLASS_WIDTH, View
from shared.errors import InvalidValue

MOST_FEATURES = 256
"""d, above which a fit takes minutes and a release of usual size says nothing of such maps."""
_RANKS = 3
_BIAS = 0.3  # in deviations of the feature
_STEPS = 8
_HALVINGS = 4
_SETTLED = 1.0  # nats
_LEAST_GAIN = math.log(1e3)  # nats that one rank more must bring


class LowRankView(View):
    """Features h + (h - mean) U V^T + b of the frozen extractor.

    Args:
        mean: (d,), of the source's features.
        spread: (d,), positive: their deviations, the unit of the bias.

    Attributes:
        into: U (d, r).
        out: V (d, r).
        bias: (d,), in deviations.
        volume: nats by which the parameters' posterior is narrower than their prior; the fit sets it.
    """

    tunes_extractor = False
    mean: Tensor
    spread: Tensor

    def __init__(self, mean: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("spread", spread.detach().clone())
        self.into = nn.Parameter(torch.zeros(len(mean), 0).to(mean))
        self.out = nn.Parameter(torch.zeros(len(mean), 0).to(mean))
        self.bias = nn.Parameter(torch.zeros_like(self.mean))
        self.volume = 0.0

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Features (m, d) of records (m, ...); they are not varied."""
        with torch.no_grad():
            features = extractor(records)
        return self.moved(features)

    def moved(self, features: Tensor) -> Tensor:
        """(m, d) to the same."""
        seen: Tensor = features + (features - self.mean) @ self.into @ self.out.T + self.bias * self.spread
        return seen

    def penalty(self) -> Tensor:
        """See `View.penalty`; U and V are as large as a map that doubles one direction."""
        maps = self.into.square().sum() + self.out.square().sum()
        return 0.5 * len(self.mean) * maps + 0.5 * (self.bias / _BIAS).square().sum() + self.volume

    def check(self, records: Tensor, features: Tensor) -> None:
        """See `View.check`."""
        if features.shape[1] != len(self.mean):
            raise InvalidValue(
                f"the view is of {len(self.mean)} features, the extractor gives {features.shape[1]}; make it with the "
                f"mean and the deviation of each feature, shape ({features.shape[1]},)"
            )


def low_rank_view(features: Tensor) -> LowRankView:
    """The identity for source features (m, d)."""
    spread = features.std(dim=0).nan_to_num().clamp(min=1e-6)
    return LowRankView(features.mean(dim=0), spread).to(features.device)


@torch.no_grad()
def find_low_rank(identity: LowRankView, features: Tensor, labels: Tensor, residuals: Residuals) -> LowRankView:
    """The most probable map: a bias alone, or with one to three ranks.

    Args:
        identity: not changed.
        features: (m, d), the source's.
        labels: (m,), theirs.
        residuals: from the releases.
    """
    fit = _Fit(features, labels, residuals)
    best = fit.settled(copy.deepcopy(identity))
    while best.view.into.shape[1] < min(_RANKS, features.shape[1]):
        proposed = fit.settled(fit.with_one_more(best))
        if proposed.log_evidence <= best.log_evidence + _LEAST_GAIN:
            break
        best = proposed
    return best.view


@dataclass(frozen=True)
class _State:
    """A view and what the releases say of it.

    Attributes:
        view: in the making.
        left: released coefficients less its own, (N,).
        unexplained: the most probable part of the features' variance that it leaves.
        log_evidence: of the release under such maps.
    """

    view: LowRankView
    left: Tensor
    unexplained: float
    log_evidence: float


class _Fit:
    def __init__(self, features: Tensor, labels: Tensor, residuals: Residuals) -> None:
        self._features, self._residuals = features, residuals
        self._even = torch.ones(len(features)).to(features)
        self._noise = FrequencyModel(features, labels, residuals, int(labels.max()) + 1).tolerant(CLASS_WIDTH)
        self._directions = [one.double() for one in residuals.raw_directions()]  # (d, k)

    def left(self, view: LowRankView) -> Tensor:
        """Released coefficients less those of the records as the view sees them, (N,)."""
        residuals = self._residuals.of_all(view.moved(self._features), self._even)
        return -self._residuals.unit * residuals.flatten().double()

    def slopes(self, view: LowRankView) -> tuple[Tensor, Tensor, Tensor]:
        """H (N, d), h (N,) and D (N, d): what moves the coefficients.

        A map's entry (a, b) moves them by H[:, a] D[:, b], a bias of feature b by h D[:, b]; that a clipped record
        moves less is left out.
        """
        seen, z = view.moved(self._features), (self._features - view.mean).double()
        z = torch.cat((z, torch.ones_like(z[:, :1])), dim=1) / len(z)
        moments, directions = [], []
        of_each = zip(self._residuals.targets(), self._residuals.projections(seen), self._directions, strict=True)
        for target, projections, u in of_each:
            levels = (projections.argsort(dim=0).argsort(dim=0).double() + 0.5) / len(seen)
            for degree in range(len(target)):
                waves = math.sqrt(2.0) * torch.cos(math.pi * degree * levels) if degree else torch.ones_like(levels)
                moments.append(waves.T @ z)
                directions.append(u.T)
        whole = torch.cat(moments)
        return whole[:, :-1], whole[:, -1], torch.cat(directions)

    def with_one_more(self, state: _State) -> LowRankView:
        """One rank more along the steepest map, 0 as yet."""
        H, _, D = self.slopes(state.view)
        pulled = self._noise.inverse(state.left, state.unexplained)
        into = torch.linalg.svd((H * pulled[:, None]).T @ D)[0][:, :1].to(state.view.into)
        other = copy.deepcopy(state.view)
        other.into = nn.Parameter(torch.cat((state.view.into, into), dim=1))
        other.out = nn.Parameter(torch.cat((state.view.out, torch.zeros_like(into)), dim=1))
        return other

    def settled(self, view: LowRankView) -> _State:
        """Solves for V and b and for U in turn until nothing is gained, and judges."""
        left = self.left(view)
        for _ in range(_STEPS):
            v, gained = self._noise.most_probable(left), 0.0
            for names in (("out", "bias"), ("into",)):
                view, left, more = self._step(view, left, v, names)
                gained += more
            if gained < _SETTLED:
                break
        v = self._noise.most_probable(left)
        scaled = torch.cat([self._scaled(view, v, name) for name in ("into", "out", "bias")], dim=1)
        volume = 0.5 * float(torch.logdet(torch.eye(len(left)).to(left) + scaled @ scaled.T))
        view.volume = volume
        return _State(view, left, v, float(self._noise.log_likelihood(left, v)) - float(view.penalty()))

    def _scaled(self, view: LowRankView, v: float, name: str) -> Tensor:
        """Slopes by one parameter in units of its prior and of the noise, (N, p)."""
        H, h, D = self.slopes(view)
        if name == "bias":
            each = h[:, None] * D * (_BIAS * view.spread.double())
        else:
            first, second = (H, D @ view.out.double()) if name == "into" else (D, H @ view.into.double())
            each = (first[:, :, None] * second[:, None, :]).flatten(1) / math.sqrt(len(view.mean))
        return self._noise.scaled(each, v)

    def _step(
        self, view: LowRankView, left: Tensor, v: float, names: tuple[str, ...]
    ) -> tuple[LowRankView, Tensor, float]:
        """One Gauss-Newton step on some parameters; what it gained, in nats."""
        widths = {"into": len(view.mean) ** -0.5, "out": len(view.mean) ** -0.5, "bias": _BIAS}
        before = torch.cat([getattr(view, name).double().flatten() / widths[name] for name in names])
        J = torch.cat([self._scaled(view, v, name) for name in names], dim=1)
        if J.shape[1] == 0:
            return view, left, 0.0
        pulled = J.T @ self._noise.scaled(left, v) - before
        step = torch.linalg.solve(torch.eye(J.shape[1]).to(J) + J.T @ J, pulled)
        now = self._energy(view, left, v)
        for _ in range(_HALVINGS):
            other, begun = copy.deepcopy(view), 0
            for name in names:
                parameter = getattr(other, name)
                own = step[begun : begun + parameter.numel()] * widths[name]
                parameter += own.reshape(parameter.shape).to(parameter)
                begun += parameter.numel()
            after = self.left(other)
            gained = now - self._energy(other, after, v)
            if gained > 0.0:
                return other, after, gained
            step = 0.5 * step
        return view, left, 0.0

    def _energy(self, view: LowRankView, left: Tensor, v: float) -> float:
        return 0.5 * float(self._noise.square(left, v)) + float(view.penalty())
