"""What a noised release of layers' statistics says: three explanations, weighed by one marginal likelihood.

The release less the source's moments is Gaussian: both sides' sampling noise, the privacy noise, and what the
explanation adds. *As it is* adds nothing. *Class frequencies* add the source's class means times a change of
frequencies, N(0, w^2 p) each, cut to those that add up to 1 and are not negative: else they explain moves of channels.
*Channels* add a move of each channel, N(0, t^2) for means and N(0, (k t)^2) for deviations, and moves along the
directions in which the source's records differ, of covariance r^2 S. The widths w, t, k and r are averaged over a small
grid by the same likelihood (Berger 1985, Statistical Decision Theory and Bayesian Analysis, section 3.5).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import special

from dpswd.public_client.linear_evidence import LinearModel
from dpswd.public_client.normalisation.reference import Reference, Values

_MOVES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_DEVIATIONS = (0.3, 1.0, 3.0)
_ALONG = (0.0, 0.1, 0.3, 1.0, 3.0)
_MOST_CUT, _TINY = 32, 1e-12  # classes, of which the cut at zero is taken into account; of a variance
_LOGS, _SPREADS = np.linspace(-4.0, 4.0, 161), np.array((0.05, 0.1, 0.2, 0.4, 0.8))
FREQUENCY_WIDTHS = (0.1, 0.2, 0.4, 0.8)

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
        variance: (d,) of that, each channel's by itself.
        frequencies: (C,) posterior mean of the classes' frequencies, not negative.
    """

    evidence: float
    move: Values
    variance: Values
    frequencies: Values


def explained(observed: Observed, reference: Reference, deviations: Values) -> dict[str, Explanation]:
    """All explanations of a release by name; of its statistics, (d,) 1 for deviations, 0 for means."""
    likelihood, widths = _Likelihood(observed, reference, deviations), (0.0, *FREQUENCY_WIDTHS)
    still = likelihood.at(0.0, 1.0, 0.0, widths)
    moving = [likelihood.at(t, k, r, widths) for t, k, r in itertools.product(_MOVES, _DEVIATIONS, _ALONG)]
    channels = _averaged([one[0] for one in moving])
    both = _averaged([one for own in zip(*moving, strict=True) for one in own][len(moving) :])
    return {AS_IT_IS: _averaged(still[:1]), FREQUENCIES: _averaged(still[1:]), CHANNELS: channels, BOTH: both}


def moved(
    observed: Observed, reference: Reference, deviations: Values, before: Mapping[str, float]
) -> tuple[Values, Values, Values]:
    """(d,) how far channels have moved and the deviation of that, over all explanations and that they are still.

    Deviations are as of `explained`; before are nats that other releases tell of each explanation. And nats (2,) by
    which frequencies alone explain this one, and channels.
    """
    explanations, none = explained(observed, reference, deviations), 0.0 * observed.moved
    still = {CHANNELS: AS_IT_IS, BOTH: FREQUENCIES}  # these channels, where others have moved
    each = [replace(one, evidence=one.evidence + before.get(name, -math.inf)) for name, one in explanations.items()]
    each += [
        Explanation(explanations[other].evidence + before.get(name, -math.inf), none, none, reference.shares)
        for name, other in still.items()
    ]
    law = _averaged(each)
    nats = [explanations[name].evidence - explanations[AS_IT_IS].evidence for name in (FREQUENCIES, CHANNELS)]
    return law.move, np.sqrt(law.variance), np.maximum(nats, 0.0)


def log_variances(variances: Values, doubt: Values) -> tuple[Values, Values]:
    """Means (c,) and deviations (c,) of logarithms, of variances (c,) that were measured with these deviations (c,).

    What was measured is Gaussian about the variance itself; the logarithms are N(0, s^2) beforehand, by quadrature, and
    the width s is averaged by its likelihood, all channels together: a noised second moment may be negative.
    """
    fine = np.hypot(doubt, (_LOGS[1] - _LOGS[0]) * variances)  # no narrower than the quadrature's steps
    away = (variances[:, None] - np.exp(_LOGS)) / fine[:, None]
    before = -0.5 * (_LOGS / _SPREADS[:, None]) ** 2
    each = (before - special.logsumexp(before, axis=1, keepdims=True))[:, None] - 0.5 * away**2  # (S, c, K)
    of_width = special.softmax(special.logsumexp(each, axis=2).sum(axis=1))
    law = np.tensordot(of_width, special.softmax(each, axis=2), 1)  # (c, K)
    mean = law @ _LOGS
    return mean, np.sqrt(law @ _LOGS**2 - mean**2)


def _positive(mean: Values, covariance: Values, shares: Values) -> tuple[Values, Values]:
    """Logs (W,) of the probability that frequencies are positive, and means (W, C) of the law cut at zero.

    One class after the other by the moments of a normal law cut at zero (assumed density filtering, Minka 2001), of
    means (W, C) and covariances (W, C, C) of changes under some widths, in roots of the source's frequencies (C,).
    """
    mean, covariance, log_mass = mean.copy(), covariance.copy(), np.zeros(len(mean))
    every, roots = np.arange(len(mean)), np.sqrt(shares)
    nearest = (mean + roots) / np.sqrt(np.maximum(np.diagonal(covariance, axis1=1, axis2=2), _TINY))
    for one in np.argsort(nearest, axis=1).T[:_MOST_CUT]:
        deviation = np.sqrt(np.maximum(covariance[every, one, one], _TINY))
        at = (mean[every, one] + roots[one]) / deviation
        log_chance = special.log_ndtr(at)
        pull = np.exp(-0.5 * at * at - log_chance) / math.sqrt(2.0 * math.pi)
        with_it = covariance[every, :, one] / deviation[:, None]
        mean += pull[:, None] * with_it
        covariance -= (pull * (at + pull))[:, None, None] * with_it[:, :, None] * with_it[:, None, :]
        log_mass += log_chance
    return log_mass, mean


class Simplex:
    """Cuts laws of changes of frequencies to those that add up to 1 and are not negative.

    Args:
        shares: (C,) frequencies in the source; changes are in their roots.
    """

    def __init__(self, shares: Values) -> None:
        self._shares, self._roots, widths = shares, np.sqrt(shares), np.array(FREQUENCY_WIDTHS)
        flat = np.eye(len(shares)) - np.outer(self._roots, self._roots)
        masses, _ = _positive(np.zeros((len(widths), len(shares))), widths[:, None, None] ** 2 * flat, shares)
        self._before = dict(zip(FREQUENCY_WIDTHS, masses, strict=True))

    def cut(self, mean: Values, covariance: Values, at: slice, widths: Sequence[float]) -> tuple[Values, Values]:
        """Nats (W,) of that, and means (W, p) of all parameters under it.

        Args:
            mean: (W, p).
            covariance: (W, p, p).
            at: where the changes are.
            widths: (W,) of the changes' priors, of `FREQUENCY_WIDTHS`.
        """
        own, about = covariance[:, at, at], mean[:, at]
        summed = own @ self._roots
        total = (summed @ self._roots)[:, None]
        flat = about - summed * (about @ self._roots)[:, None] / total
        within = own - summed[:, :, None] * summed[:, None, :] / total[..., None]
        log_mass, changes = _positive(flat, within, self._shares)
        away = np.linalg.solve(own, (changes - about)[..., None])
        return log_mass - [self._before[w] for w in widths], mean + (covariance[:, :, at] @ away)[..., 0]


class _Likelihood:
    """The marginal likelihood at given widths, and the posterior mean of the channels' moves."""

    def __init__(self, observed: Observed, reference: Reference, deviations: Values) -> None:
        self._y, self._own, self._deviations = observed.moved, reference.own, deviations
        self._by = 1.0 / observed.records + 1.0 / reference.records  # of a mean, in units of a record's variance
        self._base = self._by * reference.own + observed.noise**2
        self._simplex, roots = Simplex(reference.shares), np.sqrt(reference.shares)
        self._shares, self._roots, self._rank = reference.shares, roots, reference.along.shape[1]
        self._directions = np.concatenate([reference.along, (reference.classes * roots[:, None]).T], axis=1)

    def at(self, t: float, k: float, r: float, frequencies: Sequence[float]) -> list[Explanation]:
        """See the file; for each width w of frequencies."""
        free = (t * np.where(self._deviations > 0.0, k, 1.0)) ** 2 + r**2 * self._own
        rank, diagonal = self._rank, self._base + free
        directions, y, noise = (torch.from_numpy(each) for each in (self._directions, self._y, diagonal))
        model = LinearModel(directions, y, (rank, len(self._shares)), noise=noise)
        law = model.under(torch.tensor([(math.sqrt(self._by + r**2), w) for w in frequencies], dtype=torch.float64))
        evidence = law.log_evidence.numpy()
        coefficients, after = law.mean.numpy(), np.tile(self._shares, (len(frequencies), 1))
        if (other := np.flatnonzero(frequencies)).size:
            cut = slice(rank, None), [w for w in frequencies if w]
            more, coefficients[other] = self._simplex.cut(coefficients[other], law.covariance.numpy()[other], *cut)
            evidence[other] += more
            after[other] = np.maximum(self._shares + self._roots * coefficients[other, rank:], 0.0)
        rest = (self._y - coefficients @ self._directions.T) / diagonal
        along = (r**2 / (self._by + r**2)) * coefficients[:, :rank] @ self._directions[:, :rank].T
        move, variance = free * rest + along, free * self._base / diagonal
        return [Explanation(float(e), m, variance, own) for e, m, own in zip(evidence, move, after, strict=True)]


def _averaged(grid: list[Explanation]) -> Explanation:
    """Over widths that are equally probable beforehand."""
    evidences = np.array([one.evidence for one in grid])
    weights, moves = special.softmax(evidences), np.stack([one.move for one in grid])
    evidence, move = float(special.logsumexp(evidences)) - math.log(len(grid)), weights @ moves
    variance = weights @ (np.stack([one.variance for one in grid]) + (moves - move) ** 2)
    return Explanation(evidence, move, variance, weights @ np.stack([one.frequencies for one in grid]))
