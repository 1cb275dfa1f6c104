"""An evaluation behind the ledger: what is counted, charged, stored and refused."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
import torch
from declarations import evaluation
from scipy.stats import norm
from torch import nn

from dpswd.shared.accounting import calibration
from dpswd.shared.accounting.crosscheck import check_with_autodp
from dpswd.shared.core.errors import BudgetExhausted, RequestInvalid, RunFinished
from dpswd.shared.core.mechanisms.declared import Declared
from dpswd.shared.core.mechanisms.evaluation.mechanism import EVALUATION, EvaluationDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.core.privacy.events import BoundedSum
from dpswd.shared.core.wire.messages import RunParameters, StepRelease

N, INPUTS, CLASSES = 60, 4, 3
RNG = np.random.default_rng(11)
RECORDS = RNG.normal(size=(N, INPUTS)).astype(np.float32)
LABELS = RNG.integers(CLASSES, size=N)
DECLARED = EvaluationDeclaration(classes=CLASSES, correct_sigma=2.0, confusion_sigma=3.0, bins=4, calibration_sigma=5.0)


@pytest.fixture
def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def _hospital(make_hospital, **options):
    return make_hospital(RECORDS, labels=LABELS, classes=CLASSES, **options)


FACTS = Facts(DataSetFacts(N, (INPUTS,), classes=CLASSES), ModelFacts((INPUTS,), CLASSES, {}))


def _declare(hospital, model, declared=DECLARED, *, batch_size=N):
    return hospital.declare(model, evaluation(declared), batch_size=batch_size, steps=1)


def _event(declared):
    return Declared(EVALUATION, declared, RunSize(batch=N), FACTS).event


def _in_records(released):
    """The released counts in units of records."""
    return (grid.to_tensor().numpy() for grid in (released.correct, released.confusion, released.calibration))


def test_without_noise_the_counts_are_those_of_plain_torch(make_hospital, model, no_noise):
    hospital = _hospital(make_hospital, noise=no_noise)
    parameters = _declare(hospital, model)
    stored = hospital.step(hospital.open_run(parameters), parameters)
    correct, confusions, calibrations = _in_records(hospital.reply(parameters, stored))
    with torch.no_grad():
        p = model(torch.from_numpy(RECORDS)).softmax(dim=1).numpy()
    guesses = p.argmax(axis=1)
    confusion = np.zeros((CLASSES, CLASSES))
    np.add.at(confusion, (LABELS, guesses), 1)
    assert correct == pytest.approx(np.trace(confusion), abs=0.5 * 2.0 / 2048)
    np.testing.assert_allclose(confusions, confusion, atol=0.5 * 3.0 / 2048)
    np.testing.assert_allclose(calibrations[:2].sum(), N, atol=8 * 5.0 / 2048)
    bins = np.minimum(((p.max(axis=1) - 1 / CLASSES) / (1 - 1 / CLASSES) * 4).astype(int), 3)
    right = np.array([((bins == b) & (guesses == LABELS)).sum() for b in range(4)])
    np.testing.assert_allclose(calibrations[0], right, atol=0.5 * 5.0 / 2048)
    assert StepRelease.from_bytes(stored.reply).step == 1


def test_the_charge_is_the_accountants_price_of_the_joint_release(make_hospital, model):
    def scaled(factor):
        return EvaluationDeclaration(CLASSES, 2 * factor, 3 * factor, bins=4, calibration_sigma=5 * factor)

    factor = calibration.calibrate_sigma(lambda c: _event(scaled(c)), epsilon=0.4, delta=1e-5)
    declared = scaled(factor)
    hospital = _hospital(make_hospital, epsilon=0.4)
    run = hospital.open_run(_declare(hospital, model, declared))
    parts = run.event.step.parts
    assert [(part.values, part.changed) for part in parts] == [(1, 1), (9, 2), (12, 4)]
    assert [part.sigma / factor for part in parts] == pytest.approx([2, 3, 5])
    assert all(isinstance(part, BoundedSum) for part in parts)
    assert run.event == _event(declared)
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
        hospital.open_run(_declare(hospital, model, declared))


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
    stored = hospital.step(hospital.open_run(parameters), parameters)
    _, confusion, _ = _in_records(hospital.reply(parameters, stored))
    with torch.no_grad():
        assert not torch.isfinite(model(torch.from_numpy(RECORDS * 1e30))).all()
    assert confusion.sum() == pytest.approx(N, abs=0.1)


@pytest.mark.parametrize(
    ("change", "field", "match"),
    [
        ({"batch_size": N - 1}, "parameters.batch_size", "all 60 records"),
        ({"declared": EvaluationDeclaration(4, correct_sigma=1.0)}, "declaration.classes", "have 3"),
        ({"declared": EvaluationDeclaration(3, correct_sigma=1e-11)}, "declaration.correct_sigma", "more noise"),
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
    with pytest.raises(RequestInvalid, match="a step of this run's mechanism brings none") as refused:
        hospital.step(run, parameters, b"1234")
    assert [field for field, _ in refused.value.violations] == ["payload"]


def test_declarations_survive_the_wire_and_broken_ones_name_every_rule(make_hospital, model):
    assert EvaluationDeclaration.from_bytes(DECLARED.to_bytes()) == DECLARED
    hospital = _hospital(make_hospital)
    parameters = _declare(hospital, model)
    assert RunParameters.from_bytes(parameters.to_bytes()) == parameters
    broken = EvaluationDeclaration(1, float("nan"), confusion_sigma=-1.0, bins=0, calibration_sigma=5.0)
    with pytest.raises(RequestInvalid) as refused:
        hospital.open_run(_declare(hospital, model, broken))
    assert {field.removeprefix("declaration.") for field, _ in refused.value.violations} == {
        "classes",
        "correct_sigma",
        "confusion_sigma",
        "bins",
    }
