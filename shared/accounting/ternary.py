"""T2: the second moment of three pairwise neighbouring releases, which decides amplification at small charges.

    T2 = sup E_{q0} ((p - q) / q0)^2,      p, q, q0 releases from tuples that differ in one row, pairwise neighbours.

For Gaussian releases with means mu_p, mu_q, mu_0 in units of the noise, A = |mu_p - mu_0|^2, B = |mu_q - mu_0|^2,
c = |mu_p - mu_q|^2, the inner moment is f = e^A + e^B - 2 e^{(A + B - c)/2}. The proofs of the bounds used here stand
in docs/privacy/amplification.md; S is the law of the squared shift and m(theta) = E exp(theta S):

* linear shifts (rows without a grid):   T2 <= m(1) - 1, using that the rows lie in the ball of radius 1/2
* any shifts, such as sorted ones:        + (sqrt 5 - 1) E (e^{S/2} - 1)^2
* rows on a grid:                         + 4 sqrt(E (W - l)^2 E (W - 1)^2), W = e^{S/2}, l its lowest value
* then a gradient or a sum of squared sensitivity D^2 that may depend on everything before it, w = e^{D^2/2}, M = m(1):
                                          T2' <= w T2 + 2 w (w-1) M + 2 (w-1) sqrt(t (M - t/2)), t = min(T2, M)
* always:                                 T2 <= 4 (M_2 - 1) and T2 <= 2 M_2
"""

from __future__ import annotations

import functools
import math

import numpy as np

from dpswd.shared.core.privacy.curves import ShiftLaw
from dpswd.shared.core.privacy.events import QuantileCoefficients, StepEvent, fixed_shift

_LARGE = 300.0
"""Above exp(300) for M_2 the trivial bound 2 M_2 loses nothing."""

_ROUNDING = 1e-12
"""Relative margin for the cancellations between nearly equal exponentials."""


def log_second_moment(step: StepEvent) -> float:
    """Upper bound on log T2 of a step, -inf if the step's shift is 0."""
    law = step.shift()
    log_m2, _ = _log_mgf(law)
    if log_m2 > _LARGE:
        return math.log(2.0) + log_m2
    sliced = step.sliced_shift()
    t2, m2 = (0.0, 1.0) if step.sliced_part is None else (_sliced(step, sliced), math.exp(_log_mgf(sliced)[0]))
    for part in step.fixed_parts:
        t2, m2 = _then_gaussian(t2, m2, fixed_shift(part))
    t2 = min(t2, 4.0 * math.expm1(log_m2), 2.0 * math.exp(log_m2)) * (1.0 + _ROUNDING)
    return math.log(t2) if t2 > 0.0 else -math.inf


@functools.lru_cache(maxsize=8)
def _log_mgf(law: ShiftLaw) -> tuple[float, float]:
    """Log m(1) and log m(1/2)."""
    full, half = law.log_mgf(np.array([1.0, 0.5])).tolist()
    return full, half


def _sliced(step: StepEvent, law: ShiftLaw) -> float:
    """T2 of the sliced part alone."""
    log_full, log_half = _log_mgf(law)
    pairwise = 2.0 * (math.expm1(log_full) - math.expm1(law.mean / 2.0))
    if law.is_constant and not (_rows_add_up(step) and law.constant == 0.0):
        return pairwise  # S is one number: f is largest at A = B = c = S, whatever the shifts
    # In the ball; a grid's constant G leaves e^{G/2} [2 (e^{G/2} - 1) m + m - 1] with m = E exp(S - G).
    half, free = math.expm1(law.constant / 2.0), log_full - law.constant
    linear = min(pairwise, (1.0 + half) * (2.0 * half * math.exp(free) + math.expm1(free)))
    # E (e^{S/2} - 1)^2; the margin covers the cancellation of the three terms.
    spread = max(0.0, math.expm1(log_full) - 2.0 * math.expm1(log_half)) + 1e-15 * math.expm1(log_full)
    excess = (math.sqrt(5.0) - 1.0) * spread
    if _rows_add_up(step):  # 0 without a grid
        excess = min(excess, 4.0 * math.sqrt(_rounding_gap(law) * spread))
    return linear + excess


def _rounding_gap(law: ShiftLaw) -> float:
    """E (W - l)^2 for rows on a grid: W = e^{S/2}, l = e^{S'/2}, S' a lower bound on the true squared shift.

    S = (1+t) h + (1+1/t) r and S' = (1-t) h - (1/t - 1) r, with h the unrounded shift and r the grid's share; t is
    recovered from the law: (1+t)/t r = constant and t^2 = r / E h.
    """
    if law.constant == 0.0:
        return 0.0  # no grid: the shifts are linear
    # E S = (1+t) m + (1+1/t) r with r = t^2 m, m = E h: constant = t (1+t) m, scaled mean = (1+t) m.
    t = law.constant / (law.mean - law.constant)
    if t >= 1.0:
        return math.inf
    r = law.constant * t / (1.0 + t)
    full = float(law.log_mgf(1.0))
    free = type(law)(law.feature_dimension, law.directions, law.scale / (1.0 + t))
    low = float(free.log_mgf(1.0 - t)) - (1.0 / t - 1.0) * r
    middle = float(free.log_mgf(1.0)) + r
    return max(0.0, math.expm1(full) - 2.0 * math.expm1(middle) + math.expm1(low)) + 1e-15 * math.expm1(full)


def _then_gaussian(t2: float, m2: float, squared_shift: float) -> tuple[float, float]:
    """T2 and M_2 after a Gaussian part of squared shift D^2 that may depend on the earlier outputs."""
    grown = math.expm1(squared_shift / 2.0)  # w - 1
    w = 1.0 + grown
    t = min(t2, m2)
    joint = w * t2 + 2.0 * w * grown * m2 + 2.0 * grown * math.sqrt(max(0.0, t * (m2 - t / 2.0)))
    return joint, m2 * w * w


def _rows_add_up(step: StepEvent) -> bool:
    """Whether the sliced part's shifts of three pairwise neighbours add up linearly (no sorting)."""
    return not isinstance(step.sliced_part, QuantileCoefficients)
