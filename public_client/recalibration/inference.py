"""How far biases, slopes and head of a classifier move by what was released: a posterior, by one likelihood.

Each step of a run releases, at a correction that the client chose, class counts and the gradient and curvature of the
log-loss (docs/privacy/score-statistics.md). Gradients are linear around where they were taken; counts are not, and are
taken for what they say of the biases, as under other class frequencies (Saerens and others 2002), up to what the
records themselves explain. DP noise and sampling noise are in the likelihood, and the widths of the normal prior
are averaged by marginal likelihood over a grid that holds 0 for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from scipy import special

from dpswd.public_client.linear_evidence import LinearModel, Normal
from dpswd.public_client.recalibration.curvature import Expected, Public, Values, contrasts, correcting

WIDTHS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "biases": (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
        "slopes": (0.0, 0.1, 0.2, 0.4),
        "head": (0.0, 0.05, 0.1, 0.2, 0.4),
    }
)
"""Deviations of the prior, on the log-odds of two classes by one deviation of a score or a component."""
STILL: Mapping[str, float] = MappingProxyType({"biases": 0.25, "slopes": 0.5, "head": 0.5})
"""Probability beforehand that a kind does not move at all; the widths above 0 share the rest."""
EXPLAINED = 0.3
"""Of log-odds, and half of that of their change: how far other class shares may be due to what the records show, so
that the model knows of them already. At the sites by which settings were chosen it was 0.25 to 0.75."""
NEAR = 0.5
"""Root mean square change of log-odds within which all gradients count, each linear around where it was taken."""
CURVED = 0.15
"""Of what a gradient changes by on such a straight line over a change of 1: how far that may be wrong."""
_LONGEST = 1.0  # the same, of one step
_ITERATIONS = 20
_ENOUGH = 1e-3


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
        moved: probability that something moved: "anything", "biases", and "slopes" and "head" where there are any.
        evidence: nats for a move over none.
        gain: expected fall of the log-loss by the mean, where it is true of records like the source's.
        deviation: of that gain.
    """

    mean: Values
    moved: Mapping[str, float]
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
        self._frame: Values = np.kron(self._basis, np.eye(d)).reshape(classes, d, -1).astype(np.float64)
        self._kinds = _kinds(classes - 1, d, slopes=slopes)
        self._grid = list(itertools.product(*(WIDTHS[kind] for kind in self._kinds)))  # first of all nothing
        each = [
            [STILL[kind] if width == 0.0 else (1.0 - STILL[kind]) / (len(WIDTHS[kind]) - 1) for width in WIDTHS[kind]]
            for kind in self._kinds
        ]
        self._beforehand = np.array([math.prod(own) for own in itertools.product(*each)])
        self._cached: dict[tuple[int, ...], list[Expected]] = {}

    def posterior(self, steps: Sequence[Released]) -> Posterior:
        """What the steps together say.

        Args:
            steps: in their order; at least one.
        """
        now, along = steps[-1].at, np.hstack(list(self._kinds.values()))
        for iteration in range(_ITERATIONS):
            model, curvature = self._observed(steps, now)
            law, weights, logs = self._under_each_width(model)
            means = along @ law.mean.numpy().T  # (p, widths)
            mean = means @ weights
            change = np.tensordot(self._frame, mean, axes=1) - now
            size = self._public.size(change)
            # How far a gradient is straight follows from where this ends: half steps keep it from going to and fro.
            now = now + change * min(1.0 if iteration < 2 else 0.5, _LONGEST / max(size, _ENOUGH))
            if size < _ENOUGH:
                break
        _, first = self._observed(steps, steps[0].at)  # the way there: a large move is not seen from its end
        slope = 0.5 * (curvature + first) @ self._flat(now)
        moved = {"anything": 1.0 - float(weights[0])}
        for place, kind in enumerate(self._kinds):
            moved[kind] = float(sum(w for w, widths in zip(weights, self._grid, strict=True) if widths[place]))
        beforehand = math.log(self._beforehand[0])
        other = float(special.logsumexp(logs[1:])) - math.log1p(-math.exp(beforehand))
        evidence = other - (float(logs[0]) - beforehand)
        direction = law.widths * torch.from_numpy(along.T @ slope)  # (widths, q)
        within = torch.linalg.solve_triangular(law.root, direction[..., None], upper=False)[..., 0]
        between = slope @ (means - mean[:, None])
        deviation = math.sqrt(weights @ (between**2 + within.square().sum(dim=1).numpy()))
        return Posterior(now, moved, evidence, self._public.fall(now), deviation)

    def _observed(self, steps: Sequence[Released], now: Values) -> tuple[LinearModel, Values]:
        """What steps near `now` say, or the nearest of them, and all their counts, of what moves by kinds.

        Beside it the curvature (p, p) of the log-loss in the parameters, as far as it is known.
        """
        far = [self._public.size(step.at - now) for step in steps]
        near = [step for step, size in zip(steps, far, strict=True) if size <= max(NEAR, min(far))]
        number, n = len(near), self._records
        moved = self._moved(near)
        pull = n * _mean([one.pull for one in moved])
        gradients = _mean(
            [
                self._flat(step.gradient) + n * one.pull @ self._flat(step.at)
                for step, one in zip(near, moved, strict=True)
            ]
        )
        noise = n * _mean([one.noise for one in moved])
        noise = noise + near[0].deviations[1] ** 2 / number * np.eye(len(noise))
        for step, one in zip(near, moved, strict=True):
            beyond = CURVED * self._public.size(step.at - now) * n * one.pull @ self._flat(step.at - now)
            noise += np.outer(beyond, beyond) / number
        rows, values, counts = self._counted(steps, now)
        apart = np.zeros((len(counts), len(noise)))
        model = LinearModel(
            torch.from_numpy(np.vstack([rows, pull]) @ np.hstack(list(self._kinds.values()))),
            torch.from_numpy(np.concatenate([values, gradients])),
            [columns.shape[1] for columns in self._kinds.values()],
            noise=torch.from_numpy(np.block([[counts, apart], [apart.T, noise]])),
        )
        return model, _mean([one.raw for one in moved])

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
        rows = np.zeros((others, others * d))
        rows[:, ::d] = spread
        others_moved = np.zeros_like(now)
        others_moved[:, 0] = now[:, 0]
        width = EXPLAINED * (1.0 + 0.5 * self._public.size(others_moved))
        explained = 0.5 * width**2 * spread @ spread
        noise = deviation**2 * np.eye(others) + spread / n + explained
        return rows, missing + spread @ (self._basis.T @ now[:, 0]), noise

    def _under_each_width(self, model: LinearModel) -> tuple[Normal, Values, Values]:
        """What is known under each of the prior's widths, their weights and joint log-probabilities."""
        law = model.under(math.sqrt(0.5) * torch.tensor(self._grid, dtype=torch.float64))
        joint = law.log_evidence.numpy() + np.log(self._beforehand)
        return law, special.softmax(joint), joint

    def _moved(self, near: Sequence[Released]) -> list[Expected]:
        """What is expected of each of some steps, as their squares together correct it."""
        which = tuple(id(step) for step in near)
        if which not in self._cached:
            n, number = self._records, len(near)
            square = _mean([step.square for step in near]) / n
            deviation = near[0].deviations[2] / (n * math.sqrt(number))
            expected = [Expected.of(self._public, step.at, self._scale, self._frame) for step in near]
            self._cached[which] = [
                one.moved(correcting(square, one.square, deviation=deviation, records=n)) for one in expected
            ]
        return self._cached[which]

    def _flat(self, correction: Values) -> Values:
        return np.asarray(np.tensordot(self._frame, correction, axes=([0, 1], [0, 1])))


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
