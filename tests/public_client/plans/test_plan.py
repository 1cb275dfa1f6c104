from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from public_client.curator.description import Budget, Description, Limits
from public_client.plans.plan import Plan, make_plan, plan_json
from shared.errors import InvalidValue
from shared.privacy.events import RowProjections
from shared.protocol.messages import PublicMap, Quantiles, Rows
from shared.protocol.pricing import run_event

BUDGET = Budget(epsilon=5.0, delta=1e-5, spent=1.0, remaining=4.0, closed=False)
HOSPITAL = Description(
    data_set="test", records=7291, record_shape=(1, 28, 28), data_set_budget=BUDGET, client_budget=BUDGET,
    neighbouring_relation="replace-one", mechanisms=("rows", "quantiles", "gradient"),
    limits=Limits(1 << 24, 2000, 64, 4096, 100_000, 4096), grid_exponent=11, ledger_public_key="00" * 32,
    client_name="tester", software_version="0",
)  # fmt: skip


@settings(max_examples=6, deadline=None)
@given(
    epsilon=st.floats(0.1, 8.0),
    steps=st.integers(1, 400),
    batch=st.integers(16, 2048),
    release=st.sampled_from(["quantiles", "rows"]),
    share=st.floats(0.1, 0.9),
    gradient=st.booleans(),
)
def test_the_run_costs_what_was_asked_and_never_more(epsilon, steps, batch, release, share, gradient):
    plan = make_plan(
        HOSPITAL, epsilon=epsilon, steps=steps, batch_size=batch, release=release, gradient_share=share,
        parameters="adapters" if gradient else "none", feature_dimension=320,
        gradient_parameters=112 if gradient else 0,
    )  # fmt: skip
    assert plan.price() <= epsilon
    assert plan.price() >= 0.995 * epsilon


def test_full_batch_is_planned():
    plan = make_plan(HOSPITAL, epsilon=1.0, steps=50, batch_size=7291, feature_dimension=320, gradient_parameters=112)
    assert 0.99 < plan.price() <= 1.0


def test_by_default_the_whole_price_buys_one_full_batch_and_steps_ask_for_an_iteration():
    plan = make_plan(HOSPITAL, epsilon=1.0, feature_dimension=320, gradient_parameters=112)
    assert (plan.release, plan.parameters, plan.steps, plan.batch_size) == ("quantiles", "none", 1, 4096)
    assert plan.gradient_sigma is None  # the limits of this hospital stop at 4096
    assert len(plan.event().step.parts) == 1
    iterated = make_plan(HOSPITAL, epsilon=1.0, steps=50)
    assert (iterated.parameters, iterated.batch_size) == ("adapters", 512)


def test_more_epsilon_means_less_noise_in_both_parts():
    plans = [
        make_plan(HOSPITAL, epsilon=e, parameters="adapters", feature_dimension=320, gradient_parameters=112)
        for e in (0.3, 1.0, 3.0)
    ]
    assert plans[0].sigma > plans[1].sigma > plans[2].sigma
    assert plans[0].gradient_sigma > plans[1].gradient_sigma > plans[2].gradient_sigma


def test_share_moves_noise_from_the_gradient_to_the_release():
    less, more = (
        make_plan(
            HOSPITAL,
            epsilon=1.0,
            parameters="adapters",
            gradient_share=s,
            feature_dimension=320,
            gradient_parameters=112,
        )
        for s in (0.3, 0.7)
    )
    assert less.gradient_sigma > more.gradient_sigma
    assert less.sigma < more.sigma


def test_the_papers_algorithm_is_one_argument_away():
    plan = make_plan(HOSPITAL, epsilon=1.0, release="rows", feature_dimension=320, gradient_parameters=16_872)
    assert (plan.release, plan.parameters) == ("rows", "all")
    assert isinstance(plan.event().step.parts[0], RowProjections)
    assert plan.event().step.parts[1].parameters == 16_872


@pytest.mark.parametrize("release", ["rows", "quantiles"])
def test_the_curator_prices_what_the_plan_priced(release):
    plan = make_plan(HOSPITAL, epsilon=1.0, release=release, parameters="adapters", feature_dimension=320,
                     gradient_parameters=112)  # fmt: skip
    public_map = PublicMap([0.0], [1.0])
    declared = plan.declaration(graph_digest="a" * 64, weights_digest="b" * 64, names=("w",), feature_map=public_map)
    assert isinstance(declared.release, Rows if release == "rows" else Quantiles)
    assert run_event(declared, records=7291, feature_dimension=320, gradient_parameters=112) == plan.event()


def test_epsilon_so_far_grows_to_the_price():
    plan = make_plan(HOSPITAL, epsilon=1.0, parameters="adapters", feature_dimension=320, gradient_parameters=112)
    values = [plan.epsilon_after(t) for t in (0, 1, plan.steps // 2, plan.steps, plan.steps + 5)]
    assert values == sorted(values)
    assert values[0] == 0.0
    assert values[-1] == values[-2] == plan.price()


def test_json_round_trip_and_text():
    plan = make_plan(HOSPITAL, epsilon=1.0, parameters="adapters", feature_dimension=320, gradient_parameters=112)
    assert Plan.from_json(plan.to_json()) == plan
    assert json.loads(plan_json(plan))["fits"] is True
    text = str(plan)
    assert "epsilon 1.0000 at delta 1e-05" in text
    assert "leaves    about epsilon 3.0000 of the 4.0000" in text
    assert "does NOT fit" in str(make_plan(HOSPITAL, epsilon=5.5))  # more than the whole budget
    with pytest.raises(InvalidValue, match="no field sigmas"):
        Plan.from_json(plan.to_json() | {"sigmas": 1})


def test_a_closed_budget_leaves_nothing():
    closed = dataclasses.replace(HOSPITAL, client_budget=dataclasses.replace(BUDGET, closed=True))
    assert closed.remaining == 0.0
    assert not make_plan(closed, epsilon=0.1).fits


@pytest.mark.parametrize(
    ("wishes", "names"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": 1.0, "batch_size": 8000}, "batch_size is 8000; allowed are 1 to the data set's 7291"),
        ({"epsilon": 1.0, "release": "histogram"}, "rows"),
        ({"epsilon": 1.0, "parameters": "some"}, "adapters"),
        ({"epsilon": 1.0, "clip": 2.0}, "no clip"),
        ({"epsilon": 1.0, "gradient_share": 1.0}, "gradient_share"),
        ({"epsilon": 1.0, "steps": 0}, "steps"),
    ],
)
def test_wrong_wishes_are_named(wishes, names):
    with pytest.raises(InvalidValue, match=names):
        make_plan(HOSPITAL, **wishes)


def test_noise_before_the_extractor_is_known_is_refused():
    with pytest.raises(InvalidValue, match="for_extractor"):
        make_plan(HOSPITAL, epsilon=1.0).price()
