"""Privacy loss distributions of committed runs: T equal subsampled steps, composed by FFT.

Symbols: gamma = b/n, S the law of the squared shift (curves.ShiftLaw), T steps. The step's dominating pair is the
mixture over S of the symmetric C_gamma pairs (discretisation.py); the pair and its composition are symmetric, so one
direction is both. Every approximation rounds towards more privacy loss: the law of H (slice_law.py), the loss
(discretisation.py), the convolution (convolution.py), what is cut off (charged to delta here). Proof and error
budget: docs/privacy/pld.md.

With gamma = 1 a run of T steps is one release whose H is the sum of k T Beta variables: profile.py, no composition.
A value of epsilon returned here is an upper bound; a run that cannot be priced is refused by InvalidValue,
and the caller falls back to the Renyi bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.accounting import profile
from dpswd.shared.accounting.convolution import LatticeMeasure, TiltedPower, tilted_power
from dpswd.shared.accounting.discretisation import StepLoss, StepPair
from dpswd.shared.accounting.slice_law import shift_nodes, with_largest
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.curves import MAX_DIRECTIONS, ShiftLaw
from dpswd.shared.core.privacy.events import StepEvent

MIN_DELTA = 1e-200
"""Smallest delta: its parts (a millionth of it, over T steps) must still be ordinary floating-point numbers."""

MAX_STEPS = 10_000_000
"""Largest T; beyond it the charges for rounding, proportional to T, would no longer be negligible."""

MAX_EPSILON = 1e4
"""A run whose epsilon is larger than this has no privacy worth computing."""

_CUT = 1e-7
"""Part of delta that each truncation may take."""

_SPREAD = 3e-5
"""Wanted relative growth of the step's variance through the lattice."""

_TAIL_SPACING = 0.015
"""Relative spacing of the single step's grid far from 0: a relative growth of 4e-5 of the second moment there."""

_TILT_SPACING = 0.3
"""Largest product of tilt and spacing: beyond it a cell's ends differ by more than a third in tilted mass."""

_MIN_POINTS, _MAX_POINTS = 2**13, 2**21
"""Points of a window; the largest takes about 0.4 s and 150 MB."""

_WINDOW = 10.0
"""Tilted standard deviations below the tilted mean; what lies lower wraps, and wrapping rounds up."""


def epsilon(step: StepEvent, steps: int, delta: float) -> float:
    """Smallest epsilon that this accountant certifies for a committed run.

    Args:
        step: the step, released ``steps`` times with fresh samples, directions and noise.
        steps: T, from 1 to MAX_STEPS.
        delta: from MIN_DELTA to below 1.

    Returns:
        An upper bound of the run's epsilon at ``delta``, in nats.

    Raises:
        InvalidValue: a parameter is out of range, or the noise is too small for a finite answer.
    """
    _check(steps)
    if not MIN_DELTA <= delta < 1.0:
        raise InvalidValue(f"delta is {delta!r}; it must be from {MIN_DELTA:g} to below 1 (use a Renyi bound below)")
    law, gamma = step.shift(), step.sampling_ratio
    combined = _full_batch(law, gamma, steps)
    if combined is not None:
        return profile.epsilon(combined, delta)
    plan = _plan(law, gamma, steps, delta)
    if plan is None:
        return 0.0
    if steps == 1:
        return _round_up(plan.single_epsilon(delta))
    if plan.estimate > MAX_EPSILON:
        raise InvalidValue(
            f"sigma is too small: epsilon would be about {plan.estimate:.3g}, above {MAX_EPSILON:g}; "
            "use more noise, a smaller batch or fewer steps, or a Renyi bound"
        )
    power, log_lost = _compose(plan)
    return _round_up(_solve(power, delta - math.exp(log_lost)))


def _check(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise InvalidValue(f"steps is {steps!r}; it must be a whole number from 1 to {MAX_STEPS} (use a Renyi bound)")


def _full_batch(law: ShiftLaw, gamma: float, steps: int) -> ShiftLaw | None:
    """The one release that T full-batch releases amount to, or None: the squared shifts add up."""
    if gamma < 1.0:
        return None
    if law.is_constant:
        return ShiftLaw(1, 1, 0.0, law.largest * steps)
    if law.directions * steps > MAX_DIRECTIONS:
        return None
    return ShiftLaw(law.feature_dimension, law.directions * steps, law.scale, law.constant * steps)


@dataclass(frozen=True)
class _Plan:
    """How a run will be composed: tilt, window and tails, from a coarse but valid loss of one step.

    Attributes:
        pair: the step's dominating pair.
        steps: T.
        target: the delta whose tails must be resolved.
        largest_loss: above which one step has probability below a fraction of target / T.
        coarse: loss of one step on a geometric grid.
        tilts: candidate tilts, increasing, shape (q,).
        log_mgf: K of the coarse loss at the tilts, shape (q,).
        tilt: the tilt in use.
        estimate: about the run's epsilon.
    """

    pair: StepPair
    steps: int
    target: float
    largest_loss: float
    coarse: StepLoss
    tilts: NDArray[np.float64]
    log_mgf: NDArray[np.float64]
    tilt: float
    estimate: float

    def single_epsilon(self, delta: float) -> float:
        """Solves profile(x) = delta for one step by bisection; the upper end is returned."""
        low, high = 0.0, self.largest_loss
        if self.pair.profile(np.array([0.0]))[0] <= delta:
            return 0.0
        for _ in range(80):
            middle = 0.5 * (low + high)
            if self.pair.profile(np.array([middle]))[0] <= delta:
                high = middle
            else:
                low = middle
        return high


def _plan(law: ShiftLaw, gamma: float, steps: int, target: float) -> _Plan | None:
    """Chooses tails, tilt and window. None where the release tells nothing (S = 0)."""
    tail = _CUT * target / steps
    nodes = with_largest(shift_nodes(law, log_tail=math.log(tail)), law)
    if nodes.shifts.size == 0:
        return None
    pair = StepPair(nodes.shifts, nodes.weights, gamma)
    largest = _loss_quantile(pair, tail)
    smallest = 1e-2 * _loss_quantile(pair, 0.25 * pair.survival(0.0))
    count = math.ceil(math.log(largest / smallest) / 0.04) + 2
    coarse = pair.loss(np.geomspace(smallest, largest, max(count, 16)))
    nats = -math.log(target)
    tilts = np.geomspace(1e-2 * nats / (largest * steps), 700.0 / smallest * 1e-2, 240)
    tilts = tilts[tilts * largest < 650.0]
    log_mgf = coarse.log_mgf(tilts)
    bound = (steps * log_mgf + nats) / tilts
    best = int(np.argmin(bound))
    return _Plan(pair, steps, target, largest, coarse, tilts, log_mgf, float(tilts[best]), float(bound[best]))


def _loss_quantile(pair: StepPair, probability: float) -> float:
    """A loss x with P(X > x) <= probability for one step, within one part in a million."""
    low, high = 0.0, 1e-12
    while pair.survival(high) > probability:
        low, high = high, 4.0 * high
    while high - low > 1e-6 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if pair.survival(middle) > probability else (low, middle)
    return high


def _compose(plan: _Plan) -> tuple[TiltedPower, float]:
    """The T-fold convolution around the answer, and the log of the mass that is not in its window."""
    tilt, steps = plan.tilt, plan.steps
    mean, deviation = _tilted_moments(plan.coarse, tilt)
    mean, deviation = steps * mean, math.sqrt(steps) * deviation
    nats = -math.log(_CUT * plan.target)
    high = float(np.min((steps * plan.log_mgf + nats) / plan.tilts))
    low = min(mean - _WINDOW * deviation, plan.estimate - deviation)
    high = max(high, mean + 4.0 * deviation, plan.estimate + 4.0 * deviation)
    # A cell of width h adds h^2/6 to the variance on average; 2 K / (theta (theta + 1)) is the tilted second moment.
    log_mgf = float(plan.coarse.log_mgf(np.array([tilt]))[0])
    second_moment = max(2.0 * log_mgf / (tilt * (tilt + 1.0)), 1e-300)
    points = (high - low) / math.sqrt(6.0 * _SPREAD * second_moment)
    size = 1 << math.ceil(math.log2(min(max(points, _MIN_POINTS), _MAX_POINTS)))
    lattice = (high - low) / (size - 8)
    positions = _grid(min(plan.largest_loss, high + lattice) / lattice, cap=_TILT_SPACING / ((tilt + 1.0) * lattice))
    loss = plan.pair.loss(lattice * positions.astype(np.float64))
    with np.errstate(divide="ignore"):
        measure = LatticeMeasure(
            np.concatenate([-positions[::-1], [0], positions]),
            np.log(np.concatenate([loss.mirrored[::-1], [loss.at_zero], loss.masses])),
            lattice,
        )
    first = math.floor(low / lattice)
    power = tilted_power(measure, count=steps, tilt=tilt, low=first, size=size)
    above = measure.log_chernoff(steps, lattice * (first + size), _neighbouring(plan, high))
    at_infinity = math.log(max(steps * loss.at_infinity, 1e-300))
    return power, float(np.logaddexp(above, at_infinity)) + 1e-6 + 2e-11 * steps


def _neighbouring(plan: _Plan, x: float) -> NDArray[np.float64]:
    """The few tilts that are best for a Chernoff bound at x."""
    best = int(np.argmin(plan.steps * plan.log_mgf - plan.tilts * x))
    return plan.tilts[max(0, best - 1) : best + 2]


def _tilted_moments(loss: StepLoss, tilt: float) -> tuple[float, float]:
    """Mean and standard deviation of one step's loss under the tilted measure."""
    x = np.concatenate([-loss.x[::-1], [0.0], loss.x])
    masses = np.concatenate([loss.mirrored[::-1], [loss.at_zero], loss.masses])
    with np.errstate(divide="ignore"):
        exponents = np.log(masses) + tilt * x
    weights = np.exp(exponents - exponents.max())
    weights /= weights.sum()
    mean = float(weights @ x)
    return mean, math.sqrt(float(weights @ (x - mean) ** 2))


def _grid(last_position: float, *, cap: float) -> NDArray[np.int64]:
    """Positions 1, 2, 3, ... with spacing growing like _TAIL_SPACING of the position, at most cap, up to the last."""
    last = max(2, math.ceil(last_position))
    largest = max(1, math.floor(cap))
    linear = math.ceil(1.0 / _TAIL_SPACING)
    turn = min(last, max(linear, math.floor(largest / _TAIL_SPACING)))
    pieces = [np.arange(1, min(linear, last) + 1, dtype=np.float64)]
    if turn > linear:
        pieces.append(np.geomspace(linear, turn, math.ceil(math.log(turn / linear) / _TAIL_SPACING) + 2))
    if last > turn:
        pieces.append(np.append(np.arange(turn, last, largest, dtype=np.float64), last))
    return np.unique(np.floor(np.concatenate(pieces)).astype(np.int64))


def _solve(power: TiltedPower, budget: float) -> float:
    """Smallest epsilon >= 0 in the window whose delta is at most budget."""
    log_d, log_b = power.log_hockey_stick()
    if budget <= 0.0:
        raise InvalidValue("delta is used up by the truncation of this run; use a Renyi bound")
    over = np.flatnonzero(log_d > math.log(budget))
    if over.size == 0:
        return max(0.0, power.low * power.step)
    i = int(over[-1]) + 1
    if i >= log_d.size:
        raise InvalidValue("delta is smaller than the rounding error of this run's composition; use a Renyi bound")
    # delta(x_i - tau) = D_i + (1 - e^-tau) B_i = budget, 0 <= tau < step
    share = (budget - math.exp(log_d[i])) / math.exp(min(log_b[i], 0.0))
    back = -math.log1p(-share) if share < 1.0 else power.step
    return max(0.0, power.step * (power.low + i) - min(back, power.step))


def _round_up(value: float) -> float:
    """One part in 10^12 more, for the arithmetic after the last bound."""
    return value * (1.0 + 1e-12)
