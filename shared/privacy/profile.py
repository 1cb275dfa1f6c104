"""The exact privacy profile of one full-batch release (gamma = 1).

U is public and independent of the data, so the profile of the pair (U, release) is the average over U of the
Gaussian mechanism's (docs/privacy, 2):

    delta(eps) = E_S[ Phi(s/2 - eps/s) - e^eps Phi(-s/2 - eps/s) ],   s = sqrt(S).

The law of S is discretised as slice_law.py describes, so that the answer is above the exact value by about one part
in 10,000 and never below. T full-batch releases are one release with k T directions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import InvalidValue
from shared.privacy.curves import ShiftLaw
from shared.privacy.discretisation import StepPair
from shared.privacy.slice_law import shift_nodes, with_largest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

MIN_DELTA = 1e-200
"""Smallest delta, see pld.MIN_DELTA."""


def delta(law: ShiftLaw, epsilon: float) -> float:
    """Delta of one full-batch release at epsilon >= 0, rounded up.

    Args:
        law: the law of the squared shift.
        epsilon: in nats, finite.

    Raises:
        InvalidValue: epsilon is negative or not finite.
    """
    if not (epsilon >= 0.0 and math.isfinite(epsilon)):
        raise InvalidValue(f"epsilon is {epsilon!r}; it must be finite and at least 0")
    tail = -60.0
    while True:
        value = _at(_pair(law, tail), epsilon)
        if law.is_constant or value > math.exp(tail + 16.0) or tail < -470.0:
            return max(value, 0.0 if law.largest == 0.0 else MIN_DELTA)
        tail -= 120.0


def epsilon(law: ShiftLaw, delta: float) -> float:
    """Smallest epsilon of one full-batch release at ``delta``, rounded up.

    Args:
        law: the law of the squared shift.
        delta: from MIN_DELTA to below 1.

    Raises:
        InvalidValue: delta is out of range.
    """
    if not MIN_DELTA <= delta < 1.0:
        raise InvalidValue(f"delta is {delta!r}; it must be from {MIN_DELTA:g} to below 1")
    pair = _pair(law, math.log(delta) - 16.0)
    if _at(pair, 0.0) <= delta:
        return 0.0
    # A Gaussian's loss is below S/2 + s sqrt(2 log(1/delta)) but for delta; S is rarely far from its mean.
    high = 0.5 * law.mean + math.sqrt(-2.0 * law.mean * math.log(delta))
    high_gap = _gap(pair, high, delta)
    low, low_gap = 0.0, math.inf
    while high_gap > 0.0:
        low, low_gap, high = high, high_gap, 2.0 * high
        high_gap = _gap(pair, high, delta)
    while low == 0.0 and high > 1e-12:
        if (middle_gap := _gap(pair, 0.5 * high, delta)) > 0.0:
            low, low_gap = 0.5 * high, middle_gap
        else:
            high, high_gap = 0.5 * high, middle_gap
    return _smallest(pair, delta, (low, low_gap), (high, high_gap))


def gaussian_epsilon(noise_multipliers: ArrayLike, delta: float) -> float:
    """Smallest epsilon of any number of full-batch Gaussian releases together, rounded up.

    Gaussian releases compose to one whose squared shift is the sum of theirs (Dong, Roth, Su 2019, Corollary 3.3).

    Args:
        noise_multipliers: standard deviations of the noise in units of the L2 sensitivity, one for each release.
        delta: from MIN_DELTA to below 1.

    Raises:
        InvalidValue: there is no release, a multiplier is not finite and positive, or delta is out of range.
    """
    sigma = np.asarray(noise_multipliers, dtype=np.float64).ravel()
    if sigma.size == 0 or not np.all(np.isfinite(sigma) & (sigma > 0.0)):
        raise InvalidValue("noise_multipliers must be at least one number, all of them finite and above 0")
    with np.errstate(over="ignore", divide="ignore"):
        square = math.fsum((1.0 / sigma**2).tolist()) * (1.0 + 1e-15)
    if not math.isfinite(square):
        raise InvalidValue("the noise is too small for a finite answer; use noise multipliers above 1e-150")
    return epsilon(ShiftLaw(1, 1, 0.0, square), delta)


def _gap(pair: StepPair, x: float, delta: float) -> float:
    value = _at(pair, x)
    return math.log(value / delta) if value > 0.0 else -math.inf


def _smallest(pair: StepPair, delta: float, left: tuple[float, float], right: tuple[float, float]) -> float:
    """The affordable end of a bracket of epsilon, shrunk by false position (Illinois) on log delta to 1e-13."""
    (low, low_gap), (high, high_gap) = left, right
    last = 0
    while high - low > 1e-13 * high:
        if math.isfinite(low_gap) and math.isfinite(high_gap) and high_gap < 0.0:
            at = low + (high - low) * low_gap / (low_gap - high_gap)
            edge = min(4e-14 * high, 0.25 * (high - low))  # stay off the ends, so that both close in
            at = min(max(at, low + edge), high - edge)
        else:
            at = 0.5 * (low + high)
        if not low < at < high:
            break
        value = _gap(pair, at, delta)
        side = 1 if value > 0.0 else -1
        if side > 0:
            low, low_gap = at, value
            high_gap *= 0.5 if last > 0 else 1.0
        else:
            high, high_gap = at, value
            low_gap *= 0.5 if last < 0 else 1.0
        last = side
    return high


def _pair(law: ShiftLaw, log_tail: float) -> StepPair:
    nodes = with_largest(shift_nodes(law, log_tail=log_tail), law)
    return StepPair(nodes.shifts, nodes.weights, 1.0)


def _at(pair: StepPair, x: float) -> float:
    return float(pair.profile(np.array([x]))[0])
