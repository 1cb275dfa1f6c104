"""An evaluation behind the RPC: what is counted, charged, stored and refused."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from private_curator.settings.tree import LimitSettings
from private_curator.steps import admission
from shared.errors import BudgetExhausted, RequestInvalid, RunFinished
from shared.privacy import calibration
from shared.privacy.crosscheck import check_with_autodp
from shared.privacy.events import BoundedSum
from shared.protocol.evaluations import EvaluationRelease
from shared.protocol.messages import Evaluation, Gradient, PublicMap, RunParameters
from shared.protocol.pricing import evaluation_event

N, INPUTS, CLASSES = 60, 4, 3
RNG = np.random.default_rng(11)
RECORDS = RNG.normal(size=(N, INPUTS)).astype(np.float32)
LABELS = RNG.integers(CLASSES, size=N)
DECLARED = Evaluation(classes=CLASSES, correct_sigma=2.0, confusion_sigma=3.0, bins=4, calibration_sigma=5.0)


@pytest.fixture
def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def _hospital(make_hospital, **options):
    return make_hospital(RECORDS, labels=LABELS, classes=CLASSES, **options)


def _declare(hospital, model, release=DECLARED, **options):
    return hospital.declare(model, **{"release": release, "batch_size": N, "directions": 0, "steps": 1, **options})


def test_without_noise_the_counts_are_those_of_plain_torch(make_hospital, model, no_noise):
    hospital = _hospital(make_hospital, noise=no_noise)
    parameters = _declare(hospital, model)
    released = EvaluationRelease.from_bytes(hospital.step(hospital.open_run(parameters), parameters).reply)
    with torch.no_grad():
        p = model(torch.from_numpy(RECORDS)).softmax(dim=1).numpy()
    guesses = p.argmax(axis=1)
    confusion = np.zeros((CLASSES, CLASSES))
    np.add.at(confusion, (LABELS, guesses), 1)
    assert released.correct == pytest.approx(np.trace(confusion), abs=0.5 * 2.0 / 2048)
    np.testing.assert_allclose(released.confusion, confusion, atol=0.5 * 3.0 / 2048)
    assert released.calibration is not None
    np.testing.assert_allclose(released.calibration[:2].sum(), N, atol=8 * 5.0 / 2048)
    bins = np.minimum(((p.max(axis=1) - 1 / CLASSES) / (1 - 1 / CLASSES) * 4).astype(int), 3)
    right = np.array([((bins == b) & (guesses == LABELS)).sum() for b in range(4)])
    np.testing.assert_allclose(released.calibration[0], right, atol=0.5 * 5.0 / 2048)
    assert released.step == 1


def test_the_charge_is_the_accountants_price_of_the_joint_release(make_hospital, model):
    def scaled(factor):
        return Evaluation(CLASSES, 2 * factor, confusion_sigma=3 * factor, bins=4, calibration_sigma=5 * factor)

    factor = calibration.calibrate_sigma(lambda c: evaluation_event(scaled(c), records=N), epsilon=0.4, delta=1e-5)
    declared = scaled(factor)
    hospital = _hospital(make_hospital, epsilon=0.4)
    run = hospital.open_run(_declare(hospital, model, release=declared))
    parts = run.event.step.parts
    assert [(part.values, part.changed, part.sigma / factor) for part in parts] == [(1, 1, 2), (9, 2, 3), (12, 4, 5)]
    assert all(isinstance(part, BoundedSum) for part in parts)
    assert run.event == evaluation_event(declared, records=N)
    g = factor / 2048
    shift = ((1 + 2 * g) / 2) ** 2 + (2**0.5 * (1 + 3 * g) / 3) ** 2 + ((2.0625**0.5 + 2 * 5 * g) / 5) ** 2
    assert run.event.step.shift().largest * factor**2 == pytest.approx(shift, rel=1e-12)
    # A second derivation of the price: the analytic Gaussian profile at the root of the shift (Balle, Wang 2018).
    root = shift**0.5 / factor
    delta = norm.cdf(root / 2 - 0.4 / root) - np.exp(0.4) * norm.cdf(-root / 2 - 0.4 / root)
    assert delta == pytest.approx(1e-5, rel=1e-2)
    assert delta <= 1e-5
    check_with_autodp(run.event)  # an independent accountant agrees on the Renyi curve
    account, _ = hospital.ledger.budget_of("ml-team")
    assert account.epsilon_spent == pytest.approx(0.4, rel=1e-4)
    with pytest.raises(BudgetExhausted):
        hospital.open_run(_declare(hospital, model, release=declared))


def test_a_repeat_gets_the_stored_bytes_and_a_second_step_is_refused(make_hospital, model):
    hospital = _hospital(make_hospital)
    parameters = _declare(hospital, model)
    run = hospital.open_run(parameters)
    request = str(uuid.uuid4())
    first = hospital.step(run, parameters, request_id=request)
    again = hospital.step(run, parameters, request_id=request)
    assert (first.reply, first.receipt) == (again.reply, again.receipt)
    with pytest.raises(RunFinished):
        hospital.step(run, parameters)


def test_the_size_of_the_reply_does_not_depend_on_the_records(make_hospital, model, tmp_path):
    sizes = set()
    for place, (records, labels) in enumerate([(RECORDS, LABELS), (0 * RECORDS, 0 * LABELS)]):
        hospital = make_hospital(records, labels=labels, classes=CLASSES, directory=tmp_path / str(place))
        parameters = _declare(hospital, model)
        sizes.add(len(hospital.step(hospital.open_run(parameters), parameters).reply))
    assert len(sizes) == 1


def test_an_exhausted_budget_refuses_and_spends_nothing(make_hospital, model):
    hospital = _hospital(make_hospital, epsilon=0.5)
    with pytest.raises(BudgetExhausted):
        hospital.open_run(_declare(hospital, model))
    assert hospital.ledger.status().runs == 0


def test_scores_that_overflow_are_answered_like_any_other(make_hospital, no_noise):
    """They count as zero: no error depends on a record."""
    torch.manual_seed(6)
    model = nn.Linear(INPUTS, CLASSES)
    with torch.no_grad():
        model.weight.mul_(1e15)
    hospital = make_hospital(RECORDS * 1e30, labels=LABELS, classes=CLASSES, noise=no_noise)
    parameters = _declare(hospital, model)
    released = EvaluationRelease.from_bytes(hospital.step(hospital.open_run(parameters), parameters).reply)
    assert released.confusion is not None
    with torch.no_grad():
        assert not torch.isfinite(model(torch.from_numpy(RECORDS * 1e30))).all()
    assert released.confusion.sum() == pytest.approx(N, abs=0.1)


@pytest.mark.parametrize(
    ("change", "field", "match"),
    [
        ({"batch_size": N - 1}, "parameters.batch_size", "all 60 records"),
        ({"release": Evaluation(classes=4, correct_sigma=1.0)}, "parameters.evaluation.classes", "have 3"),
        (
            {"release": Evaluation(classes=3, correct_sigma=1e-6)},
            "parameters.evaluation.correct_sigma",
            "more noise",
        ),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_by_field(make_hospital, model, change, field, match):
    hospital = _hospital(make_hospital)
    with pytest.raises(RequestInvalid, match=match) as refused:
        hospital.open_run(_declare(hospital, model, **change))
    assert [name for name, _ in refused.value.violations] == [field]


def test_a_model_with_other_outputs_or_a_data_set_without_labels_is_refused(make_hospital, tmp_path):
    hospital = _hospital(make_hospital)
    with pytest.raises(RequestInvalid, match=r"computes 5 scores .* 3 classes"):
        hospital.open_run(_declare(hospital, nn.Linear(INPUTS, 5)))
    unlabelled = make_hospital(RECORDS, directory=tmp_path / "unlabelled")
    with pytest.raises(RequestInvalid, match="not offered"):
        unlabelled.open_run(_declare(unlabelled, nn.Linear(INPUTS, CLASSES)))


def test_a_step_that_brings_what_an_evaluation_does_not_use_is_refused(make_hospital, model):
    hospital = _hospital(make_hospital)
    parameters = _declare(hospital, model)
    run = hospital.open_run(parameters)
    extractor = hospital.extractors.get(parameters, client="ml-team")
    public_map = PublicMap(np.zeros(CLASSES, np.float32), np.ones(CLASSES, np.float32))
    content = admission.StepContent(
        operation=admission.Operation.RELEASE_QUANTILES,
        run_id=run.run_id,
        request_id=str(uuid.uuid4()),
        adapted=b"1234",
        feature_map=public_map,
        source=np.zeros((2, CLASSES), np.float32),
    )
    with pytest.raises(RequestInvalid) as refused:
        admission.admit_step(content, parameters=parameters, extractor=extractor.facts, limits=LimitSettings())
    fields = {field for field, _ in refused.value.violations}
    assert fields == {"input.run_id", "input.feature_map", "source", "input.adapted_parameters"}
    assert "EvaluateModel" in str(refused.value)


def test_declarations_survive_the_wire_and_broken_ones_name_every_rule():
    parameters = RunParameters("a" * 64, "b" * 64, directions=0, batch_size=N, steps=1, release=DECLARED)
    assert RunParameters.from_message(parameters.to_message()) == parameters
    message = parameters.to_message()
    message.directions = 3
    message.evaluation.classes = 1
    message.evaluation.correct_sigma = float("nan")
    message.evaluation.confusion_sigma = -1.0
    message.evaluation.bins = 0
    message.gradient.CopyFrom(
        RunParameters(
            "a" * 64, "b" * 64, 1, N, 1, DECLARED, gradient=Gradient(("w",), clip_norm=1.0, sigma=1.0)
        ).to_message().gradient
    )  # fmt: skip
    with pytest.raises(RequestInvalid) as refused:
        RunParameters.from_message(message)
    assert {field.removeprefix("parameters.") for field, _ in refused.value.violations} == {
        "directions",
        "gradient",
        "evaluation.classes",
        "evaluation.correct_sigma",
        "evaluation.confusion_sigma",
        "evaluation.bins",
    }
