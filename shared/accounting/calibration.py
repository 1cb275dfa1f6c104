"""Epsilon of a committed run, and the noise that a target epsilon needs: two inverse functions.

``epsilon`` prices a run under a ``Bound``; ``auto`` is the smallest of the prices (HYB, C_gamma, PLD), and the
full batch is priced by its exact curve and profile. ``calibrate_sigma`` returns a sigma whose run costs at most the
target: it is rounded up, never down.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpswd.shared.accounting import c_gamma, pld
from dpswd.shared.accounting.amplification import LARGEST_ORDER, renyi_curve
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.accounting.conversion import affordable_end, epsilon_of
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.budget import check_delta
from dpswd.shared.core.privacy.events import MAX_SIGMA, MIN_SIGMA, RunEvent
from dpswd.shared.core.privacy.filter import WORTHLESS_EPSILON

MIN_EPSILON, MAX_EPSILON = 1e-6, 1e4
"""Targets between which calibration is meaningful; beyond them a run is free or worthless."""

WHOLE_SHARE = 0.9999
"""Part of delta at which ``auto`` sizes a run: a filter gives this much to a run that takes the whole budget, and keeps
the rest for what may come after the operator extends it (``lanes``). It raises epsilon by about one part in 100,000."""

_TOLERANCE = 1e-6
"""Relative width of the last bracket of sigma; its upper end is returned."""

_MARGIN = 1e-8
"""Relative distance of a calibrated run's epsilon below the target."""

_FIRST_ORDERS = (32, 128, LARGEST_ORDER)
"""Orders tried one after the other until the best one lies well inside."""

_INSIDE = 0.7

_C_GAMMA_ORDERS = np.concatenate([np.linspace(1.05, 3.95, 30), np.geomspace(4.0, LARGEST_ORDER, 60)])


def epsilon(run: RunEvent, delta: float, bound: Bound = Bound.AUTO) -> float:
    """Epsilon of a committed run at ``delta``, rounded up.

    Args:
        run: the run.
        delta: from 1e-300 to 0.5.
        bound: how to price it.

    Returns:
        The cost; ``inf`` where this bound certifies nothing.

    Raises:
        InvalidValue: delta is out of range.
    """
    check_delta(delta)
    if bound is Bound.AUTO:
        renyi = _price(run, delta, Bound.HYB)
        if renyi > WORTHLESS_EPSILON:
            return renyi
        distribution = pld_epsilon(run, delta)
        # The PLD is C_gamma's own composition and cheaper than its Renyi curve, which serves where the PLD refuses.
        return min(renyi, distribution if math.isfinite(distribution) else _price(run, delta, Bound.C_GAMMA))
    return _price(run, delta, bound)


def _price(run: RunEvent, delta: float, bound: Bound) -> float:
    if bound is Bound.PLD:
        return pld_epsilon(run, delta)
    if run.step.batch == run.step.records:
        # Nothing is sampled: every Renyi bound is the exact curve.
        orders, curve = renyi_curve(run.step, Bound.HYB)
        return epsilon_of(orders, run.steps * curve, delta)
    if bound is Bound.C_GAMMA:
        moments = c_gamma.log_moment(run.step.shift(), run.step.sampling_ratio, _C_GAMMA_ORDERS)
        return epsilon_of(_C_GAMMA_ORDERS, run.steps * moments / (_C_GAMMA_ORDERS - 1.0), delta)
    best = math.inf
    for largest in _FIRST_ORDERS:
        orders, curve = renyi_curve(run.step, bound, largest)
        inside = orders <= _INSIDE * largest
        low = epsilon_of(orders[inside], run.steps * curve[inside], delta)
        high = epsilon_of(orders, run.steps * curve, delta)
        best = min(best, high)
        if math.isfinite(best) and low <= high:
            break
    return best


def pld_epsilon(run: RunEvent, delta: float) -> float:
    """The PLD price, or inf where the PLD refuses (delta or steps beyond its range, too little noise)."""
    try:
        return pld.epsilon(run.step, run.steps, delta)
    except InvalidValue:
        return math.inf


def calibrate_sigma(
    make_run: Callable[[float], RunEvent], *, epsilon: float, delta: float, bound: Bound = Bound.AUTO
) -> float:
    """The smallest sigma, up to one part in a million and rounded up, whose run costs at most epsilon.

    Args:
        make_run: the run for a given sigma; its cost must not increase with sigma.
        epsilon: the target, from 1e-6 to 1e4.
        delta: from 1e-300 to 0.5.
        bound: how to price. ``auto`` leaves a ten-thousandth of delta unused, see ``WHOLE_SHARE``.

    Returns:
        sigma, absolute.

    Raises:
        InvalidValue: a target is out of range, or no sigma up to 1e12 reaches epsilon under this bound.
    """
    check_delta(delta)
    if isinstance(epsilon, bool) or not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise InvalidValue(f"epsilon is {epsilon!r}; it must be from {MIN_EPSILON:g} to {MAX_EPSILON:g}")
    if bound is not Bound.AUTO:
        return _solve(lambda sigma: _price(make_run(sigma), delta, bound), epsilon, _guess(make_run, epsilon, delta))
    delta *= WHOLE_SHARE
    solutions: list[float] = []
    guess = _guess(make_run, epsilon, delta)
    for single in (Bound.HYB, Bound.PLD, Bound.C_GAMMA):
        if single is Bound.C_GAMMA and solutions and math.isfinite(pld_epsilon(make_run(min(solutions)), delta)):
            continue  # the PLD composes the same pair more tightly

        def price(sigma: float, single: Bound = single) -> float:
            return _price(make_run(sigma), delta, single)

        # A bound that is above the target at the best sigma so far cannot improve on it.
        if solutions and price(min(solutions)) > epsilon:
            continue
        try:
            solutions.append(_solve(price, epsilon, min([*solutions, guess])))
        except InvalidValue:  # this bound never reaches the target
            continue
    if not solutions:
        least = min(_price(make_run(MAX_SIGMA), delta, single) for single in (Bound.HYB, Bound.PLD, Bound.C_GAMMA))
        raise _unreachable(epsilon, least)
    return min(solutions)


def _guess(make_run: Callable[[float], RunEvent], target: float, delta: float) -> float:
    """A rough sigma from the central limit: mu^2 = T gamma^2 (e^S - 1), epsilon = mu sqrt(2 log 1/delta) + mu^2/2."""
    run = make_run(1.0)
    shift = run.step.shift().mean
    spread = math.sqrt(2.0 * math.log(1.0 / delta))
    mu = math.sqrt(spread * spread + 2.0 * target) - spread
    per_step = math.log1p(mu * mu / (run.steps * run.step.sampling_ratio**2))
    return min(max(math.sqrt(shift / per_step), 1e-6), 1e9) if per_step > 0.0 and shift > 0.0 else 1.0


def _solve(price: Callable[[float], float], target: float, guess: float) -> float:
    """Bracket and false position (Illinois) on log epsilon against log sigma; the affordable end of the bracket."""
    # A filter adds the same numbers in another order; this much is left so that it admits what was sized here.
    target *= 1.0 - _MARGIN

    def gap(log_sigma: float) -> float:
        value = price(math.exp(log_sigma))
        return math.log(max(value, 1e-300) / target) if value < math.inf else math.inf

    least, most = math.log(MIN_SIGMA), math.log(MAX_SIGMA)
    at = min(max(math.log(guess), least), most)
    value, stride = gap(at), 0.15
    upwards = value > 0.0  # too little noise
    while True:
        before = at, value
        at = min(at + stride, most) if upwards else max(at - stride, least)
        value, stride = gap(at), 2.0 * stride
        if (value > 0.0) != upwards:
            break
        if upwards and at >= most:
            raise _unreachable(target, target * math.exp(value))
        if not upwards and at <= least:  # affordable even with the least noise that can be described
            return math.exp(at)
    left, right = sorted((before, (at, value)))
    return math.exp(affordable_end(gap, left, right, absolute=_TOLERANCE))


def _unreachable(target: float, least: float) -> InvalidValue:
    return InvalidValue(
        f"no sigma up to {MAX_SIGMA:g} reaches epsilon {target:g}: with that much noise the run costs {least:.4g}; ask "
        "for more than that or for a larger delta, or, of many steps, for fewer or for a smaller batch"
    )
