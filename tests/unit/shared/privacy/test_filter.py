"""The Renyi filter: what it admits, what it refuses, and that rounding never favours the spender."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.pricing import PRICING, filter_for, filter_from_json
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, RelationMismatch
from dpswd.shared.core.privacy.budget import Price, PrivacyBudget, Spent
from dpswd.shared.core.privacy.events import (
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
)
from dpswd.shared.core.privacy.filter import _INEXACT, MAX_ORDER, PrivacyFilter, _up

DELTA = 1e-5


def rows(sigma: float, steps: int = 5900) -> RunEvent:
    return RunEvent(step=StepEvent(7438, 128, (RowProjections(784, 200, sigma),)), steps=steps)


def joint(sigma: float, steps: int = 200) -> RunEvent:
    parts = (
        QuantileCoefficients(512, 200, 2, sigma, sigma / 2048),
        SanitizedGradient(112, 1.0, 30 * sigma, sigma / 64),
    )
    return RunEvent(step=StepEvent(7438, 512, parts), steps=steps)


def full(sigma: float, steps: int = 3) -> RunEvent:
    return RunEvent(step=StepEvent(500, 500, (RowProjections(32, 10, sigma, sigma / 2048),)), steps=steps)


@pytest.mark.parametrize("make", [rows, joint, full])
@pytest.mark.parametrize(
    "epsilon", [10.0, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (3.0, 1.0)), 0.5]
)
def test_a_run_sized_to_the_whole_budget_is_admitted(make: object, epsilon: float) -> None:
    """No loss at all against the price of a committed run; and 2% less noise is refused."""
    sigma = calibrate_sigma(make, epsilon=epsilon, delta=DELTA)  # type: ignore[arg-type]
    run, louder = make(sigma), make(0.98 * sigma)  # type: ignore[operator]
    privacy = filter_for(PrivacyBudget(epsilon, DELTA), plan=run)
    spent = privacy.admit(privacy.zero(), privacy.price(run))
    assert 0.99 * epsilon < privacy.epsilon(spent) <= epsilon
    with pytest.raises(BudgetExhausted) as refused:
        privacy.admit(spent, privacy.price(replace(run, steps=max(2, run.steps // 20))))
    assert refused.value.spent == privacy.epsilon(spent)
    assert refused.value.remaining == max(0.0, epsilon - refused.value.spent)
    other = filter_for(PrivacyBudget(epsilon, DELTA), plan=louder)
    with pytest.raises(BudgetExhausted) as too_loud:
        other.admit(other.zero(), other.price(louder))
    assert too_loud.value.requested > epsilon


def certified(privacy: PrivacyFilter, spent: Spent) -> bool:
    """The acceptance rule again, from the documentation: exact arithmetic for what is added."""
    budget = privacy.budget
    share = Fraction(privacy.infinity_share) * Fraction(budget.delta)
    if Fraction(spent.run_delta) > share * (1 + Fraction(1, 10**15)):
        return False
    for order, weight, used in zip(privacy.orders, privacy.shares, spent.renyi, strict=True):
        if weight > 0:
            gain = (math.log(weight) + math.log(budget.delta) + math.log(order)) / (order - 1)
            if used <= budget.epsilon - math.log1p(-1 / order) + gain:
                return True
    if privacy.gaussian_share and math.isfinite(spent.gaussian):
        m, epsilon = math.sqrt(spent.gaussian), budget.epsilon
        lost = norm.cdf(m / 2 - epsilon / m) - math.exp(epsilon) * norm.cdf(-m / 2 - epsilon / m)
        if lost <= privacy.gaussian_share * budget.delta:
            return True
    return spent.infinity <= budget.epsilon


EVENTS = [
    rows(3.0, 100),
    rows(6.0, 50),
    joint(1.0, 20),
    full(40.0, 1),
    RunEvent(StepEvent(500, 500, (SanitizedGradient(30, 1.0, 9.0, 9.0 / 2048),)), 3),
]


@settings(max_examples=tried(6))
@given(
    st.lists(st.sampled_from(EVENTS), min_size=1, max_size=60),
    st.sampled_from([0.3, 1.0, 4.0]),
    st.sampled_from(EVENTS),
)
@pytest.mark.long
def test_sums_are_rounded_up_and_only_certified_totals_are_admitted(
    session: list[RunEvent], epsilon: float, plan: RunEvent
) -> None:
    privacy = filter_for(PrivacyBudget(epsilon, DELTA), plan=plan)
    assert sum(map(Fraction, (*privacy.shares, privacy.infinity_share, privacy.gaussian_share))) <= 1
    spent = privacy.zero()
    exact = [Fraction(0)] * len(privacy.orders)
    last, closed = 0.0, False
    for event in session:
        price = privacy.price(event)
        assert privacy.price(event) == filter_from_json(privacy.to_json()).price(event)
        try:
            spent = privacy.admit(spent, price)
        except BudgetExhausted:
            continue
        exact = [total + Fraction(part) for total, part in zip(exact, price.renyi, strict=True)]
        assert all(Fraction(used) >= total for used, total in zip(spent.renyi, exact, strict=True))
        assert certified(privacy, spent)
        closed = privacy.price(event).gaussian == math.inf or closed
        assert (spent.gaussian == math.inf) == closed
        assert last <= privacy.epsilon(spent) <= epsilon * (1 + 1e-12)
        last = privacy.epsilon(spent)
        assert Price.from_json(price.to_json()) == price


def test_many_small_runs_cost_less_than_the_sum_of_their_epsilons() -> None:
    """Twenty different runs on one budget: the Renyi sums grow like the square root, not linearly."""
    privacy = filter_for(PrivacyBudget(2.0, DELTA), plan=rows(4.0, 295))
    spent, alone = privacy.zero(), 0.0
    for index in range(20):
        price = privacy.price(rows(4.0 + 0.01 * index, 295))
        spent = privacy.admit(spent, price)
        alone += privacy.epsilon(privacy.admit(privacy.zero(), price))
    assert privacy.epsilon(spent) < 0.4 * alone
    # ... and no more than 10% above one committed run of all the steps, priced by its best order.
    single = filter_for(PrivacyBudget(2.0, DELTA), plan=rows(4.0, 5900))
    assert privacy.epsilon(spent) < 1.1 * single.epsilon(single.admit(single.zero(), single.price(rows(4.0, 5900))))


@pytest.mark.parametrize("make", [rows, joint, full])
@pytest.mark.parametrize("used", [False, True])
def test_fits_is_the_largest_number_of_steps(make: object, used: bool) -> None:
    privacy = filter_for(PrivacyBudget(1.0, DELTA), plan=make(60.0))  # type: ignore[operator]
    spent = privacy.zero()
    if used:
        spent = privacy.admit(spent, privacy.price(make(20.0)))  # type: ignore[operator]
    event = make(8.0)  # type: ignore[operator]
    steps = privacy.fits(spent, event)
    assert steps > 0
    privacy.admit(spent, privacy.price(replace(event, steps=steps)))
    with pytest.raises(BudgetExhausted):
        privacy.admit(spent, privacy.price(replace(event, steps=steps + 1)))


@pytest.mark.long
def test_fits_also_searches_the_lane_of_one_committed_run() -> None:
    sigma = calibrate_sigma(rows, epsilon=0.5, delta=DELTA)
    privacy = filter_for(PrivacyBudget(0.5, DELTA), plan=rows(1.001 * sigma))
    assert privacy.run_delta > 0
    steps = privacy.fits(privacy.zero(), rows(1.001 * sigma, 1))
    assert 5900 <= steps < 6000
    spent = privacy.admit(privacy.zero(), privacy.price(rows(1.001 * sigma, steps)))
    assert privacy.fits(spent, rows(1.001 * sigma, 1)) < 60


def test_a_run_that_does_not_fit_the_lane_of_infinity_uses_none_of_its_delta() -> None:
    """After the whole budget is spent, an extended epsilon can be used: in the Renyi lanes."""
    run = rows(calibrate_sigma(rows, epsilon=0.5, delta=DELTA))
    whole = filter_for(PrivacyBudget(0.5, DELTA), plan=run)
    spent = whole.admit(whole.zero(), whole.price(run))
    assert spent.run_delta == whole.run_delta > 0.9 * DELTA
    more = replace(run, steps=1000)
    extended = whole.with_budget(PrivacyBudget(1.5, DELTA))
    later = extended.admit(spent, extended.price(more))
    assert later.infinity == math.inf
    assert later.run_delta == spent.run_delta
    assert extended.epsilon(later) <= 1.5


def test_a_lowered_delta_that_the_runs_have_used_up_admits_nothing() -> None:
    """Two runs in the lane of infinity under an extended delta; back at the old one their deltas are too much."""
    run = rows(calibrate_sigma(rows, epsilon=0.5, delta=DELTA))
    whole = filter_for(PrivacyBudget(0.5, DELTA), plan=run)
    extended = whole.with_budget(PrivacyBudget(1.5, 2.1 * DELTA))
    spent = extended.zero()
    for _ in range(2):
        spent = extended.admit(spent, extended.price(run))
    assert spent.run_delta == pytest.approx(2 * whole.run_delta)
    lowered = extended.with_budget(PrivacyBudget(1.5, DELTA))
    assert lowered.epsilon(spent) == math.inf
    assert lowered.fits(spent, run) == 0
    with pytest.raises(BudgetExhausted):
        lowered.admit(spent, lowered.price(rows(1e6, 1)))


def test_a_delta_that_runs_were_priced_at_is_stated() -> None:
    priced = PrivacyFilter(
        PrivacyBudget(1.0, DELTA),
        orders=(4.0,),
        shares=(0.5,),
        infinity_share=0.5,
        run_delta=DELTA / 4,
        gaussian_share=0.0,
        pricing=PRICING,
    )
    assert priced.with_budget(PrivacyBudget(1.0, DELTA / 2)).run_delta == DELTA / 4
    with pytest.raises(InvalidValue, match=rf"delta can be lowered to {DELTA / 2:.4g} and no further; lower epsilon"):
        priced.with_budget(PrivacyBudget(1.0, DELTA / 4))


def test_with_budget_keeps_prices_and_admits_more() -> None:
    privacy = filter_for(PrivacyBudget(1.0, DELTA), plan=rows(6.0))
    spent = privacy.zero()
    while privacy.epsilon(privacy.add(spent, privacy.price(rows(6.0)))) <= 1.0:
        spent = privacy.admit(spent, privacy.price(rows(6.0)))
    larger = privacy.with_budget(PrivacyBudget(1.5, 2 * DELTA))
    assert larger.price(rows(6.0)) == privacy.price(rows(6.0))
    assert larger.epsilon(spent) < privacy.epsilon(spent)  # a larger delta certifies a smaller epsilon
    larger.admit(spent, larger.price(rows(6.0)))


class OtherRelation(enum.Enum):
    ADD_OR_REMOVE = "add-or-remove"


def test_another_neighbouring_relation_is_refused() -> None:
    """Only one relation exists today; the check must not depend on that."""
    budget = PrivacyBudget(1.0, DELTA)
    privacy = filter_for(budget, plan=rows(6.0))
    foreign = replace(budget)
    object.__setattr__(foreign, "relation", OtherRelation.ADD_OR_REMOVE)
    with pytest.raises(RelationMismatch):
        privacy.with_budget(foreign)
    strange = rows(5.0)
    object.__setattr__(strange.step, "relation", OtherRelation.ADD_OR_REMOVE)
    with pytest.raises(RelationMismatch):
        privacy.price(strange)
    with pytest.raises(InvalidValue, match="relation"):
        PrivacyBudget(1.0, DELTA, relation="replace-one")  # type: ignore[arg-type]


def test_sums_of_a_filter_with_other_orders_are_refused() -> None:
    one = filter_for(PrivacyBudget(1.0, DELTA), plan=rows(6.0))
    other = filter_for(PrivacyBudget(0.01, DELTA), plan=rows(6.0))
    assert len(one.orders) != len(other.orders)
    with pytest.raises(InvalidValue, match="other orders"):
        one.admit(other.zero(), one.price(rows(6.0)))
    longer, shorter = sorted((one, other), key=lambda each: -len(each.orders))
    for own, price in ((longer, shorter.price(rows(6.0))), (shorter, longer.price(rows(6.0)))):
        with pytest.raises(InvalidValue, match="other orders"):
            own.add(own.zero(), price)


@pytest.mark.parametrize("order", [0.5, 1.0, 2.5 * MAX_ORDER])
def test_an_order_outside_of_renyi_s_is_refused(order: float) -> None:
    budget = PrivacyBudget(1.0, DELTA)
    with pytest.raises(InvalidValue, match=rf"orders must be above 1 and at most {2.0 * MAX_ORDER:g}$"):
        PrivacyFilter(budget, (order,), (0.5,), 0.0, 0.0, 0.0, PRICING)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 100.0])
def test_a_lane_s_limit_is_rounded_down_by_more_than_its_arithmetic_can_err(epsilon: float) -> None:
    budget = PrivacyBudget(epsilon, 1e-30)
    lane = PrivacyFilter(budget, (1.5,), (0.5,), 0.0, 0.0, 0.0, PRICING)
    gain = (math.log(0.5e-30) + math.log(1.5)) / 0.5
    exact = epsilon - math.log1p(-1.0 / 1.5) + gain
    assert exact - lane.limit(1.5, 0.5) == pytest.approx(_INEXACT * (epsilon + abs(gain) + 1.0), rel=0.01)


def test_only_what_was_lost_is_rounded_up() -> None:
    assert _up(0.0) == 0.0
    assert _up(1.0) == 1.0 + 2.0**-52


def test_the_lane_of_infinity_admits_all_of_its_epsilon() -> None:
    lane = PrivacyFilter(PrivacyBudget(1.0, DELTA), (2.0,), (0.0,), 0.9, 0.0, 0.0, PRICING)
    spent = lane.admit(lane.zero(), Price((1e9,), 1.0, 0.0, math.inf))
    assert lane.epsilon(spent) == 1.0
    with pytest.raises(BudgetExhausted):
        lane.admit(spent, Price((0.0,), math.nextafter(0.0, 1.0), 0.0, math.inf))


@pytest.fixture(scope="module")
def stored() -> str:
    return filter_for(PrivacyBudget(1.0, DELTA), plan=rows(60.0)).to_json()


@pytest.mark.parametrize(
    ("part", "other", "match"),
    [
        ('"version":2', '"version":1', "version"),
        ('"epsilon":1.0', '"epsilon":1.0,"more":2', "fields"),
        ('"epsilon":1.0', '"epsilon":-1.0', "epsilon"),
        ('"epsilon":1.0', '"epsilon":NaN', "epsilon"),
        ('"epsilon":1.0', '"epsilon":null', "epsilon"),
        ("replace-one", "none", "relation"),
        ('"run_delta":0.0', '"run_delta":0.5', "run_delta"),
        ('"infinity_share":0.0', '"infinity_share":0.9', "more than 1"),
    ],
)
def test_a_malformed_filter_is_refused(stored: str, part: str, other: str, match: str) -> None:
    assert part in stored
    with pytest.raises(InvalidValue, match=match):
        filter_from_json(stored.replace(part, other))


def test_what_is_no_filter_is_refused(stored: str) -> None:
    price = filter_from_json(stored).price(rows(6.0)).to_json()
    for text, match in (("", "not JSON"), ("[]", "not a filter"), (price, "not a filter")):
        with pytest.raises(InvalidValue, match=match):
            filter_from_json(text)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, DELTA), (math.nan, DELTA), (1e9, DELTA), (1.0, 0.0), (1.0, 0.6)])
def test_a_budget_out_of_range_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidValue, match=r"epsilon|delta"):
        PrivacyBudget(epsilon, delta)


@pytest.mark.parametrize("epsilon", [1e-6, pytest.param(1e-3, marks=pytest.mark.exhaustive), 1e4])
@pytest.mark.parametrize("delta", [1e-300, 0.5])
def test_extreme_budgets_make_a_filter_that_refuses_or_admits(epsilon: float, delta: float) -> None:
    for plan in (rows(1e5, 1), full(1e6, 1)):
        privacy = filter_for(PrivacyBudget(epsilon, delta), plan=plan)
        with pytest.raises(BudgetExhausted):
            privacy.admit(privacy.zero(), privacy.price(full(1e-3, 1)))
        if delta == 0.5 or epsilon == 1e4:  # no order converts to less than log(1/delta)/4096
            privacy.admit(privacy.zero(), privacy.price(rows(1e9, 1)))


# --- "some order still has room, each at the full delta" is not a valid rule ---------------------------------------


Pair = list[tuple[float, float]]
"""Probabilities of the outcomes under two neighbours."""


def renyi(order: float, outcomes: Pair) -> float:
    """Renyi divergence of a discrete pair, the larger direction."""
    logs = [(math.log(p), math.log(q)) for p, q in outcomes]
    forwards = logsumexp([order * p + (1 - order) * q for p, q in logs])
    backwards = logsumexp([order * q + (1 - order) * p for p, q in logs])
    return float(max(forwards, backwards)) / (order - 1)


def some_order_holds(charges: list[Pair], epsilon: float, deltas: dict[float, float]) -> bool:
    """Whether some order has room for all charges, each order with its own part of delta."""
    for order, delta in deltas.items():
        limit = epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)
        if sum(renyi(order, charge) for charge in charges) <= limit:
            return True
    return False


def test_one_order_with_room_at_the_full_delta_reaches_twice_delta() -> None:
    """An exact two-order construction: each branch of a first release is continued with the mechanism that is worst
    for another order. The naive rule admits every charge, and the session's true delta is 2 delta."""
    epsilon, delta = 8.0, 1e-6
    naive, shared = {4.0: delta, 64.0: delta}, {4.0: delta / 2, 64.0: delta / 2}
    rare, loss = 1e-4, 0.3
    first = [(1 - rare, 1 - rare * math.exp(-loss)), (rare, rare * math.exp(-loss))]
    assert some_order_holds([first], epsilon, naive)
    true_delta, admitted_with_shares = 0.0, 0
    for (p, q), order in zip(first, naive, strict=True):
        # The bad outcome's total loss is the one that wins most for this order: e^loss = e^epsilon a/(a-1).
        rest = epsilon + math.log(order / (order - 1)) - math.log(p / q)

        def second(chance: float, rest: float = rest) -> Pair:
            return [(chance, chance * math.exp(-rest)), (1 - chance, 1 - chance * math.exp(-rest))]

        def overdraft(log_chance: float, order: float = order, second: Callable[[float], Pair] = second) -> float:
            limit = epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)
            return renyi(order, first) + renyi(order, second(math.exp(log_chance))) - limit

        worst = second(math.exp(brentq(overdraft, -40.0, -1e-6, xtol=1e-13) - 1e-9))
        assert some_order_holds([first, worst], epsilon, naive)  # the naive rule admits this charge in this branch
        admitted_with_shares += some_order_holds([first, worst], epsilon, shared)
        true_delta += sum(max(0.0, p * bad_p - math.exp(epsilon) * q * bad_q) for bad_p, bad_q in worst)
    assert true_delta > 1.99 * delta
    assert admitted_with_shares == 0  # with a share of delta for each order both charges are refused


def test_orders_increase_and_cover_the_budget() -> None:
    for epsilon, delta in ((10.0, 1e-5), (0.1, 1e-9), (1e-4, 1e-3)):
        orders = filter_for(PrivacyBudget(epsilon, delta), plan=rows(6.0)).orders
        assert all(low < high for low, high in pairwise(orders))
        assert len(orders) <= 64  # a decision for a known event stays well below 20 microseconds
