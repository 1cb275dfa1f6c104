"""Plans and reports of evaluations: the price, the estimates' precision by Monte Carlo, what is refused."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from dpswd import Evaluate, Hospital, MockCurator, mock_description
from dpswd.public_client.methods.evaluation import accuracy_error, submitted
from dpswd.public_client.methods.evaluation_report import (
    Counts,
    Report,
    best_correct,
    bin_edges,
    correct_variance,
    nearest_counts,
)
from dpswd.public_client.training.run import RequestIds
from dpswd.public_client.training.saved_model import load_adapted, save_adapted
from dpswd.shared.core.errors import InvalidValue, RequestInvalid
from dpswd.shared.core.mechanisms.evaluation.counts import EvaluationCounter, EvaluationReply, released
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.core.wire.arrays import encode_grid
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.weights import weights_from_bytes
from dpswd.shared.seeded_noise import SeededNoise

N, CLASSES = 2000, 4


def hospital(*, classes=CLASSES):
    description = mock_description(records=N, record_shape=(6,), epsilon=3.0, delta=1e-5, name="ward", classes=classes)
    return Hospital(MockCurator(description))


def plan_of(*, epsilon, **settings):
    return hospital().plan_evaluation(Evaluate(**settings), epsilon=epsilon)


def release_of(counter, declared, noise):
    reply = released(
        counter.sums,
        records=N,
        correct_sigma=declared.correct_sigma,
        confusion_sigma=declared.confusion_sigma,
        calibration_sigma=declared.calibration_sigma,
        noise=noise,
    )
    return EvaluationReply.from_bytes(reply.to_bytes())


@pytest.fixture(scope="module")
def counted():
    """A model that is right on about 70% and too sure of itself."""
    rng = np.random.default_rng(2)
    labels = rng.integers(CLASSES, size=N)
    scores = rng.normal(size=(N, CLASSES)) * 1.5
    scores[np.arange(N), labels] += 2.0
    counter = EvaluationCounter(classes=CLASSES, bins=8)
    counter.add(torch.from_numpy(scores), labels)
    p = torch.from_numpy(scores).softmax(dim=1).numpy()
    return counter, labels, p


def test_a_plan_costs_what_was_asked_and_says_how_precise_it_will_be():
    plan = plan_of(epsilon=0.1)
    assert plan.price() == pytest.approx(0.1, rel=1e-3)
    assert plan.price() <= 0.1
    assert 1.96 * math.sqrt(correct_variance(plan.declared())) / N == accuracy_error(plan)
    alone = plan_of(epsilon=0.1, confusion=False, bins=0)
    assert alone.declared().confusion_sigma == alone.declared().calibration_sigma == 0
    assert accuracy_error(alone) < accuracy_error(plan) < 1.5 * accuracy_error(alone)
    text = str(plan)
    assert f"evaluation: 1 step, on all {N} records" in text
    assert f"{CLASSES} x {CLASSES} counts" in text
    assert "epsilon 0.1000 alone, at delta" in text
    assert f"{100 * accuracy_error(plan):.2g} percentage points" in text
    assert json.loads(json.dumps(plan.to_json()))["classes"] == CLASSES


def test_shares_move_noise_between_the_parts():
    even = plan_of(epsilon=0.5)
    shifted = plan_of(epsilon=0.5, correct_share=0.1, confusion_share=0.8, calibration_share=0.1)
    assert shifted.declared().confusion_sigma < even.declared().confusion_sigma
    assert shifted.declared().correct_sigma > even.declared().correct_sigma
    assert shifted.price() == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("wishes", "match"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": "1"}, "epsilon is '1'"),
        ({"epsilon": 0.1, "bins": -1}, "bins"),
        ({"epsilon": 0.1, "bins": 101}, "0 .* to 100"),
        ({"epsilon": 0.1, "correct_share": 0.0}, "correct_share"),
        ({"epsilon": 0.1, "confusion_share": float("nan")}, "confusion_share"),
    ],
)
def test_wishes_out_of_range_are_refused(wishes, match):
    with pytest.raises(InvalidValue, match=match):
        plan_of(**wishes)


def test_an_evaluation_is_a_value_and_no_method_of_training():
    with pytest.raises(InvalidValue, match="evaluation is 'accuracy'; pass a value such as Evaluate"):
        hospital().plan_evaluation("accuracy", epsilon=0.1)
    with pytest.raises(InvalidValue, match="a plan of evaluation has no steps to train with; see `evaluate`"):
        hospital().open(plan_of(epsilon=0.1), nn.Linear(6, CLASSES))


def test_a_hospital_without_classes_is_refused_with_the_operators_remedy():
    with pytest.raises(InvalidValue, match=r"records\.classes"):
        hospital(classes=0).plan_evaluation(epsilon=0.1)


def test_an_evaluation_is_charged_once_however_often_it_is_repeated():
    there, model = hospital(), nn.Linear(6, CLASSES)
    plan = there.plan_evaluation(epsilon=0.5, model=model)
    assert plan.admitted is True
    assert there.curator.charges == []
    ids = RequestIds()
    with pytest.raises(InvalidValue, match="needs its plan"):
        there.evaluate(model, epsilon=0.5, request_ids=ids)
    first, again = (there.evaluate(model, plan, request_ids=ids) for _ in range(2))
    (charge,) = there.curator.charges
    assert first.accuracy == again.accuracy
    np.testing.assert_array_equal(first.confusion, again.confusion)
    assert first.spent == pytest.approx(charge.epsilon)


def test_beside_a_large_budget_an_evaluation_is_counted_no_dearer_than_what_was_asked():
    there = hospital()
    there.evaluate(nn.Linear(6, CLASSES), epsilon=0.5)
    assert there.describe().spent <= 0.5


def test_the_shown_bins_hold_all_records_and_no_negative_ones(counted):
    counter, _, _ = counted
    declared = EvaluationDeclaration(CLASSES, 30.0, confusion_sigma=0.0, bins=8, calibration_sigma=30.0)
    report = Report.of(
        release_of(counter, declared, SeededNoise(b"a" * 32)), declared=declared, records=N, epsilon=9.9, delta=1e-5
    )
    shown = [one.records for one in report.reliability]
    assert min(shown) >= 0.0
    assert sum(shown) == pytest.approx(N)


def test_without_noise_to_speak_of_the_report_is_the_truth(counted):
    counter, labels, p = counted
    declared = EvaluationDeclaration(CLASSES, 0.01, confusion_sigma=0.01, bins=8, calibration_sigma=0.01)
    report = Report.of(
        release_of(counter, declared, SeededNoise(b"a" * 32)), declared=declared, records=N, epsilon=9.9, delta=1e-5
    )
    guesses = p.argmax(axis=1)
    right, confidences = guesses == labels, p.max(axis=1)
    assert report.accuracy == pytest.approx(right.mean(), abs=1e-4)
    confusion = np.zeros((CLASSES, CLASSES))
    np.add.at(confusion, (labels, guesses), 1)
    np.testing.assert_allclose(report.confusion, confusion, atol=0.1)
    edges = bin_edges(classes=CLASSES, bins=8)
    error = 0.0
    for b, shown in enumerate(report.reliability):
        inside = (confidences >= edges[b]) & (confidences < edges[b + 1] + (b == 7))
        assert shown.accuracy == pytest.approx(right[inside].mean(), abs=1e-2)
        assert shown.confidence == pytest.approx(confidences[inside].mean(), abs=1e-2)
        error += abs((confidences[inside] - right[inside]).sum()) / N
    assert report.calibration_error == pytest.approx(error, abs=1e-3)
    assert report.overconfidence == pytest.approx(confidences.mean() - right.mean(), abs=1e-3)
    assert report.noise_floor < 1e-3


def test_every_figure_is_as_precise_as_it_says(counted):
    """800 releases: intervals cover, estimates are unbiased, stated deviations hold; false alarms below 1e-5."""
    counter, labels, p = counted
    declared = plan_of(epsilon=0.3, bins=8).declared()
    right = (p.argmax(axis=1) == labels).mean()
    gap = p.max(axis=1).mean() - right
    noise, repeats = SeededNoise(b"m" * 32), 800
    estimates, covered, gaps, errors = [], 0, [], []
    for _ in range(repeats):
        release = release_of(counter, declared, noise)
        report = Report.of(release, declared=declared, records=N, epsilon=0.3, delta=1e-5)
        estimates.append(best_correct(Counts.of(release), declared, N)[0] / N)
        covered += report.accuracy_interval.low <= right <= report.accuracy_interval.high
        gaps.append(report.overconfidence)
        errors.append(report.overconfidence_error)
    stated = math.sqrt(correct_variance(declared)) / N
    assert np.mean(estimates) == pytest.approx(right, abs=5 * stated / math.sqrt(repeats))
    assert np.std(estimates) == pytest.approx(stated, rel=5 / math.sqrt(2 * repeats))
    assert covered == pytest.approx(0.95 * repeats, abs=5 * math.sqrt(repeats * 0.95 * 0.05))
    assert np.mean(gaps) == pytest.approx(gap, abs=5 * errors[0] / math.sqrt(repeats))
    assert np.std(gaps) == pytest.approx(errors[0], rel=5 / math.sqrt(2 * repeats))


def test_combining_the_parts_is_better_than_the_count_alone():
    declared = plan_of(epsilon=0.3).declared()
    assert math.sqrt(correct_variance(declared)) < 0.95 * declared.correct_sigma


def test_the_projection_is_the_nearest_matrix_of_counts():
    rng = np.random.default_rng(1)
    for _ in range(50):
        noisy = rng.normal(size=(3, 3)) * 40 + 30
        counts = nearest_counts(noisy, 250.0)
        assert counts.min() >= 0
        assert counts.sum() == pytest.approx(250.0)
        # Optimality: every other feasible point is farther (projected random directions).
        for _ in range(20):
            other = rng.dirichlet(np.ones(9)).reshape(3, 3) * 250.0
            assert np.sum((noisy - counts) ** 2) <= np.sum((noisy - other) ** 2) + 1e-9


def test_bins_with_too_few_records_show_no_figures(counted):
    counter, _, _ = counted
    declared = plan_of(epsilon=0.01, bins=8).declared()
    report = Report.of(
        release_of(counter, declared, SeededNoise(b"b" * 32)), declared=declared, records=N, epsilon=0.01, delta=1e-5
    )
    assert any(math.isnan(shown.accuracy) for shown in report.reliability)
    assert "too few against the noise" in str(report)
    assert (
        str(report).splitlines()[0]
        == f"The model is right on {100 * report.accuracy:.1f}% of all {N} labelled records."
    )
    few = dataclasses.replace(report, accuracy=math.nan)
    assert str(few).startswith(f"How often the model is right cannot be told: too few of {N} records have a label.\n")
    assert json.loads(json.dumps(report.to_json()))["spent"] is None
    assert 0 <= report.accuracy <= 1
    assert 0 <= report.accuracy_interval.low <= report.accuracy_interval.high <= 1


def test_a_release_with_other_parts_than_declared_is_refused(counted):
    counter, _, _ = counted
    declared = EvaluationDeclaration(CLASSES, 5.0, confusion_sigma=5.0)
    release = release_of(counter, declared, SeededNoise(b"c" * 32))
    with pytest.raises(InvalidValue, match="declared"):
        Report.of(release, declared=EvaluationDeclaration(CLASSES, 5.0), records=N, epsilon=1.0, delta=1e-5)
    two = EvaluationReply.from_bytes(pb.EvaluationReply(correct=_grid(2)).SerializeToString())
    with pytest.raises(InvalidValue, match="2 numbers of correct predictions; 1 was declared"):
        Report.of(two, declared=EvaluationDeclaration(CLASSES, 5.0), records=N, epsilon=1.0, delta=1e-5)


def _grid(*shape):
    return encode_grid(GridArray(np.zeros(shape, np.int32), 1.0))


@pytest.mark.parametrize(
    "message",
    [
        pb.EvaluationReply(),
        pb.EvaluationReply(correct=_grid(2, 2)),
        pb.EvaluationReply(correct=_grid(1), confusion=_grid(2, 3)),
        pb.EvaluationReply(correct=_grid(1), calibration=_grid(2, 3)),
    ],
)
def test_a_malformed_reply_is_refused(message):
    with pytest.raises(RequestInvalid, match="reply"):
        EvaluationReply.from_bytes(message.SerializeToString())


def test_models_come_as_modules_or_files_and_nothing_else(tmp_path):
    torch.manual_seed(0)
    plan = plan_of(epsilon=0.1)
    extractor, classifier = nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, CLASSES)
    whole = nn.Sequential(extractor, classifier)
    file = tmp_path / "m.safetensors"
    save_adapted(
        file, extractor=extractor, classifier=classifier, record_shape=(6,), plan=hospital().plan(epsilon=1.0)
    )  # fmt: skip
    records = torch.randn(7, 6)
    for model in (whole, file, str(file), load_adapted(file)):
        ready = submitted(model, plan)
        tensors = weights_from_bytes(ready.weights, ready.graph)
        scores = Extractor(ready.graph, tensors).features(records)
        torch.testing.assert_close(scores, whole(records).detach())
    for wrong, match in (
        ({"weights": 1}, "cannot be evaluated"),
        (nn.Linear(6, CLASSES + 1), f"gives {CLASSES + 1} scores for each record; the data set has {CLASSES}"),
    ):
        with pytest.raises(InvalidValue, match=match):
            submitted(wrong, plan)
