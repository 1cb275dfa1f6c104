"""What runs let an attacker find out, in odds: from the whole curve of delta over epsilon, not from one point of it.

An attacker says of a release whether a certain person's record was in it. Every test of his lies below each line

    true positives <= delta(eps) + e^eps * false positives,        eps of either sign,

where delta(-eps) = 1 - e^-eps (1 - delta(eps)), for the pairs of this accountant are symmetric. So a curve that is
nowhere too low (`composed`, or what a budget promises) bounds the best attacker there can be. For a person with k
records the bound is applied k times, one after the other (Dong, Roth and Su 2022, Theorem 2.14).

`composed` convolves the privacy losses of all runs by FFT. It is of the runs as they stand, as if they had been chosen
before the first one; of teams that choose by earlier replies the filter's budget holds, `PrivacyCurve.promised`.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpswd.shared.accounting.discretisation import StepPair
from dpswd.shared.accounting.slice_law import shift_nodes, with_largest
from dpswd.shared.core.privacy.events import RunEvent, StepEvent

FALSE_POSITIVES = 0.001
"""At which true positives are told: one wrong accusation in a thousand."""

LARGEST_LOSS = 200.0
"""Nats beyond which nothing is told apart: the best attacker is right."""

_LEFT_OUT = 1e-11
"""Probability that each truncation may leave out; it is added to delta."""

_ROUNDING = 1e-8
"""Added to delta for the transforms' rounding: many times what 2^21 points and 10^6 steps can make."""

_SPREAD = 1e-4  # relative growth of the variance by the lattice that is put up with
_SPACING = 0.02  # relative spacing of one step's loss far from 0
_MIN_POINTS, _MAX_POINTS = 2**12, 2**21
_LINES = 2000


@dataclass(frozen=True)
class Odds:
    """The best attacker there can be, rounded up by what the curve is.

    Attributes:
        advantage: true less false positives of his best test: 0 is guessing, 1 is certainty.
        true_positives: share of the persons who were in that he finds, at `FALSE_POSITIVES`.
        records: of the person.
    """

    advantage: float
    true_positives: float
    records: int

    def posterior(self, prior: float) -> float:
        """How likely it is that a person whom he then accuses was in, where he held it for so likely before."""
        hits = prior * self.true_positives
        return hits / (hits + (1.0 - prior) * FALSE_POSITIVES)


@dataclass(frozen=True, eq=False)
class PrivacyCurve:
    """Upper bounds of delta.

    Attributes:
        epsilons: increasing, from 0 on, shape (n,).
        deltas: at them, shape (n,).
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    @classmethod
    def promised(cls, epsilon: float, delta: float) -> Self:
        """What (epsilon, delta) alone says, whatever is released and however it was chosen."""
        if epsilon > LARGEST_LOSS:
            return cls(np.zeros(1), np.ones(1))
        undecided = (math.expm1(epsilon) + 2.0 * delta) / (math.exp(epsilon) + 1.0)
        return cls(np.array([0.0, epsilon]), np.minimum([undecided, delta], 1.0))

    def true_positives(self, false_positives: float) -> float:
        """The most that any test reaches at so many false positives."""
        above = self.deltas + np.exp(self.epsilons) * false_positives
        below = 1.0 - np.exp(-self.epsilons) * (1.0 - self.deltas - false_positives)
        return min(1.0, float(above.min()), float(below.min()))

    def odds(self, *, records: int = 1) -> Odds:
        """What an attacker has of a person with so many records."""
        # A symmetric curve's best test errs as often on either side: half of the steps lead there from the middle.
        even = 0.5 if records % 2 == 0 else 0.5 * (1.0 + float(self.deltas[0]))
        for _ in range(records // 2):
            even = self.true_positives(even)
        rate = FALSE_POSITIVES
        for _ in range(records):
            rate = self.true_positives(rate)
        return Odds(min(1.0, 2.0 * even - 1.0), rate, records)


def composed(runs: Iterable[RunEvent]) -> PrivacyCurve:
    """The curve of all runs together, nowhere below the exact one."""
    steps = Counter[StepEvent]()
    for run in runs:
        steps[run.step] += run.steps
    return _composed(frozenset(steps.items()))


@functools.lru_cache(maxsize=16)
def _composed(steps: frozenset[tuple[StepEvent, int]]) -> PrivacyCurve:
    total = sum(count for _, count in steps)
    pairs = []
    for step, count in steps:
        law = step.shift()
        nodes = with_largest(shift_nodes(law, log_tail=math.log(_LEFT_OUT / total)), law)
        if nodes.shifts.size:
            pairs.append((StepPair(nodes.shifts, nodes.weights, step.sampling_ratio), count))
    if not pairs:
        return PrivacyCurve(np.zeros(1), np.zeros(1))
    ends = [_end(pair, _LEFT_OUT / total) for pair, _ in pairs]
    tilts = np.geomspace(1e-3, 600.0, 120) / max(ends)
    log_mgf, variance = np.zeros(tilts.size), 0.0
    for (pair, count), end in zip(pairs, ends, strict=True):
        loss = pair.loss(np.geomspace(1e-3 * end, end, 400))
        log_mgf += count * loss.log_mgf(tilts)
        variance += count * float(((loss.masses + loss.mirrored) * loss.x**2).sum())
    high = max(float(((log_mgf - math.log(_LEFT_OUT)) / tilts).min()), max(ends))
    if high > LARGEST_LOSS:
        return PrivacyCurve(np.zeros(1), np.ones(1))
    points = 2.0 * high / math.sqrt(6.0 * _SPREAD * variance / total)
    size = 1 << math.ceil(math.log2(min(max(points, _MIN_POINTS), _MAX_POINTS)))
    width = 2.0 * high / (size - 4)
    lost, spectrum = _LEFT_OUT, np.ones(size // 2 + 1, dtype=np.complex128)
    for (pair, count), end in zip(pairs, ends, strict=True):
        positions = _positions(math.ceil(end / width))
        loss = pair.loss(width * positions.astype(np.float64))
        masses = np.zeros(size)
        np.add.at(masses, positions, loss.masses)
        np.add.at(masses, -positions, loss.mirrored)
        masses[0] += loss.at_zero
        lost += count * loss.at_infinity
        spectrum *= fft.rfft(masses) ** count
    # What lies below the window comes up again at its end: more loss, never less.
    weights = np.maximum(fft.irfft(spectrum, n=size)[: size // 2], 0.0)
    x = width * np.arange(size // 2, dtype=np.float64)
    over, scaled = (np.cumsum(each[::-1])[::-1] for each in (weights, weights * np.exp(-x)))
    deltas = np.clip(over - np.exp(x) * scaled, 0.0, 1.0) + lost + _ROUNDING
    chosen = np.unique(np.round((size // 2 - 1) * np.linspace(0.0, 1.0, _LINES) ** 2).astype(np.int64))
    return PrivacyCurve(x[chosen], np.minimum(deltas[chosen], 1.0))


def _end(pair: StepPair, probability: float) -> float:
    """A loss that one step exceeds with at most this probability, at most twice the least."""
    end = 1e-9
    while pair.survival(end) > probability:
        end *= 2.0
    return end


def _positions(last: int) -> NDArray[np.int64]:
    """1, 2, 3 and on, further apart where they are large, up to the last."""
    linear = min(last, round(1.0 / _SPACING))
    spread = np.geomspace(linear, last, max(2, math.ceil(math.log(last / linear) / _SPACING) + 1))
    return np.unique(np.concatenate([np.arange(1, linear + 1), np.floor(spread).astype(np.int64), [last]]))
