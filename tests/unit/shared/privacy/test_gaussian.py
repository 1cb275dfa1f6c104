"""The lane of Gaussian releases: its profile, what it admits, and that a client that adapts gains nothing by it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpswd.shared.accounting.pricing import PRICING, RenyiPricing, filter_for, filter_from_json
from dpswd.shared.core.errors import AccountantsDisagree, BudgetExhausted, InvalidValue
from dpswd.shared.core.privacy import gaussian
from dpswd.shared.core.privacy.budget import Price, PrivacyBudget
from dpswd.shared.core.privacy.events import BoundedSum, QuantileCoefficients, RowProjections, RunEvent, StepEvent
from dpswd.shared.core.privacy.filter import PrivacyFilter

DELTA = 1e-5
EXTREMES = [
    (1.049211682557326e-06, 5.914154968545813e-244),
    (0.1, 1e-5),
    (1.0, 1e-5),
    (1.0, 0.5),
    (1e-6, 1e-300),
    (1e-6, 1e-5),
    (1e4, 1e-300),
    (1e4, 0.5),
    (8.0, 1e-9),
]


def sums(sigma: float, steps: int = 1, *, batch: int = 500) -> RunEvent:
    return RunEvent(StepEvent(500, batch, (BoundedSum(7, 1.0, 7, sigma),)), steps)


def rows(sigma: float) -> RunEvent:
    return RunEvent(StepEvent(500, 500, (RowProjections(32, 10, sigma),)), 1)


def exactly(epsilon: float, shift: float) -> mpmath.mpf:
    """The profile with 60 digits."""
    with mpmath.workdps(60):
        m, e = mpmath.sqrt(mpmath.mpf(shift)), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize(("epsilon", "delta"), EXTREMES)
def test_a_limit_is_the_largest_shift_and_rounded_down(epsilon: float, delta: float) -> None:
    limit = gaussian.largest_shift(epsilon, delta)
    assert exactly(epsilon, limit) <= delta < exactly(epsilon, limit * (1.0 + 3e-5))
    assert gaussian.epsilon(limit, delta) == pytest.approx(epsilon, rel=1e-3)
    assert gaussian.epsilon(limit, delta) <= epsilon


@settings(max_examples=tried(200))
@given(st.floats(1e-6, 50.0), st.floats(-14.0, 3.0))
def test_the_profile_is_the_exact_one_and_grows_with_the_shift(epsilon: float, power: float) -> None:
    shift = 10.0**power
    true = exactly(epsilon, shift)
    assert gaussian.delta(epsilon, shift) == pytest.approx(float(true), rel=1e-4, abs=1e-300)
    assert gaussian.delta(epsilon, shift) <= gaussian.delta(epsilon, 1.01 * shift)


def test_a_sum_of_shifts_is_rounded_up_and_the_limit_itself_is_admitted() -> None:
    event = sums(23.7, 7)
    privacy = filter_for(PrivacyBudget(8.0, DELTA), plan=event)
    assert privacy.price(event).gaussian > 7 * event.step.gaussian_shift()
    spent, exact = privacy.zero(), Fraction(0)
    for _ in range(50):
        spent, exact = privacy.add(spent, privacy.price(event)), exact + Fraction(privacy.price(event).gaussian)
        assert Fraction(spent.gaussian) >= exact
    limit, nothing = privacy._largest_shift, (math.inf,) * len(privacy.orders)
    assert privacy.admit(privacy.zero(), Price(nothing, math.inf, 0.0, limit)).gaussian == limit
    with pytest.raises(BudgetExhausted):
        privacy.admit(privacy.zero(), Price(nothing, math.inf, 0.0, math.nextafter(limit, math.inf)))


def test_a_shift_that_float64_hardly_holds_loses_nothing() -> None:
    assert gaussian.delta(1e4, 1e-320) == 0.0


def test_a_lane_without_delta_is_closed() -> None:
    assert gaussian.largest_shift(1.0, 0.0) == gaussian.largest_shift(1.0, 1e-306) == -math.inf
    assert gaussian.epsilon(0.01, 0.0) == gaussian.epsilon(1e9, DELTA) == gaussian.epsilon(math.inf, DELTA) == math.inf
    assert gaussian.epsilon(0.0, 0.0) == 0.0


def policy_delta(epsilon: float, total: float, first: float, then: Callable[[np.ndarray], np.ndarray]) -> float:
    """The exact delta of two Gaussian releases, by quadrature: the second one's squared shift follows the first reply.

    Under the replaced record replies are N(m, 1); the second shift is m2(y1), of which the client may choose any.
    """
    m1 = math.sqrt(first)
    y = np.linspace(-12.0, 12.0 + m1, 20_001)
    loss = m1 * y - 0.5 * first
    left = np.minimum(then(y), total - first)
    m2 = np.sqrt(np.maximum(left, 1e-300))
    # E over the second reply of (e^(loss + its loss) - e^epsilon)_+ is a profile at a shifted epsilon.
    rest = epsilon - loss
    inner = np.exp(loss) * norm.cdf(m2 / 2 - rest / m2) - math.exp(epsilon) * norm.cdf(-m2 / 2 - rest / m2)
    stopped = np.maximum(np.exp(loss) - math.exp(epsilon), 0.0)
    return float(np.trapezoid(norm.pdf(y) * np.where(left > 1e-12, inner, stopped), y))


@settings(max_examples=tried(60))
@given(
    st.floats(0.2, 4.0),
    st.floats(0.01, 3.0),
    st.floats(0.01, 0.99),
    st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6),
    st.booleans(),
)
def test_no_choice_by_earlier_replies_loses_more_than_one_release_of_all(
    epsilon: float, total: float, part: float, shares: list[float], mirrored: bool
) -> None:
    """The theorem of docs/privacy/filter-and-composition.md, on policies that stop, go on, and spend all or nothing."""
    ends = np.linspace(-2.0, 3.0, 5)
    sign = -1.0 if mirrored else 1.0

    def then(y: np.ndarray) -> np.ndarray:
        return total * (1.0 - part) * np.asarray(shares)[np.searchsorted(ends, sign * y)]

    assert policy_delta(epsilon, total, part * total, then) <= gaussian.delta(epsilon, total) * (1.0 + 1e-6) + 1e-12
    whole = policy_delta(epsilon, total, part * total, lambda y: np.full_like(y, total))
    assert whole == pytest.approx(gaussian.delta(epsilon, total), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_small_runs_of_a_large_budget_cost_what_one_gaussian_release_does(epsilon: float) -> None:
    """Twenty runs fill the budget as one of all of them would; the Renyi lanes alone allow 17 or 18."""
    whole = gaussian.largest_shift(epsilon, 0.25 * DELTA)
    event = sums(math.sqrt(20.001 / whole))
    privacy = filter_for(PrivacyBudget(epsilon, DELTA), plan=event)
    assert privacy.gaussian_share == 0.25
    spent = privacy.zero()
    for _ in range(20):
        spent = privacy.admit(spent, privacy.price(event))
    assert 0.999 * epsilon < privacy.epsilon(spent) <= epsilon
    with pytest.raises(BudgetExhausted):
        privacy.admit(spent, privacy.price(event))
    assert privacy.fits(privacy.zero(), event) == 20
    closed = replace(privacy, gaussian_share=0.0)
    assert closed.fits(closed.zero(), event) < 19
    assert filter_from_json(privacy.to_json()) == privacy


@pytest.mark.parametrize("other", [rows(200.0), sums(200.0, batch=50)])
def test_a_run_that_is_not_gaussian_closes_the_lane_for_ever(other: RunEvent) -> None:
    privacy = filter_for(PrivacyBudget(1.0, DELTA), plan=sums(20.0))
    spent = privacy.admit(privacy.zero(), privacy.price(sums(20.0)))
    assert math.isfinite(spent.gaussian)
    after = privacy.admit(spent, privacy.price(other))
    assert after.gaussian == privacy.admit(after, privacy.price(sums(20.0))).gaussian == math.inf
    assert privacy.epsilon(after) > privacy.epsilon(spent)
    assert filter_for(PrivacyBudget(1.0, DELTA), plan=other).gaussian_share == 0.0


@pytest.mark.parametrize("coefficients", [1, 2, 50, 100])
def test_directions_are_not_gaussian_in_one_dimension_either(coefficients: int) -> None:
    event = RunEvent(StepEvent(100, 100, (QuantileCoefficients(1, 4, coefficients, 5.0),)), 1)
    privacy = filter_for(PrivacyBudget(8.0, DELTA), plan=event)
    price = privacy.price(event)
    assert price.gaussian == math.inf
    privacy.hold(event, price)


def test_one_step_that_is_dearer_than_two_hides_no_longer_run() -> None:
    event = RunEvent(StepEvent(60_000, 600, (RowProjections(64, 20, 20.0),)), 1000)
    privacy = filter_for(PrivacyBudget(0.1, 1e-9), plan=event)
    assert privacy.alone(privacy.price(replace(event, steps=1))) > 0.1
    steps = privacy.fits(privacy.zero(), event)
    assert steps > 4000
    privacy.admit(privacy.zero(), privacy.price(replace(event, steps=steps)))
    with pytest.raises(BudgetExhausted):
        privacy.admit(privacy.zero(), privacy.price(replace(event, steps=steps + 1)))


def test_two_steps_fit_where_one_alone_does_not() -> None:
    class Dearer(RenyiPricing):
        def step_costs(self, step: StepEvent, orders: tuple[float, ...], *, committed: bool) -> tuple[float, ...]:
            return tuple((0.45 if committed else 2.0) * limit for limit in privacy._limits)

    privacy = PrivacyFilter(PrivacyBudget(1.0, DELTA), (20.0,), (0.5,), 0.0, 0.0, 0.0, Dearer())
    assert privacy._limits[0] > 0.0
    assert privacy.fits(privacy.zero(), rows(2.0)) == 2


@pytest.mark.parametrize("text", ["[]", "1" + "0" * 400, "true", "-1.0"])
def test_a_shift_that_is_no_number_is_refused(text: str) -> None:
    price = filter_for(PrivacyBudget(1.0, DELTA), plan=sums(20.0)).price(sums(20.0))
    with pytest.raises(InvalidValue, match="gaussian"):
        Price.from_json(re.sub(r'"gaussian":[^,]*', f'"gaussian":{text}', price.to_json()))


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.9, 0.99, 1.01, 2.0])
def test_a_planted_shift_is_refused(factor: float) -> None:
    privacy = filter_for(PrivacyBudget(1.0, DELTA), plan=sums(20.0, 3))
    price = privacy.price(sums(20.0, 3))
    privacy.hold(sums(20.0, 3), price)
    with pytest.raises(AccountantsDisagree, match="squared shift"):
        privacy.hold(sums(20.0, 3), replace(price, gaussian=factor * price.gaussian))


@pytest.mark.parametrize("event", [rows(200.0), sums(200.0, batch=50)])
def test_a_finite_shift_of_what_is_not_gaussian_is_refused(event: RunEvent) -> None:
    privacy = filter_for(PrivacyBudget(1.0, DELTA), plan=sums(20.0))
    price = privacy.price(event)
    privacy.hold(event, price)
    for shift in (1e-9, 1.0, 1e9):
        with pytest.raises(AccountantsDisagree, match="squared shift"):
            privacy.hold(event, replace(price, gaussian=shift))


def test_the_lane_needs_its_own_part_of_delta() -> None:
    """At the full delta beside others it would use delta twice."""
    open_lane = PrivacyFilter(PrivacyBudget(1.0, DELTA), (4.0,), (0.0,), 0.0, 0.0, 0.5, PRICING)
    limit = open_lane._largest_shift
    assert exactly(1.0, limit) <= 0.5 * DELTA < exactly(1.0, 1.001 * limit)
    event = sums(math.sqrt(1.0000001 / limit))
    spent = open_lane.admit(open_lane.zero(), open_lane.price(event))
    assert open_lane.epsilon(spent) == pytest.approx(1.0, rel=1e-5)
