"""The bracket: no valid price is refused, and planted undercharges and wrong sensitivities are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from bracket_steps import STEPS
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import hyp1f1, log, mp, mpf

from dpswd.shared.accounting import pld
from dpswd.shared.accounting.costs import step_costs
from dpswd.shared.accounting.pricing import PRICING, RenyiPricing, filter_for
from dpswd.shared.core.errors import AccountantsDisagree
from dpswd.shared.core.privacy import bracket
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.curves import ShiftLaw
from dpswd.shared.core.privacy.events import (
    BoundedSum,
    ClippedVector,
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
)
from dpswd.shared.core.privacy.filter import PrivacyFilter


def priced(step: StepEvent, *, steps: int = 30, epsilon: float = 1.0) -> tuple[PrivacyFilter, RunEvent]:
    event = RunEvent(step, steps)
    return filter_for(PrivacyBudget(epsilon, 1e-5), plan=event), event


class Planted(RenyiPricing):
    """The curator's prices times a factor each."""

    def __init__(self, *, renyi: float = 1.0, pld: float = 1.0) -> None:
        self.renyi, self.pld = renyi, pld

    def step_costs(self, step: StepEvent, orders: tuple[float, ...], *, committed: bool) -> tuple[float, ...]:
        return tuple(self.renyi * cost for cost in PRICING.step_costs(step, orders, committed=committed))

    def pld_epsilon(self, run: RunEvent, delta: float) -> float:
        return self.pld * PRICING.pld_epsilon(run, delta)


def hold_anew(filter_: PrivacyFilter, event: RunEvent) -> None:
    fresh = replace(filter_)  # without remembered prices
    fresh.hold(event, fresh.price(event))


@pytest.mark.parametrize(
    ("steps", "epsilon"),
    [(1, 1.0), (3000, 8.0), *(pytest.param(*other, marks=pytest.mark.exhaustive) for other in ((1, 8.0), (3000, 1.0)))],
)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_what_the_accountant_charges_lies_inside(step: StepEvent, steps: int, epsilon: float) -> None:
    hold_anew(*priced(step, steps=steps, epsilon=epsilon))


@pytest.mark.parametrize(
    "factor", [0.99, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (0.9, 0.5)), 0.0]
)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_a_planted_undercharge_is_refused(step: StepEvent, factor: float) -> None:
    filter_, event = priced(step)
    with pytest.raises(AccountantsDisagree, match="must lie between"):
        hold_anew(replace(filter_, pricing=Planted(renyi=factor)), event)


@pytest.mark.parametrize("factor", [0.9, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (0.5, 0.0))])
@pytest.mark.parametrize("name", ["rows", "gradient", "counts", "vector", "quantiles"])
def test_an_undercharge_in_the_lane_of_infinity_alone_is_refused(name: str, factor: float) -> None:
    """A run sized to the whole budget is priced by its privacy loss distribution; the Renyi lanes are left alone."""
    event = RunEvent(STEPS[name], 30)
    epsilon = pld.epsilon(event.step, event.steps, 0.97e-5)
    filter_ = PrivacyFilter(
        PrivacyBudget(2.0 * epsilon, 1e-5),
        orders=(2.0, 8.0),
        shares=(0.01, 0.01),
        infinity_share=0.97,
        run_delta=9.7e-6,
        gaussian_share=0.0,
        pricing=PRICING,
    )
    hold_anew(filter_, event)
    with pytest.raises(AccountantsDisagree, match="composed anew"):
        hold_anew(replace(filter_, pricing=Planted(pld=factor)), event)


def _half_norms(part: object) -> float:
    return 0.25 * (2.0 * part.clip_norm / part.sigma) ** 2  # C in the place of 2C


WRONG: dict[str, tuple[str, Callable[[StepEvent], ShiftLaw]]] = {
    "clip in the place of twice the clip": (
        "gradient",
        lambda step: ShiftLaw(1, 1, 0.0, _half_norms(step.parts[0])),
    ),
    "a vector as if one record were added": ("vector", lambda step: ShiftLaw(1, 1, 0.0, _half_norms(step.parts[0]))),
    "a count that moves one cell": ("counts", lambda step: ShiftLaw(1, 1, 0.0, (1.0 / step.parts[0].sigma) ** 2)),
    "rows of norm 1/2 that move by 1/2": ("rows", lambda step: ShiftLaw(320, 200, 0.25 / 0.84**2)),
    "directions counted half": ("rows", lambda step: ShiftLaw(320, 100, 1.0 / 0.84**2)),
    "one coefficient in the place of two": (
        "quantiles",
        lambda step: ShiftLaw(512, 200, 1.0 / step.batch / step.parts[0].sigma ** 2),
    ),
    "no charge for the grid": ("rows on a grid", lambda step: ShiftLaw(64, 100, 1.0 / step.parts[0].sigma ** 2)),
    "the gradient of a joint release forgotten": ("quantiles and gradient", lambda step: step.sliced_shift()),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_planted_wrong_sensitivity_is_refused(
    wrong: tuple[str, Callable[[StepEvent], ShiftLaw]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, law = wrong
    step = STEPS[name]
    filter_, event = priced(step)
    false = law(step)
    step_costs.cache_clear()
    monkeypatch.setattr(StepEvent, "shift", lambda self: false)
    try:
        with pytest.raises(AccountantsDisagree):
            hold_anew(filter_, event)
    finally:
        step_costs.cache_clear()


def test_an_overcharge_above_theorem_9_is_refused() -> None:
    filter_, event = priced(STEPS["gradient"])
    with pytest.raises(AccountantsDisagree, match="Theorem 9 allows"):
        hold_anew(replace(filter_, pricing=Planted(renyi=6.0)), event)


@pytest.mark.parametrize(("d", "x"), [(2, 0.3), (3, 40.0), (320, 1.0), (320, 900.0), (10**6, 1e4), (50, 2e5), (2, 5e6)])
def test_the_cut_series_is_never_above_kummers_function(d: int, x: float) -> None:
    mp.dps = 40
    exact = float(log(hyp1f1(mpf(1) / 2, mpf(d) / 2, mpf(x))))
    ours = bracket._log_kummer(d, x)
    assert ours <= exact * (1 + 1e-12)
    assert ours >= exact * (1 - (1e-9 if x <= bracket._TERMS / 4 else 0.05))


def test_the_pair_is_the_integral_of_its_mixture() -> None:
    """n = 2, b = 1, one dimension: (alpha-1) eps of P against Q by numerical integration."""
    step = StepEvent(2, 1, (RowProjections(1, 1, 1.5),))
    y, shift = np.linspace(-40.0, 40.0, 400_001), 1.0 / 1.5
    q = -0.5 * y**2 - 0.5 * math.log(2.0 * math.pi)
    p = np.logaddexp(math.log(0.5) + q, math.log(0.5) - 0.5 * (y - shift) ** 2 - 0.5 * math.log(2.0 * math.pi))
    for order in (2.0, 3.0, 7.0):
        integral = np.logaddexp.reduce(order * p + (1.0 - order) * q) + math.log(y[1] - y[0])
        assert bracket.lower_costs(step, np.array([order]))[0] == pytest.approx(integral / (order - 1.0), rel=1e-6)


@st.composite
def events(draw: st.DrawFn) -> RunEvent:
    records = draw(st.integers(1, 10**6))
    batch = draw(st.one_of(st.just(records), st.integers(1, records)))
    sigma = 10.0 ** draw(st.floats(-1.0, 3.0))
    grid = sigma * 2.0 ** -draw(st.integers(4, 20))
    d, k = draw(st.integers(1, 2000)), draw(st.integers(1, 500))
    sliced = st.sampled_from(
        [
            RowProjections(d, k, sigma, grid),
            QuantileCoefficients(d, k, draw(st.integers(1, min(batch, 32))), sigma, 0.0),
        ]
    )
    fixed = st.sampled_from(
        [
            SanitizedGradient(k, 1.0, sigma, grid),
            BoundedSum(k, 1.0, draw(st.integers(1, k)), sigma, grid),
            ClippedVector(k, 1.0, sigma, grid),
        ]
    )
    parts = draw(st.sampled_from(["sliced", "fixed", "both"]))
    chosen = [draw(sliced)] if parts != "fixed" else []
    chosen += [draw(fixed)] if parts != "sliced" else []
    return RunEvent(StepEvent(records, batch, tuple(chosen)), draw(st.integers(1, 10_000)))


@settings(max_examples=tried(12), deadline=None)
@given(event=events(), epsilon=st.floats(0.05, 20.0))
def test_no_valid_price_is_refused(event: RunEvent, epsilon: float) -> None:
    filter_ = filter_for(PrivacyBudget(epsilon, 1e-5), plan=event)
    filter_.hold(event, filter_.price(event))
