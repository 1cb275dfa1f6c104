"""What a noised release of layers' statistics says: three explanations, weighed by one marginal likelihood.

The release less the source's moments is Gaussian: the hospital's sampling noise, the source's own, the privacy noise,
and what the explanation adds. *As it is* adds nothing. *Class frequencies* add the source's class means times a change
of frequencies, N(0, w^2 p) each, cut to those that add up to 1 and are not negative: without the cut they explain
moves of channels by negative ones. *Channels* add a move of each channel, N(0, t^2) for means and N(0, (k t)^2)
for deviations, and moves along the directions in which the source's records differ from each other, of covariance
r^2 S. The widths w, t, k and r are averaged over a small grid by the same likelihood (Berger 1985, Statistical Decision
Theory and Bayesian Analysis, section 3.5), which is cheap in thousands of channels, as the noise is diagonal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import linalg, special

from dpswd.public_client.linear_evidence import LinearModel
from dpswd.public_client.normalisation.reference import Reference, Values

_MOVES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_DEVIATIONS = (0.3, 1.0, 3.0)
_ALONG = (0.0, 0.1, 0.3, 1.0, 3.0)
_MOST_CUT = 32  # classes, of which the cut at zero is taken into account
_TINY = 1e-12
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
        frequencies: (C,) posterior mean of the classes' frequencies, not negative.
    """

    evidence: float
    move: Values
    frequencies: Values


def explained(observed: Observed, reference: Reference, deviations: Values) -> dict[str, Explanation]:
    """All explanations of a release by name.

    Args:
        observed: the release.
        reference: the source's moments, of the same statistics.
        deviations: (d,) 1 for deviations, 0 for means.
    """
    likelihood, widths = _Likelihood(observed, reference, deviations), (0.0, *_FREQUENCIES)
    still = likelihood.at(0.0, 1.0, 0.0, widths)
    moving = [likelihood.at(t, k, r, widths) for t, k, r in itertools.product(_MOVES, _DEVIATIONS, _ALONG)]
    return {
        AS_IT_IS: _averaged(still[:1]),
        FREQUENCIES: _averaged(still[1:]),
        CHANNELS: _averaged([one[0] for one in moving]),
        BOTH: _averaged([one for own in zip(*moving, strict=True) for one in own][len(moving) :]),
    }


def moved(observed: Observed, reference: Reference, deviations: Values, before: Mapping[str, float]) -> Values:
    """(d,) how far channels have moved: averaged over all explanations and that these channels are still.

    Args:
        observed: the release.
        reference: the source's moments, of the same statistics.
        deviations: (d,) 1 for deviations, 0 for means.
        before: nats that other releases tell of each explanation.
    """
    explanations = explained(observed, reference, deviations)
    still = {CHANNELS: AS_IT_IS, BOTH: FREQUENCIES}  # these channels, where others have moved
    nats = [before.get(name, -math.inf) + explanations[name].evidence for name in explanations]
    nats += [before.get(name, -math.inf) + explanations[other].evidence for name, other in still.items()]
    moves = [explanations[name].move for name in explanations] + [0.0 * observed.moved for _ in still]
    return np.asarray(special.softmax(nats) @ np.stack(moves))


def _positive(mean: Values, covariance: Values, shares: Values) -> tuple[float, Values]:
    """Log of the probability that frequencies are positive, and the mean of the law cut at zero.

    One class after the other, each by the moments of a normal law cut at zero (assumed density filtering, Minka 2001);
    of very many classes those nearest to zero.

    Args:
        mean: (C,) changes of frequencies, in roots of their frequencies in the source.
        covariance: (C, C) of the same.
        shares: (C,) frequencies in the source.
    """
    mean, covariance, log_mass = mean.copy(), covariance.copy(), 0.0
    nearest = (mean + np.sqrt(shares)) / np.sqrt(np.maximum(np.diag(covariance), _TINY))
    for one in np.argsort(nearest)[:_MOST_CUT]:
        deviation = math.sqrt(max(covariance[one, one], _TINY))
        at = (mean[one] + math.sqrt(shares[one])) / deviation
        log_chance = float(special.log_ndtr(at))
        pull = math.exp(-0.5 * at * at - log_chance) / math.sqrt(2.0 * math.pi)
        with_it = covariance[:, one] / deviation
        mean += pull * with_it
        covariance -= pull * (at + pull) * np.outer(with_it, with_it)
        log_mass += log_chance
    return log_mass, mean


class _Likelihood:
    """The marginal likelihood at given widths, and the posterior mean of the channels' moves."""

    def __init__(self, observed: Observed, reference: Reference, deviations: Values) -> None:
        self._y, self._own, self._deviations = observed.moved, reference.own, deviations
        self._by = 1.0 / observed.records + 1.0 / reference.records  # of a mean, in units of a record's variance
        self._base = self._by * reference.own + observed.noise**2
        self._shares, self._roots = reference.shares, np.sqrt(reference.shares)
        self._rank, roots = reference.along.shape[1], self._roots
        self._directions = np.concatenate([reference.along, (reference.classes * roots[:, None]).T], axis=1)
        flat = np.eye(len(roots)) - np.outer(roots, roots)
        self._positive = {w: _positive(0.0 * roots, w**2 * flat, reference.shares)[0] for w in _FREQUENCIES}

    def at(self, t: float, k: float, r: float, frequencies: Sequence[float]) -> list[Explanation]:
        """See the file; for each width w of frequencies."""
        free = (t * np.where(self._deviations > 0.0, k, 1.0)) ** 2 + r**2 * self._own
        rank, diagonal = self._rank, self._base + free
        directions, y, noise = (torch.from_numpy(each) for each in (self._directions, self._y, diagonal))
        model = LinearModel(directions, y, (rank, len(self._shares)), noise=noise)
        explanations = []
        for w in frequencies:
            law = model.under((math.sqrt(self._by + r**2), w))
            evidence, coefficients = float(law.log_evidence), law.mean.numpy()
            evidence -= 0.5 * len(y) * math.log(2.0 * math.pi)
            after = self._shares
            if w:
                covariance = law.covariance.numpy()[:, rank:]
                more, changes = self._cut(coefficients[rank:], covariance[rank:], w)
                evidence += more
                away = linalg.solve(covariance[rank:], changes - coefficients[rank:], assume_a="pos")
                coefficients = coefficients + covariance @ away
                after = np.maximum(after + np.sqrt(after) * changes, 0.0)
            rest = (self._y - self._directions @ coefficients) / diagonal
            along = self._directions[:, :rank] @ (coefficients[:rank] * (r**2 / (self._by + r**2)))
            explanations.append(Explanation(evidence, free * rest + along, after))
        return explanations

    def _cut(self, mean: Values, covariance: Values, w: float) -> tuple[float, Values]:
        """Nats of that frequencies add up to 1 and none is negative, and the changes' mean under that."""
        summed = covariance @ self._roots
        total = float(self._roots @ summed)
        mean = mean - summed * (self._roots @ mean) / total
        after, changes = _positive(mean, covariance - np.outer(summed, summed) / total, self._shares)
        return after - self._positive[w], changes


def _averaged(grid: list[Explanation]) -> Explanation:
    """Over widths that are equally probable beforehand."""
    evidences = np.array([one.evidence for one in grid])
    weights = special.softmax(evidences)
    return Explanation(
        float(special.logsumexp(evidences)) - math.log(len(grid)),
        weights @ np.stack([one.move for one in grid]),
        weights @ np.stack([one.frequencies for one in grid]),
    )
