"""What is done about quotes above the plan; the rest is tested through `DomainAdaptation`."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpswd.public_client.plans.declarable import within_quote
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.published_methods import AllWeights
from dpswd.shared.core.errors import InvalidValue


def plan(epsilon: float = 1.0) -> Plan:
    made = Plan(
        method=AllWeights(directions=20),
        epsilon=epsilon,
        delta=1e-5,
        records=5000,
        record_shape=(16,),
        remaining=10.0,
        steps=20,
        batch_size=500,
    )
    return made.for_model(feature_dimension=16, gradient_parameters=8)


@functools.cache
def planned() -> Plan:
    return plan()


def test_a_quote_within_the_plan_changes_nothing() -> None:
    asked = []
    assert within_quote(planned(), lambda p: asked.append(p) or 1.0) == planned()  # type: ignore[func-returns-value]
    assert asked == [planned()]


@given(st.floats(min_value=1.001, max_value=3.5), st.floats(min_value=0.3, max_value=2.0))
def test_noise_is_raised_to_the_quote_and_not_much_beyond(needed: float, slope: float) -> None:
    """A ledger whose price falls like a power of the noise and meets the plan at `needed` times its noise."""

    def quote(p: Plan) -> float:
        assert p.noise is not None
        assert planned().noise is not None
        return (needed * planned().noise / p.noise) ** slope

    raised = within_quote(planned(), quote)
    assert raised.noise is not None
    assert planned().noise is not None
    assert quote(raised) <= planned().epsilon
    assert raised.noise <= 1.15 * needed * planned().noise


def test_a_floor_above_the_plan_is_refused_before_anything_is_opened() -> None:
    """A ledger that keeps several bounds open never counts less than 0.244: more noise would be thrown away."""
    with pytest.raises(InvalidValue, match=r"0\.2440.*beside a budget of .*Nothing was spent"):
        within_quote(plan(0.1), lambda p: 0.244)
