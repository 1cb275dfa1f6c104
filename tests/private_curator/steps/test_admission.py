from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from private_curator.settings.tree import LimitSettings
from private_curator.steps import admission
from private_curator.steps.admission import DataSetFacts, ExtractorFacts, Operation, StepContent
from shared.errors import RequestInvalid
from shared.privacy.events import QuantileCoefficients, RowProjections, SanitizedGradient
from shared.protocol.digests import run_digest
from shared.protocol.messages import Gradient, PublicMap, Quantiles, Rows, RunParameters

DATA = DataSetFacts(records=1000, record_shape=(8,))
EXTRACTOR = ExtractorFacts(input_shape=(8,), feature_dimension=4, parameter_shapes={"w": (4, 8), "b": (4,)})
LIMITS = LimitSettings()
MAP = PublicMap(center=np.zeros(4, np.float32), scale=np.ones(4, np.float32))
RUN = RunParameters(
    graph_digest="a" * 64,
    weights_digest="b" * 64,
    directions=10,
    batch_size=100,
    steps=7,
    release=Quantiles(coefficients=2, sigma=1.0),
    gradient=Gradient(parameters=("w", "b"), clip_norm=1.0, sigma=50.0),
    feature_map=MAP,
)
STEP = StepContent(
    operation=Operation.RELEASE_QUANTILES,
    run_id="run",
    request_id="id",
    adapted=np.arange(36, dtype="<f4").tobytes(),
    feature_map=None,
    source=np.ones((5, 4), np.float32),
)


def _run(**changes):
    return admission.admit_run(dataclasses.replace(RUN, **changes), data_set=DATA, extractor=EXTRACTOR, limits=LIMITS)


def _step(run=RUN, limits=LIMITS, **changes):
    content = dataclasses.replace(STEP, **changes)
    return admission.admit_step(content, parameters=run, extractor=EXTRACTOR, limits=limits)


def test_a_declaration_becomes_the_event_that_prices_it():
    event = _run()
    assert (event.steps, event.step.records, event.step.batch) == (7, 1000, 100)
    coefficients, gradient = event.step.parts
    assert isinstance(coefficients, QuantileCoefficients)
    assert (coefficients.feature_dimension, coefficients.directions, coefficients.coefficients) == (4, 10, 2)
    assert isinstance(gradient, SanitizedGradient)
    assert (gradient.parameters, gradient.clip_norm, gradient.sigma) == (36, 1.0, 50.0)
    (rows,) = _run(release=Rows(sigma=2.0), gradient=None).step.parts
    assert isinstance(rows, RowProjections)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batch_size": 1001}, "parameters.batch_size"),
        ({"directions": LIMITS.max_directions + 1}, "parameters.directions"),
        ({"release": Quantiles(coefficients=101, sigma=1.0)}, "parameters.quantiles.coefficients"),
        ({"gradient": Gradient(("w", "nope"), 1.0, 50.0)}, "parameters.gradient.parameters"),
        ({"gradient": Gradient(("w",), 1e6, 1.0)}, "parameters.gradient.sigma"),
        ({"feature_map": PublicMap(np.zeros(5, np.float32), np.ones(5, np.float32))}, "parameters.feature_map"),
        ({"feature_map": PublicMap(np.zeros(4, np.float32), np.zeros(4, np.float32))}, "parameters.feature_map.scale"),
        ({"release": Quantiles(coefficients=2, sigma=1e-30)}, "parameters"),
    ],
)
def test_each_rule_is_enforced_by_name(changes, field):
    with pytest.raises(RequestInvalid) as caught:
        _run(**changes)
    assert field in [violation[0] for violation in caught.value.violations]


def test_a_sample_that_would_fill_the_memory_is_refused_from_public_sizes():
    small = LIMITS.model_copy(update={"max_sample_values": 8 * 99})
    with pytest.raises(RequestInvalid, match="at most 99 in one sample"):
        admission.admit_run(RUN, data_set=DATA, extractor=EXTRACTOR, limits=small)
    enough = LIMITS.model_copy(update={"max_sample_values": 8 * 100})
    assert admission.admit_run(RUN, data_set=DATA, extractor=EXTRACTOR, limits=enough).step.batch == 100


def test_all_violations_are_told_at_once():
    with pytest.raises(RequestInvalid) as caught:
        _run(batch_size=5000, directions=10**6, gradient=Gradient(("nope",), 1.0, 50.0))
    assert {"parameters.batch_size", "parameters.directions", "parameters.gradient.parameters"} <= {
        violation[0] for violation in caught.value.violations
    }


def test_memory_is_bounded_by_declared_sizes():
    small = LIMITS.model_copy(update={"max_gradient_values": 36 * 99})
    with pytest.raises(RequestInvalid, match=r"gradient\.parameters"):
        admission.admit_run(RUN, data_set=DATA, extractor=EXTRACTOR, limits=small)


def test_an_extractor_for_other_records_is_refused():
    with pytest.raises(RequestInvalid, match=r"\(8,\)"):
        admission.admit_run(RUN, data_set=DataSetFacts(1000, (1, 8)), extractor=EXTRACTOR, limits=LIMITS)


def test_adapted_parameters_are_split_in_the_declared_order():
    step = _step()
    np.testing.assert_array_equal(step.adapted["w"], np.arange(32).reshape(4, 8))
    np.testing.assert_array_equal(step.adapted["b"], np.arange(32, 36))
    assert step.feature_map is MAP
    assert _step(adapted=b"").adapted == {}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"operation": Operation.ALIGN_TARGET}, "input.run_id"),
        ({"operation": Operation.RELEASE_PROJECTIONS}, "input.run_id"),
        ({"adapted": b"abc"}, "input.adapted_parameters"),
        ({"adapted": np.full(36, np.nan, "<f4").tobytes()}, "input.adapted_parameters"),
        ({"feature_map": PublicMap(np.zeros(3, np.float32), np.ones(3, np.float32))}, "input.feature_map"),
        ({"source": None}, "source"),
        ({"source": np.ones((5, 3), np.float32)}, "source"),
    ],
)
def test_each_rule_of_a_step_is_enforced_by_name(changes, field):
    with pytest.raises(RequestInvalid) as caught:
        _step(**changes)
    assert [violation[0] for violation in caught.value.violations] == [field]


def test_which_rpc_takes_the_steps_of_which_run():
    bare = {"adapted": b"", "source": None}
    rows = dataclasses.replace(RUN, release=Rows(1.0))
    assert _step(rows, operation=Operation.ALIGN_TARGET).source is not None
    alone = dataclasses.replace(rows, gradient=None)
    _step(alone, operation=Operation.RELEASE_PROJECTIONS, **bare)
    _step(dataclasses.replace(RUN, gradient=None), operation=Operation.RELEASE_QUANTILES, **bare)
    with pytest.raises(RequestInvalid, match="not used"):
        _step(alone, operation=Operation.RELEASE_PROJECTIONS, adapted=b"")


def test_the_digest_is_the_requests_meaning():
    variants = [
        _step(),
        _step(run_id="other"),
        _step(adapted=np.arange(1, 37, dtype="<f4").tobytes()),
        _step(adapted=b""),
        _step(feature_map=MAP),
        _step(source=np.ones((4, 4), np.float32)),
    ]
    assert len({step.digest for step in variants}) == len(variants)
    assert _step(request_id="another").digest == _step().digest


def test_run_digests_differ_where_declarations_do():
    assert run_digest(RUN) == run_digest(dataclasses.replace(RUN))
    assert run_digest(RUN) != run_digest(dataclasses.replace(RUN, steps=8))


@pytest.mark.parametrize("value", ["", "abc", "A" * 36, "{12345678-1234-4234-8234-123456789abc}", "12345678" * 4])
def test_request_ids_are_canonical_uuids(value):
    with pytest.raises(RequestInvalid, match="UUID"):
        admission.check_request_id(value, field="request_id")
    admission.check_request_id("12345678-1234-4234-8234-123456789abc", field="request_id")
