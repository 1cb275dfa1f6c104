"""Delta of a committed run at a given epsilon: the other way to read the profile that the accountant inverts.

The product asks for epsilon at a delta only (`dpswd.shared.accounting.pld`, `dpswd.shared.accounting.profile`); the
audit's bounds on the noise, and the accountant's tests, ask for delta. Rounded up at each approximation, like what it
reads.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpswd.shared.accounting import pld, profile
from dpswd.shared.accounting.convolution import TiltedPower
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.curves import ShiftLaw
from dpswd.shared.core.privacy.events import StepEvent

_PASSES = 8
"""Most guesses of delta's order of magnitude; two or three are usual, and each gives a valid bound."""


def run_delta(step: StepEvent, steps: int, epsilon: float) -> float:
    """Smallest delta that the accountant's distribution certifies for a committed run.

    Args:
        step: the step.
        steps: T, from 1 to `pld.MAX_STEPS`.
        epsilon: in nats, from 0 to `pld.MAX_EPSILON`.

    Returns:
        An upper bound of the run's delta at ``epsilon``, at most 1.

    Raises:
        InvalidValue: a parameter is out of range.
    """
    pld._check(steps)
    if not 0.0 <= epsilon <= pld.MAX_EPSILON:
        raise InvalidValue(f"epsilon is {epsilon!r}; it must be from 0 to {pld.MAX_EPSILON:g}")
    law, gamma = step.shift(), step.sampling_ratio
    combined = pld._full_batch(law, gamma, steps)
    if combined is not None:
        return release_delta(combined, epsilon)
    value, target = 1.0, 1e-12
    for _ in range(_PASSES):  # the tails are resolved in units of the answer, which is not known yet
        plan = pld._plan(law, gamma, steps, target)
        if plan is None:
            return 0.0
        if steps == 1:
            value = float(plan.pair.profile(np.array([epsilon]))[0])
        else:
            best = int(np.argmin(steps * plan.log_mgf - plan.tilts * epsilon))  # the best tilt for the profile there
            power, log_lost = pld._compose(replace(plan, tilt=float(plan.tilts[best]), estimate=epsilon))
            value = min(value, _at(power, epsilon) + math.exp(log_lost))
        if 1e-2 * target <= value <= 1e2 * target or value <= pld.MIN_DELTA:
            break
        target = value if value > target else max(pld.MIN_DELTA, target * target)
    return max(value, pld.MIN_DELTA)


def release_delta(law: ShiftLaw, epsilon: float) -> float:
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
        value = profile._at(profile._pair(law, tail), epsilon)
        if law.is_constant or value > math.exp(tail + 16.0) or tail < -470.0:
            return max(value, 0.0 if law.largest == 0.0 else profile.MIN_DELTA)
        tail -= 120.0


def _at(power: TiltedPower, x: float) -> float:
    """The finite part of delta at x."""
    log_d, log_b = power.log_hockey_stick()
    i = min(max(math.ceil(x / power.step) - power.low, 0), log_d.size - 1)
    back = max(0.0, power.step * (power.low + i) - x)
    return min(1.0, math.exp(min(log_d[i], 0.0)) - math.expm1(-back) * math.exp(min(log_b[i], 0.0)))
