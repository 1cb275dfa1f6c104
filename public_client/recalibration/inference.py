"""How far biases, slopes and head of a classifier move by what was released: a posterior, by one likelihood.

Each step of a run releases, at a correction that the client chose, class counts and the gradient and curvature of the
log-loss (docs/privacy/score-statistics.md). What a gradient is expected to be, public records tell; counts are taken
for what they say of the biases, as under other class frequencies (Saerens and others 2002), up to what the records
themselves explain. DP noise and sampling noise are in the likelihood, and the widths of the normal prior are averaged
by marginal likelihood over a grid that holds 0 for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from scipy import special

from dpswd.public_client.linear_evidence import LinearModel, Normal
from dpswd.public_client.recalibration.curvature import Expected, Public, Values, contrasts, correcting, softness

WIDTHS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "biases": (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
        "slopes": (0.0, 0.07, 0.14, 0.28, 0.56),
        "head": (0.0, 0.05, 0.1, 0.2, 0.4),
    }
)
"""Deviations of the prior, on the log-odds of two classes by one deviation of a component; of slopes, by themselves."""
STILL: Mapping[str, float] = MappingProxyType({"biases": 0.25, "slopes": 0.5, "head": 0.5})
"""Probability beforehand that a kind does not move at all; the widths above 0 share the rest."""
EXPLAINED = 0.3
"""Of log-odds, and half of that of their change: how far other class shares may be due to what the records show, so
that the model knows of them already. At the sites by which settings were chosen it was 0.25 to 0.75."""
CURVED = 0.15
"""Of what a gradient is expected to change by, over a change of 1 of log-odds: how far that may be wrong."""
_WRONG, _LONGEST = 0.3, 1.0  # the same, at most; the longest way of one step
_ITERATIONS, _PLACES = 20, 21  # of a fit; that are tried between two explanations
_REVERSED = -0.2  # of what scores are multiplied with: nearer to 0 they tell next to nothing
_ENOUGH, _UNEXPLAINED = 1e-3, 0.2  # of log-odds; of a gain
_Rows = tuple[Values, Values, Values]


@dataclass(frozen=True, eq=False)
class Released:
    """What one step said; noised.

    Attributes:
        at: (C, d) the correction at which.
        counts: (C,) records of each class.
        gradient: (C, d) sum of what the records' labels are above their probabilities, times their clipped basis.
        square: (d, d) sum of half the records' weight times the square of their clipped basis.
        deviations: of the noise on each number of counts, gradient and the square's diagonal.
    """

    at: Values
    counts: Values
    gradient: Values
    square: Values
    deviations: tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of the correction.

    Attributes:
        mean: (C, d).
        moved: what explains most of the gain: "biases", with them "slopes" or "reversed" ones, or else "head".
        evidence: nats for a move over none; for softened scores with what they may gain over what they may cost.
        gain: expected fall of the log-loss by the mean, where it is true of records like the source's.
        deviation: of that gain.
    """

    mean: Values
    moved: str
    evidence: float
    gain: float
    deviation: float


class Recalibration:
    """The likelihood and the prior of one hospital.

    Args:
        public: source records under the team's model.
        scale: (d,) of the basis before the clip.
        slopes: whether C - 1 columns after the first are the scores' contrasts.
        records: labelled, n.
    """

    def __init__(self, public: Public, *, scale: Values, slopes: bool, records: int) -> None:
        self._public, self._scale, self._records = public, scale, records
        classes, d = public.scores.shape[1], public.basis.shape[1]
        self._basis = contrasts(classes)
        self._kinds = _kinds(classes - 1, d, slopes=slopes)
        self._along, self._sizes = np.hstack(list(self._kinds.values())), [of.shape[1] for of in self._kinds.values()]
        self._softened = public.softened(d)
        spread = math.sqrt(2.0) * public.unit * softness(public.unit)
        units = np.array([spread if kind == "slopes" else 1.0 for kind in self._kinds])
        grid = list(itertools.product(*(WIDTHS[kind] for kind in self._kinds)))  # first of all nothing
        self._widths = torch.from_numpy(math.sqrt(0.5) * units * np.array(grid))
        each = [[STILL[k], *[(1.0 - STILL[k]) / (len(WIDTHS[k]) - 1)] * (len(WIDTHS[k]) - 1)] for k in self._kinds]
        self._beforehand = np.array([math.prod(own) for own in itertools.product(*each)])
        self._cached: dict[int, Expected] = {}

    def posterior(self, steps: Sequence[Released]) -> Posterior:
        """What the steps together say.

        A model that is too sure of all is far from what is true, and no width of a prior around it says so. Moves
        from its softened scores are a second explanation, as likely beforehand; the mean is between both, where the
        log-loss is expected to be least.

        Args:
            steps: in their order; at least one.
        """
        wide, none = self._wide(steps), np.zeros_like(self._softened)
        fit = self._around(none, steps, wide)
        beforehand, other = math.log(self._beforehand[0]), float(special.logsumexp(fit.logs[1:]))
        evidence = other - math.log1p(-math.exp(beforehand)) - (float(fit.logs[0]) - beforehand)
        mean, gain, apart = fit.mean, self._public.fall(fit.mean), 0.0
        if self._softened.any():
            soft = self._around(self._softened, steps, wide)
            more = float(special.logsumexp(soft.logs) - special.logsumexp(fit.logs))
            mean, gain, apart = self._between(fit.mean, soft.mean, float(special.expit(more)))
            fit, evidence = (soft if more > 0.0 else fit), max(evidence, more)
        weights = special.softmax(fit.logs)
        # Of the curvature on the way there, too: a large move is not seen from its end.
        bent = _mean([wide @ self._public.curvature(self._public.at(place)) @ wide.T for place in (none, mean)])
        slope = bent @ self._flat(mean)
        direction = fit.law.widths * torch.from_numpy(self._along.T @ slope)  # (widths, q)
        within = torch.linalg.solve_triangular(fit.law.root, direction[..., None], upper=False)[..., 0]
        means = slope @ self._along @ fit.law.mean.numpy().T
        between = means - means @ weights
        deviation = math.sqrt(weights @ (between**2 + within.square().sum(dim=1).numpy()) + apart**2)
        return Posterior(mean, self._moved(mean), evidence, gain, deviation)

    def _between(self, one: Values, other: Values, likely: float) -> tuple[Values, float, float]:
        """Where most is expected to be gained between two corrections, the second this likely; gain, deviation."""
        chances, places = np.array([1.0 - likely, likely]), []
        most = np.array([self._public.fall(true) for true in (one, other)])
        for share in np.linspace(0.0, 1.0, _PLACES):
            place = one + share * (other - one)
            gains = most - [self._public.fall(true, before=place) for true in (one, other)]
            places.append((float(chances @ gains), float(abs(gains[1] - gains[0])), place))
        gain, apart, place = max(places, key=lambda each: each[0])
        return place, gain, apart * math.sqrt(likely * (1.0 - likely))

    def _moved(self, mean: Values) -> str:
        part, classes = np.zeros_like(mean), len(mean)
        part[:, 0], left = mean[:, 0], _UNEXPLAINED * self._public.fall(mean)
        if self._public.fall(mean, before=part) <= left:
            return "biases"
        slope = float(np.diagonal(self._basis.T @ mean[:, 1:classes]).mean())
        part[:, 1:classes] = slope * self._basis
        if self._public.fall(mean, before=part) > left:
            return "head"
        unit = self._public.unit  # scores are this times the basis
        return "reversed" if unit + slope < _REVERSED * unit else "slopes"

    def _around(self, reference: Values, steps: Sequence[Released], wide: Values) -> _Fit:
        """Where the steps lead where moves are from a reference."""
        other, last = self._softened - reference, steps[-1].at
        now = last if self._public.size(last - reference) <= self._public.size(last - other) else reference
        for iteration in range(_ITERATIONS):
            said = [self._counted(steps, now), *self._linear(steps, wide, now)]
            law, logs = self._under(said, reference)
            mean = reference + self._unflat(self._along @ law.mean.numpy().T @ special.softmax(logs))
            size = self._public.size(mean - now)
            # How far a gradient is straight follows from where this ends: half steps keep it from going to and fro.
            now = now + (mean - now) * min(1.0 if iteration < 2 else 0.5, _LONGEST / max(size, _ENOUGH))
            if size < _ENOUGH:
                break
        return _Fit(now, law, logs)

    def _linear(self, steps: Sequence[Released], wide: Values, now: Values) -> Iterator[_Rows]:
        """Rows and values of what each gradient says of the parameters, linear around `now`, and the noise.

        That is DP and sampling noise (all steps are of the same records, so their mean has as much of it as each), and
        how far what is expected at `now` may be wrong of a gradient that was taken elsewhere.
        """
        n, own, start = self._records, self._flat(now), _mean([self._flat(step.at) for step in steps])
        weights, scale = _mean([self._expected(step).weights for step in steps]), np.tile(self._scale, len(now) - 1)
        there, scaled = self._public.at(self._unflat(start + wide.T @ (own - start))), self._public.basis * self._scale
        pull = n * wide @ (scale[:, None] * self._public.curvature(there, weights)) @ wide.T
        for step in steps:
            expected, at = self._expected(step), self._flat(step.at)
            away = self._public.at(self._unflat(at + wide.T @ (own - at))) - expected.chance
            mean = (expected.weights[:, None] * away).T @ scaled / len(away)
            value = n * wide @ self._flat(mean)
            wrong = min(_WRONG, CURVED * self._public.size(step.at - now)) * value
            noise = len(steps) * n * wide @ expected.noise @ wide.T + np.outer(wrong, wrong)
            noise += step.deviations[1] ** 2 * np.eye(len(noise))
            yield pull, self._flat(step.gradient) - value + pull @ own, noise

    def _under(self, said: Sequence[_Rows], reference: Values) -> tuple[Normal, Values]:
        """The law of moves from a reference under each of the prior's widths, and the widths' log-probabilities."""
        roots = [np.linalg.cholesky(noise) for _, _, noise in said]
        white = [np.linalg.solve(of, np.column_stack(one[:2])) for of, one in zip(roots, said, strict=True)]
        rows, values = np.vstack(white)[:, :-1], np.vstack(white)[:, -1]
        both = torch.from_numpy(np.column_stack([rows @ self._along, values - rows @ self._flat(reference)]))
        widths = self._widths if reference.any() else self._widths / softness(self._public.unit)  # as its scores are
        law = LinearModel(both[:, :-1], both[:, -1], self._sizes).under(widths)
        volume = sum(float(np.log(np.diagonal(of)).sum()) for of in roots)
        return law, law.log_evidence.numpy() + np.log(self._beforehand) - volume

    def _counted(self, steps: Sequence[Released], now: Values) -> tuple[Values, Values, Values]:
        """Rows of the counts: shares are the source's with the biases' odds, up to what records explain."""
        others, d, n = len(now) - 1, now.shape[1], self._records
        deviation = steps[0].deviations[0] / (n * math.sqrt(len(steps)))
        if not math.isfinite(deviation):
            return np.zeros((0, others * d)), np.zeros(0), np.zeros((0, 0))
        shares = self._public.shares * np.exp(now[:, 0] - now[:, 0].max())
        shares /= shares.sum()
        spread = self._basis.T @ (np.diag(shares) - np.outer(shares, shares)) @ self._basis
        missing = self._basis.T @ (_mean([step.counts for step in steps]) / n - shares)
        width = EXPLAINED * (1.0 + 0.5 * self._public.size(np.pad(now[:, :1], ((0, 0), (0, d - 1)))))
        noise = deviation**2 * np.eye(others) + spread / n + 0.5 * width**2 * spread @ spread
        return np.kron(spread, np.eye(1, d)), missing + spread @ (self._basis.T @ now[:, 0]), noise

    def _expected(self, step: Released) -> Expected:
        if id(step) not in self._cached:
            self._cached[id(step)] = Expected.of(self._public, step.at, self._scale)
        return self._cached[id(step)]

    def _wide(self, steps: Sequence[Released]) -> Values:
        """(p, p) by how much the hospital's basis is another than the source's, as all squares together tell."""
        n, expected = self._records, _mean([self._expected(step).square for step in steps])
        deviation = steps[0].deviations[2] / (n * math.sqrt(len(steps)))
        by = correcting(_mean([step.square for step in steps]) / n, expected, deviation=deviation, records=n)
        return np.asarray(np.kron(np.eye(self._basis.shape[1]), by))

    def _flat(self, correction: Values) -> Values:
        return np.asarray(self._basis.T @ correction).reshape(-1)

    def _unflat(self, parameters: Values) -> Values:
        return np.asarray(self._basis @ parameters.reshape(self._basis.shape[1], -1))


class _Fit(NamedTuple):
    """A mean (C, d), the law under each of the prior's widths, and their joint log-probabilities."""

    mean: Values
    law: Normal
    logs: Values


def _kinds(others: int, columns: int, *, slopes: bool) -> dict[str, Values]:
    """(p, q) directions of what may move, each by as much, at width 1 on the coefficients of contrasts."""
    biases, common, head = (np.zeros((others, columns)) for _ in range(3))
    biases[:, 0], head[:, 1:] = 1.0, 1.0
    unit = np.eye(others * columns)
    kinds = {"biases": unit[:, biases.reshape(-1) > 0.0]}
    if slopes:
        common[:, 1 : 1 + others] = np.eye(others)
        kinds["slopes"] = common.reshape(-1, 1)
        if others == 1:
            head[:, 1] = 0.0
    if head.any():
        kinds["head"] = unit[:, head.reshape(-1) > 0.0]
    return kinds


def _mean(each: Sequence[Values]) -> Values:
    return np.asarray(np.mean(each, axis=0))
