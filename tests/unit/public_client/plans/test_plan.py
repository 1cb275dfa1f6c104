from __future__ import annotations

import dataclasses
import itertools
import json
import math

import pytest
import torch
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd import AllWeights, Evaluate, Finetune, Hospital, MockCurator, Plan, Replay, Rows, mock_description
from dpswd.public_client.curator.description import Budget
from dpswd.public_client.curator.values import UploadedExtractor
from dpswd.public_client.methods import Statistics, method_kinds
from dpswd.public_client.plans.plan import make_plan
from dpswd.public_client.training.method import plan_json
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Limits
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.privacy.events import RowProjections
from dpswd.shared.core.steps.admission import admit_run
from dpswd.shared.published_mechanisms import ALL_MECHANISMS

BUDGET = Budget(epsilon=5.0, delta=1e-5, spent=1.0, remaining=4.0, closed=False)
HOSPITAL = dataclasses.replace(
    mock_description(records=7291, record_shape=(1, 28, 28), epsilon=5.0, delta=1e-5, name="test"),
    data_set_budget=BUDGET,
    client_budget=BUDGET,
    limits=Limits(max_batch_size=4096),
)
MODEL = {"feature_dimension": 320, "gradient_parameters": 112}


def planned(method, **wishes):
    """A plan of the hospital, for a model of the usual size."""
    size = MODEL | {"gradient_parameters": 0} if isinstance(method, Replay | Statistics) else MODEL
    hospital = HOSPITAL
    if method.mechanism.needs_labels:
        hospital = dataclasses.replace(HOSPITAL, classes=10, mechanisms=tuple(ALL_MECHANISMS))
    return make_plan(hospital, method, **{"epsilon": 1.0} | wishes).for_model(**size)


@settings(max_examples=tried(6))
@given(
    epsilon=st.floats(0.1, 8.0),
    steps=st.integers(1, 400),
    batch=st.integers(16, 2048),
    release=st.sampled_from(["quantiles", "rows"]),
    share=st.floats(0.1, 0.9),
    gradient=st.booleans(),
)
@pytest.mark.long
def test_the_run_costs_what_was_asked_and_never_more(epsilon, steps, batch, release, share, gradient):
    kind = Rows if release == "rows" else AllWeights
    method = kind(gradient_share=share) if gradient else Replay()
    plan = planned(method, epsilon=epsilon, steps=steps, batch_size=batch)
    assert plan.price() <= epsilon
    assert plan.price() >= 0.995 * epsilon


@pytest.mark.parametrize("name", method_kinds())
def test_every_method_costs_what_was_asked(name):
    plan = planned(method_kinds()[name](), steps=30)
    assert 0.995 < plan.price() <= 1.0


def test_full_batch_is_planned():
    assert 0.99 < planned(AllWeights(), steps=50, batch_size=7291).price() <= 1.0


def test_by_default_the_whole_price_buys_one_full_batch_and_other_methods_iterate():
    plan = Hospital(MockCurator(HOSPITAL)).plan(epsilon=1.0)
    assert (plan.method, plan.steps, plan.batch_size) == (Replay(), 1, 4096)  # this hospital's limits stop at 4096
    assert len(plan.for_model(feature_dimension=320, gradient_parameters=0).event().step.parts) == 1
    iterated = make_plan(HOSPITAL, AllWeights(), epsilon=1.0, steps=50)
    assert (iterated.steps, iterated.batch_size) == (50, 128)


def noises(plan):
    declared = plan.declared()
    return declared.sliced.sigma, declared.sum.sigma


def test_more_epsilon_means_less_noise_in_both_parts():
    for less, more in itertools.pairwise(noises(planned(AllWeights(), epsilon=e)) for e in (0.3, 1.0, 3.0)):
        assert less[0] > more[0]
        assert less[1] > more[1]


def test_share_moves_noise_from_the_gradient_to_the_release():
    less, more = (noises(planned(AllWeights(gradient_share=share))) for share in (0.3, 0.7))
    assert less[1] > more[1]
    assert less[0] < more[0]


def test_the_papers_algorithm_is_a_method():
    plan = make_plan(HOSPITAL, Rows(), epsilon=1.0).for_model(feature_dimension=320, gradient_parameters=16_872)
    assert plan.method.release == "rows"
    assert isinstance(plan.event().step.parts[0], RowProjections)
    assert plan.event().step.parts[1].parameters == 16_872
    assert "all weights of the extractor, on both sides" in str(plan)


@pytest.mark.parametrize("method", [Rows(), AllWeights(), Replay()])
def test_the_curator_prices_what_the_plan_priced(method):
    plan = planned(method, steps=7, batch_size=500)
    facts = plan.facts
    feature_map = FeatureMap(torch.zeros(320), torch.ones(320))
    names = tuple(facts.model.parameter_shapes)
    declared = plan.parameters(UploadedExtractor("a" * 64, "b" * 64), names, feature_map)
    assert declared.mechanism == ("quantiles" if isinstance(method, Replay) else "gradient")
    admitted = admit_run(
        declared, mechanisms=ALL_MECHANISMS, data=facts.data, model=facts.model, limits=HOSPITAL.limits
    )  # fmt: skip
    assert admitted.event == plan.event()


def test_epsilon_so_far_grows_to_the_price():
    plan = planned(AllWeights())
    values = [plan.epsilon_after(t) for t in (0, 1, plan.steps // 2, plan.steps, plan.steps + 5)]
    assert values == sorted(values)
    assert values[0] == 0.0
    assert values[-1] == values[-2] == plan.price()


@pytest.mark.parametrize("kind", [*method_kinds().values(), Evaluate])
def test_a_plan_survives_its_json(kind):
    labelled = dataclasses.replace(HOSPITAL, classes=10, mechanisms=tuple(ALL_MECHANISMS))
    plan = make_plan(labelled, kind(), epsilon=1.0, **({} if kind is Evaluate else {"steps": 7, "batch_size": 100}))
    sizes = {Replay: (320, 0), Evaluate: (10, 0)}
    d, p = sizes.get(kind, (320, 112))
    for value in (plan, plan.for_model(feature_dimension=d, gradient_parameters=p)):
        written = json.loads(json.dumps(value.to_json()))
        again = Plan.from_json(written, method=kind)
        assert again == value
        assert again.to_json() == value.to_json()
        assert str(again) == str(value)
    with pytest.raises(InvalidValue, match="no field sigmas"):
        Plan.from_json(written | {"sigmas": 1}, method=kind)
    with pytest.raises(InvalidValue, match=f"{kind.name} has no sgima"):
        Plan.from_json(written | {"method": written["method"] | {"sgima": 1.0}}, method=kind)
    other = AllWeights if kind is Replay else Replay
    with pytest.raises(InvalidValue, match=f"method '{kind.name}', not of '{other.name}'"):
        Plan.from_json(written, method=other)
    for missing in ("method", "record_shape", "epsilon"):
        with pytest.raises(InvalidValue, match=missing):
            Plan.from_json({key: value for key, value in written.items() if key != missing}, method=kind)


def test_the_text_says_what_it_costs_and_what_is_left():
    plan = planned(AllWeights())
    assert json.loads(plan_json(plan))["fits"] is True
    text = str(plan)
    assert "epsilon 1.0000 alone, at delta 1e-05" in text
    assert plan.charged.startswith("epsilon 1.0000 alone, charged for all ")  # what a progress bar says
    assert "leaves    about epsilon 3.0000 of the 4.0000" in text
    assert "does NOT fit: only epsilon 4.0000 is left" in str(make_plan(HOSPITAL, Replay(), epsilon=5.5))
    assert "ask the curator (free)" in str(make_plan(HOSPITAL, Replay(), epsilon=4.5))


def test_one_release_of_a_part_of_the_records_says_what_the_part_costs():
    def text(records, batch, steps=1):
        return str(
            Plan(
                method=Replay(),
                epsilon=1.0,
                delta=1e-5,
                records=records,
                record_shape=(6,),
                steps=steps,
                batch_size=batch,
            )
        )

    assert "a mean over 65,536 of 1,000,000 records by 0.38 % of a record's own spread" in text(1_000_000, 65_536)
    assert "chance" not in text(60_000, 60_000)
    assert "chance" not in text(1_000_000, 128, steps=400)


def test_a_plan_that_knows_no_ledger_says_nothing_of_what_is_left():
    plan = Plan(
        method=Replay(), epsilon=1.0, delta=1e-5, records=100, record_shape=(6,), steps=1, batch_size=100
    )  # fmt: skip
    assert plan.fits is True
    assert "left" not in str(plan)


def test_a_closed_budget_leaves_nothing():
    closed = dataclasses.replace(HOSPITAL, client_budget=dataclasses.replace(BUDGET, closed=True))
    assert closed.remaining == 0.0
    assert make_plan(closed, Replay(), epsilon=0.1).fits is False


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"epsilon": -1.0}, "epsilon is -1.0; it must be positive and finite"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"epsilon": "1"}, "epsilon is '1'; it must be positive and finite"),
        ({"epsilon": True}, "epsilon is True"),
        ({"epsilon": None}, "epsilon is None"),
        ({"batch_size": 8000}, "batch_size is 8000; allowed are 1 to the data set's 7291"),
        ({"batch_size": "50"}, "batch_size is '50'; it must be a whole number of at least 1"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 1.5}, "steps is 1.5; it must be a whole number of at least 1"),
        ({"method": "rows"}, r"method is 'rows'; pass a value such as Replay\(\) or AllWeights\(\), not its name"),
        ({"method": AllWeights}, "pass a value"),
        ({"method": Evaluate()}, "pass a value"),
    ],
)
def test_wrong_wishes_are_named(wishes, says):
    with pytest.raises(InvalidValue, match=says):
        Hospital(MockCurator(HOSPITAL)).plan(**{"epsilon": 1.0} | wishes)


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (Replay, {"directions": 0}, "directions is 0"),
        (Replay, {"directions": 2.5}, "directions is 2.5; it must be a whole number"),
        (Replay, {"coefficients": "2"}, "coefficients is '2'"),
        (Replay, {"tuning_steps": 0}, "tuning_steps"),
        (Replay, {"learning_rate": "fast"}, "learning_rate is 'fast'; it must be positive and finite"),
        (Replay, {"target_norm": math.inf}, "target_norm is inf"),
        (AllWeights, {"gradient_share": 1.0}, "gradient_share is 1.0; it must be at least 0 and below 1"),
        (AllWeights, {"gradient_share": 0.0}, "gradient_share is 0.0; it must be positive"),
        (AllWeights, {"clip_norm": -1}, "clip_norm is -1"),
        (AllWeights, {"alignment_weight": None}, "alignment_weight is None"),
        (Rows, {"batch_records": True}, "batch_records is True"),
        (AllWeights, {"averaging": 1.0}, "averaging is 1.0"),
        (Finetune, {"clip_norm": 0.0}, "clip_norm is 0.0"),
        (AllWeights, {"learning_rate": 0.0, "directions": 0}, "learning_rate is 0.0; .*; directions is 0"),
        (Evaluate, {"bins": 101}, r"bins is 101; allowed are 0 \(no calibration\) to 100"),
        (Evaluate, {"bins": 1.0}, "bins is 1.0"),
        (Evaluate, {"correct_share": 0.0}, "correct_share is 0.0"),
    ],
)
def test_settings_out_of_range_are_named(kind, settings, says):
    with pytest.raises(InvalidValue, match=says):
        kind(**settings)


def test_a_setting_that_a_method_does_not_have_is_no_argument_of_it():
    with pytest.raises(TypeError, match="clip"):
        Replay(clip=2.0)


def test_noise_without_the_model_is_refused():
    plan = make_plan(HOSPITAL, AllWeights(), epsilon=1.0)
    for ask in (plan.price, plan.declared, plan.event):
        with pytest.raises(InvalidValue, match="call for_model first"):
            ask()
    with pytest.raises(InvalidValue, match="at least 1, once it is known"):
        plan.with_noise_times(2.0)
    with pytest.raises(InvalidValue, match="no parameters that all-weights could adapt"):
        plan.for_model(feature_dimension=320, gradient_parameters=0)
