"""What a noised release of layers' statistics says: three explanations, weighed by one marginal likelihood.

The release less the source's moments is Gaussian: the hospital's sampling noise, the source's own, the privacy noise,
and what the explanation adds. *As it is* adds nothing. *Class frequencies* add the source's class means times a change
of frequencies, N(0, w^2 p) each. *Channels* add a move of each channel, N(0, t^2) for means and N(0, (k t)^2) for
deviations, and moves along the directions in which the source's records differ from each other, of covariance r^2 S.
The widths w, t, k and r are averaged over a small grid by the same likelihood (Berger 1985, Statistical Decision
Theory and Bayesian Analysis, section 3.5). A covariance is diagonal but for few directions, so that Woodbury's identity
makes it cheap in thousands of channels.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy import linalg, stats

from dpswd.public_client.normalisation.reference import Reference, Values

_MOVES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_DEVIATIONS = (0.3, 1.0, 3.0)
_ALONG = (0.0, 0.1, 0.3, 1.0, 3.0)
_FREQUENCIES = (0.1, 0.2, 0.4, 0.8)

AS_IT_IS, FREQUENCIES, CHANNELS, BOTH = "as it is", "class frequencies", "channels moved", "both"


@dataclass(frozen=True, eq=False)
class Observed:
    """What was released.

    Attributes:
        moved: (d,) mean of the clipped statistics, less the source's.
        noise: (d,) deviation of the privacy noise on it.
        records: n.
    """

    moved: Values
    noise: Values
    records: int


@dataclass(frozen=True, eq=False)
class Explanation:
    """One kind of explanation of a release.

    Attributes:
        evidence: log of the marginal likelihood, nats.
        move: (d,) posterior mean of how far the channels have moved.
        left: what the explanation's best widths leave, chi-square per number.
    """

    evidence: float
    move: Values
    left: float


def explained(observed: Observed, reference: Reference, deviations: Values) -> dict[str, Explanation]:
    """All explanations of a release by name.

    Args:
        observed: the release.
        reference: the source's moments, of the same statistics.
        deviations: (d,) 1 for deviations, 0 for means.
    """
    likelihood = _Likelihood(observed, reference, deviations)
    frequencies = (0.0, *_FREQUENCIES)
    still = [likelihood.at(0.0, 1.0, 0.0, w) for w in frequencies]
    moving = {
        w: [likelihood.at(t, k, r, w) for t, k, r in itertools.product(_MOVES, _DEVIATIONS, _ALONG)]
        for w in frequencies
    }
    return {
        AS_IT_IS: _averaged(still[:1]),
        FREQUENCIES: _averaged(still[1:]),
        CHANNELS: _averaged(moving[0.0]),
        BOTH: _averaged([one for w in _FREQUENCIES for one in moving[w]]),
    }


def moved(observed: Observed, reference: Reference, deviations: Values, *, frequencies: bool = False) -> Values:
    """(d,) how far channels have moved, averaged over that they have not and all widths.

    Args:
        observed: the release.
        reference: the source's moments, of the same statistics.
        deviations: (d,) 1 for deviations, 0 for means.
        frequencies: whether class frequencies have changed too; what they explain is no move.
    """
    likelihood = _Likelihood(observed, reference, deviations)
    widths = (0.0, *_FREQUENCIES) if frequencies else (0.0,)
    grid = itertools.product(_MOVES, _DEVIATIONS, _ALONG, widths)
    still = _averaged([likelihood.at(0.0, 1.0, 0.0, w) for w in widths])
    moving = _averaged([likelihood.at(*at) for at in grid])
    return np.asarray(moving.move / (1.0 + math.exp(min(700.0, still.evidence - moving.evidence))))


def class_frequencies(observed: Observed, reference: Reference) -> Values:
    """(C,) class frequencies where nothing else has changed, positive and of sum 1.

    The posterior mean, averaged over the width; of each class that of its normal law cut at zero: a class that was not
    seen is rare by as much as the release leaves open, and not absent.
    """
    by, shares = _sampling(observed, reference), reference.shares
    diagonal = by * reference.own + observed.noise**2
    along = reference.along / diagonal[:, None]
    inner = linalg.inv(np.eye(along.shape[1]) / by + reference.along.T @ along)
    classes = reference.classes.T
    weighted = classes / diagonal[:, None] - along @ (inner @ (along.T @ classes))
    information, told = classes.T @ weighted, weighted.T @ observed.moved
    likelihood = _Likelihood(observed, reference, np.zeros(len(diagonal)))
    evidences = np.array([likelihood.at(0.0, 1.0, 0.0, w).evidence for w in _FREQUENCIES])
    weights = np.exp(evidences - evidences.max())
    found = np.zeros(len(shares))
    for w, weight in zip(_FREQUENCIES, weights / weights.sum(), strict=True):
        covariance = linalg.inv(information + np.diag(1.0 / (w**2 * shares)))
        summed = covariance.sum(axis=1)  # changes add up to nothing
        mean = covariance @ told
        mean = shares + mean - summed * mean.sum() / summed.sum()
        deviation = np.sqrt(np.diag(covariance) - summed**2 / summed.sum())
        found += weight * _above_zero(mean, deviation)
    return np.asarray(found / found.sum())


def _above_zero(mean: Values, deviation: Values) -> Values:
    """The mean of a normal law that is cut at zero."""
    at = mean / deviation
    return np.asarray(mean + deviation * np.exp(stats.norm.logpdf(at) - stats.norm.logcdf(at)))


def _sampling(observed: Observed, reference: Reference) -> float:
    """Variance of a mean's sampling noise, of the target and the source, in units of a record's."""
    return 1.0 / observed.records + 1.0 / reference.records


class _Likelihood:
    """The marginal likelihood at given widths, and the posterior mean of the channels' moves."""

    def __init__(self, observed: Observed, reference: Reference, deviations: Values) -> None:
        self._y, self._own, self._deviations = observed.moved, reference.own, deviations
        self._by = _sampling(observed, reference)
        self._base = self._by * reference.own + observed.noise**2
        classes = (reference.classes * np.sqrt(reference.shares)[:, None]).T
        self._rank = reference.along.shape[1]
        self._directions = np.concatenate([reference.along, classes], axis=1)
        self._kept: tuple[tuple[float, float, float], tuple[Values, Values, Values]] | None = None

    def _reduced(self, t: float, k: float, r: float) -> tuple[Values, Values, Values]:
        """The diagonal's free part, and the directions' products by the inverse diagonal; kept for other w."""
        if self._kept is None or self._kept[0] != (t, k, r):
            free = (t * np.where(self._deviations > 0.0, k, 1.0)) ** 2 + r**2 * self._own
            weighted = self._directions / (self._base + free)[:, None]
            self._kept = (t, k, r), (free, self._directions.T @ weighted, weighted.T @ self._y)
        return self._kept[1]

    def at(self, t: float, k: float, r: float, w: float) -> Explanation:
        """See the file."""
        y, rank = self._y, self._rank
        free, products, told = self._reduced(t, k, r)
        diagonal = self._base + free
        used = slice(None) if w else slice(rank)
        widths = np.full(self._directions.shape[1], self._by + r**2)
        widths[rank:] = w**2
        widths = widths[used]
        root = linalg.cholesky(np.diag(1.0 / widths) + products[used, used], lower=True)
        half = linalg.solve_triangular(root, told[used], lower=True)
        coefficients = linalg.solve_triangular(root.T, half)
        rest = (y - self._directions[:, used] @ coefficients) / diagonal
        square = float(y @ (y / diagonal) - half @ half)
        log_determinant = float(np.log(diagonal).sum() + 2.0 * np.log(np.diag(root)).sum() + np.log(widths).sum())
        evidence = -0.5 * (square + log_determinant + len(y) * math.log(2.0 * math.pi))
        along = self._directions[:, :rank] @ (coefficients[:rank] * (r**2 / widths[:rank]))
        return Explanation(evidence, free * rest + along, square / len(y))


def _averaged(grid: list[Explanation]) -> Explanation:
    """Over widths that are equally probable beforehand."""
    evidences = np.array([one.evidence for one in grid])
    weights = np.exp(evidences - evidences.max())
    move = sum(weight * one.move for weight, one in zip(weights / weights.sum(), grid, strict=True))
    left = grid[int(evidences.argmax())].left
    return Explanation(float(evidences.max() + math.log(weights.mean())), np.asarray(move), left)
