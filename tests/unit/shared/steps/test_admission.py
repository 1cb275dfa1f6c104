from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from declarations import evaluation, gradient, quantiles, rows

from dpswd.private_curator.serving.wire import check_request_id
from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Limits, ModelFacts
from dpswd.shared.core.mechanisms.sliced import SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.privacy.events import QuantileCoefficients, RowProjections, SanitizedGradient
from dpswd.shared.core.steps.admission import admit_run, offered
from dpswd.shared.core.wire.messages import RunParameters, run_digest, step_digest
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest

DATA = DataSetFacts(records=1000, record_shape=(8,))
MODEL = ModelFacts(input_shape=(8,), feature_dimension=4, parameter_shapes={"w": (4, 8), "b": (4,)})
LIMITS = Limits(min_batch_size=1)
MAP = FeatureMap(center=torch.zeros(4), scale=torch.ones(4))
SUM = ClippedSum(parameters=("w", "b"), clip_norm=1.0, sigma=50.0)
SLICED = quantiles(2, 1.0, directions=10, feature_map=MAP)
DECLARED = gradient(SLICED, SUM)
REQUEST = GradientRequest(np.ones((5, 4), np.float32), np.arange(36, dtype=np.float32))


def _parameters(declared=DECLARED, *, batch_size=100, steps=7):
    name, declaration = declared
    return RunParameters("a" * 64, "b" * 64, name, declaration.to_bytes(), batch_size, steps)


def _run(declared=DECLARED, *, data=DATA, model=MODEL, limits=LIMITS, **sizes):
    return admit_run(_parameters(declared, **sizes), mechanisms=ALL_MECHANISMS, data=data, model=model, limits=limits)


def _step(request=REQUEST, *, run=None):
    payload = request if isinstance(request, bytes) else request.to_bytes()
    return (run or _run()).admit_step(payload, limits=LIMITS).request


def test_a_declaration_becomes_the_event_that_prices_it():
    event = _run().event
    assert (event.steps, event.step.records, event.step.batch) == (7, 1000, 100)
    coefficients, summed = event.step.parts
    assert isinstance(coefficients, QuantileCoefficients)
    assert (coefficients.feature_dimension, coefficients.directions, coefficients.coefficients) == (4, 10, 2)
    assert isinstance(summed, SanitizedGradient)
    assert (summed.parameters, summed.clip_norm, summed.sigma) == (36, 1.0, 50.0)
    (projections,) = _run(rows(2.0)).event.step.parts
    assert isinstance(projections, RowProjections)


@pytest.mark.parametrize(
    ("declared", "sizes", "field"),
    [
        (DECLARED, {"batch_size": 1001}, "parameters.batch_size"),
        (quantiles(2, 1.0, directions=LIMITS.max_directions + 1), {}, "declaration.directions"),
        (quantiles(101, 1.0), {}, "declaration.coefficients"),
        (gradient(SLICED, replace(SUM, parameters=("w", "nope"))), {}, "declaration.sum.parameters"),
        (gradient(SLICED, ClippedSum(("w",), 1e6, 1.0)), {}, "declaration.sum.sigma"),
        (gradient(SLICED, SUM, source_features=0), {}, "declaration.source_features"),
        (gradient(SLICED, SUM, source_features=LIMITS.max_source_features + 1), {}, "declaration.source_features"),
        (rows(feature_map=FeatureMap(torch.zeros(5), torch.ones(5))), {}, "declaration.feature_map"),
        (rows(feature_map=FeatureMap(torch.zeros(4), torch.full((4,), 1e-13))), {}, "declaration.feature_map.scale"),
        (rows(feature_map=FeatureMap(torch.zeros(4), torch.full((4,), 1e13))), {}, "declaration.feature_map.scale"),
        (quantiles(2, 1e-30), {}, "parameters.declaration"),
        (rows(-1.0), {}, "declaration.sigma"),
    ],
)
def test_each_rule_is_enforced_by_name(declared, sizes, field):
    with pytest.raises(RequestInvalid) as caught:
        _run(declared, **sizes)
    assert field in [violation[0] for violation in caught.value.violations]


def test_a_sample_that_would_fill_the_memory_is_refused_from_public_sizes():
    with pytest.raises(RequestInvalid, match="at most 99 in one sample"):
        _run(limits=replace(LIMITS, max_sample_values=8 * 99))
    assert _run(limits=replace(LIMITS, max_sample_values=8 * 100)).event.step.batch == 100


def test_a_sample_of_a_few_records_is_refused():
    """Attack: a sample of one record gives a detector in the extractor the whole of a step's time."""
    with pytest.raises(RequestInvalid, match="at least 16 are allowed"):
        _run(batch_size=15, limits=Limits())
    assert _run(batch_size=16, limits=Limits()).event.step.batch == 16
    few = replace(DATA, records=9)  # all there are
    assert _run(batch_size=9, data=few, limits=Limits()).event.step.batch == 9


def test_all_violations_are_listed_at_once():
    declared = gradient(quantiles(2, 1.0, directions=10**6), ClippedSum(("nope",), 1.0, 50.0))
    with pytest.raises(RequestInvalid) as caught:
        _run(declared, batch_size=5000)
    assert {"parameters.batch_size", "declaration.directions", "declaration.sum.parameters"} <= {
        violation[0] for violation in caught.value.violations
    }


def test_memory_is_bounded_by_declared_sizes():
    with pytest.raises(RequestInvalid, match=r"sum\.parameters"):
        _run(limits=replace(LIMITS, max_gradient_values=36 * 99))


def test_an_extractor_for_other_records_is_refused():
    with pytest.raises(RequestInvalid, match=r"\(8,\)"):
        _run(data=DataSetFacts(1000, (1, 8)))


def test_adapted_parameters_arrive_as_they_were_sent():
    step = _step()
    np.testing.assert_array_equal(step.adapted, np.arange(36))
    np.testing.assert_array_equal(step.source, np.ones((5, 4)))
    assert step.feature_map is None  # the run's
    assert _step(GradientRequest(REQUEST.source)).adapted is None


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (replace(REQUEST, adapted=np.zeros(35, np.float32)), "payload.adapted_parameters"),
        (replace(REQUEST, adapted=np.full(36, np.nan, np.float32)), "payload.adapted_parameters"),
        (replace(REQUEST, feature_map=FeatureMap(torch.zeros(3), torch.ones(3))), "payload.feature_map"),
        (replace(REQUEST, feature_map=FeatureMap(torch.zeros(4), torch.full((4,), 1e30))), "payload.feature_map.scale"),
        (b"", "payload.source"),
        (replace(REQUEST, source=np.ones((5, 3), np.float32)), "payload.source"),
        (replace(REQUEST, source=np.ones((65, 4), np.float32)), "payload.source"),
        (b"abc", "payload"),
    ],
)
def test_each_rule_of_a_step_is_enforced_by_name(request_, field):
    with pytest.raises(RequestInvalid) as caught:
        _step(request_)
    assert [violation[0] for violation in caught.value.violations] == [field]


def test_which_mechanism_takes_which_request():
    sliced = [_run(rows()), _run(quantiles(2, 1.0))]
    for run in sliced:
        assert _step(b"", run=run).feature_map is None
        own = _step(SlicedRequest(MAP), run=run).feature_map
        assert own is not None
        assert torch.equal(own.scale, MAP.scale)
    labelled = replace(DATA, classes=4)
    evaluated = _run(evaluation(EvaluationDeclaration(4, 5.0)), batch_size=1000, data=labelled)
    _step(b"", run=evaluated)
    with pytest.raises(RequestInvalid, match="brings none"):
        _step(REQUEST, run=evaluated)


def test_what_is_offered_depends_on_labels():
    assert set(ALL_MECHANISMS) - set(offered(ALL_MECHANISMS, DATA)) == {
        "evaluation", "class_statistics", "score_statistics", "labelled_gradient", "sinkhorn", "labelled_rows",
        "labelled_quantiles",
    }  # fmt: skip
    assert offered(ALL_MECHANISMS, replace(DATA, classes=4)) == tuple(ALL_MECHANISMS)
    with pytest.raises(RequestInvalid, match="no classes of the records' labels"):
        _run(evaluation(EvaluationDeclaration(4, 5.0)), batch_size=1000)
    with pytest.raises(
        RequestInvalid,
        match=r"'nothing'; this curator offers quantiles, feature_sums, rows, gradient$",
    ):
        _run(("nothing", rows()[1]))


def test_a_mechanism_that_reads_all_records_takes_no_other_batch():
    declared, labelled = evaluation(EvaluationDeclaration(4, 5.0)), replace(DATA, classes=4)
    for batch in (999, 1001):
        with pytest.raises(RequestInvalid, match="reads all 1000 records, send that number"):
            _run(declared, batch_size=batch, data=labelled)
    # Its records are read in pieces, so the bound on one sample's values does not hold for it.
    small = replace(LIMITS, max_sample_values=8, max_batch_size=10)
    assert _run(declared, batch_size=1000, data=labelled, limits=small).event.step.batch == 1000


def test_a_step_digest_is_the_requests_meaning():
    variants = [
        {"run_id": "run", "payload": REQUEST.to_bytes()},
        {"run_id": "other", "payload": REQUEST.to_bytes()},
        {"run_id": "run", "payload": replace(REQUEST, adapted=np.arange(1, 37, dtype=np.float32)).to_bytes()},
        {"run_id": "run", "payload": replace(REQUEST, adapted=None).to_bytes()},
        {"run_id": "run", "payload": replace(REQUEST, feature_map=MAP).to_bytes()},
        {"run_id": "run", "payload": replace(REQUEST, source=np.ones((4, 4), np.float32)).to_bytes()},
        {"run_id": "run", "payload": b""},
        {"run_id": "ru", "payload": b"n" + REQUEST.to_bytes()},
    ]
    assert len({step_digest(**variant) for variant in variants}) == len(variants)
    assert step_digest(**variants[0]) == step_digest(run_id="run", payload=REQUEST.to_bytes())


def test_run_digests_differ_where_declarations_do():
    parameters = _parameters()
    assert run_digest(parameters) == run_digest(_parameters())
    changes = {
        "graph_digest": "c" * 64,
        "weights_digest": "c" * 64,
        "mechanism": "rows",
        "declaration": b"",
        "batch_size": 99,
        "steps": 8,
    }
    assert set(changes) == {field.name for field in dataclasses.fields(RunParameters)}
    digests = {run_digest(replace(parameters, **{name: value})) for name, value in changes.items()}
    assert len(digests | {run_digest(parameters)}) == len(changes) + 1


@pytest.mark.parametrize("value", ["", "abc", "A" * 36, "{12345678-1234-4234-8234-123456789abc}", "12345678" * 4])
def test_request_ids_are_canonical_uuids(value):
    with pytest.raises(RequestInvalid, match="UUID"):
        check_request_id(value)
    check_request_id("12345678-1234-4234-8234-123456789abc")
