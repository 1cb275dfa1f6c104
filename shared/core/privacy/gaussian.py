"""What Gaussian releases lose together: the profile of N(m, 1) against N(0, 1), m^2 the sum of their squared shifts.

It is exact (Dong, Roth and Su 2019), also for releases that are chosen one after the other
(docs/privacy/filter-and-composition.md, the Gaussian lane).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import log_ndtr

from dpswd.shared.core.privacy.budget import MAX_EPSILON

_SMALLEST = 1e-305  # deltas below it are not told from 0: their lane is closed
_INEXACT = 1e-5  # by which a squared shift is rounded down: more than float64 errs at epsilon 1e-6, delta 1e-300


def delta(epsilon: float, shift: float) -> float:
    """Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m), m > 0 the root of the squared shift."""
    m = math.sqrt(shift)
    gained, lost = float(log_ndtr(m / 2.0 - epsilon / m)), epsilon + float(log_ndtr(-m / 2.0 - epsilon / m))
    return 0.0 if gained == -math.inf else math.exp(gained) * -math.expm1(lost - gained)


def largest_shift(epsilon: float, most: float) -> float:
    """The largest squared shift whose delta is at most this, rounded down; ``-inf`` where the lane is closed."""
    if most < _SMALLEST:
        return -math.inf
    high = 16.0 * (epsilon + 40.0)  # m = 4 sqrt(epsilon + 40) loses more, but for a delta above 1/2
    return (1.0 - _INEXACT) * _last(high, lambda shift: delta(epsilon, shift) <= most)[0]


def epsilon(shift: float, most: float) -> float:
    """The smallest epsilon at which a squared shift has at most this delta; ``inf`` beyond `MAX_EPSILON`."""
    high = 2.0 * MAX_EPSILON
    if shift == 0.0 or most < _SMALLEST or delta(high, shift) > most:
        return 0.0 if shift == 0.0 else math.inf
    return _last(high, lambda value: delta(value, shift) > most)[1]


def _last(high: float, holds: Callable[[float], bool]) -> tuple[float, float]:
    """Neighbours from 0 to `high`, where something no longer holds: the last where it does, the first where not."""
    low = 0.0
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
