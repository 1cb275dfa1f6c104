"""Plans and reports of evaluations: the price, the estimates' precision by Monte Carlo, what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from public_client.curator.description import Budget, Description, Limits
from public_client.methods.evaluation import plan_evaluation, whole_model
from public_client.methods.evaluation_report import Report, best_correct, correct_variance, nearest_counts
from shared.errors import InvalidValue, RequestInvalid
from shared.extractor import Extractor
from shared.kernels.noise import GridArray, SeededNoise
from shared.mechanisms.evaluation.counts import EvaluationCounter, bin_edges
from shared.protocol.arrays import encode_grid
from shared.protocol.evaluations import EvaluationRelease
from shared.protocol.messages import Evaluation
from shared.protocol.v1 import curator_pb2 as pb

N, CLASSES = 2000, 4


def description(**changes):
    budget = Budget(epsilon=3.0, delta=1e-5, spent=0.0, remaining=3.0, closed=False)
    values = {
        "data_set": "ward", "records": N, "record_shape": (6,), "data_set_budget": budget, "client_budget": budget,
        "neighbouring_relation": "replace-one", "mechanisms": ("evaluation",),
        "limits": Limits(1 << 24, 100, 10, 100, 100, 100), "grid_exponent": 11, "ledger_public_key": "00",
        "client_name": "t", "software_version": "0", "classes": CLASSES,
    }  # fmt: skip
    return Description(**(values | changes))


def release_of(counter, declared, noise):
    counts = counter.release(
        correct_sigma=declared.correct_sigma,
        confusion_sigma=declared.confusion_sigma,
        calibration_sigma=declared.calibration_sigma,
        noise=noise,
    )
    message = pb.EvaluationRelease(run_id="r", step=1)
    for name in ("correct", "confusion", "calibration"):
        values = getattr(counts, name)
        if values is not None:
            getattr(message, name).CopyFrom(encode_grid(values))
    return EvaluationRelease.from_bytes(message.SerializeToString())


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
    plan = plan_evaluation(description(), epsilon=0.1)
    assert plan.price() == pytest.approx(0.1, rel=1e-3)
    assert plan.price() <= 0.1
    assert 1.96 * math.sqrt(correct_variance(plan.declared)) / N == plan.accuracy_error
    alone = plan_evaluation(description(), epsilon=0.1, confusion=False, bins=0)
    assert alone.declared.confusion_sigma == alone.declared.calibration_sigma == 0
    assert alone.accuracy_error < plan.accuracy_error < 1.5 * alone.accuracy_error
    text = str(plan)
    assert "2000 labelled records, 4 classes" in text
    assert "epsilon 0.1000 alone" in text
    assert json.loads(json.dumps(plan.to_json()))["declared"]["classes"] == CLASSES


def test_shares_move_noise_between_the_parts():
    even = plan_evaluation(description(), epsilon=0.5)
    shifted = plan_evaluation(description(), epsilon=0.5, shares={"correct": 0.1, "confusion": 0.8, "calibration": 0.1})
    assert shifted.declared.confusion_sigma < even.declared.confusion_sigma
    assert shifted.declared.correct_sigma > even.declared.correct_sigma
    assert shifted.price() == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("wishes", "match"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": 0.1, "bins": -1}, "bins"),
        ({"epsilon": 0.1, "bins": 101}, "0 .* to 100"),
        ({"epsilon": 0.1, "shares": {"correct": 0.0, "confusion": 1, "calibration": 1}}, "share of correct"),
        ({"epsilon": 0.1, "shares": {"accuracy": 1.0}}, "accuracy"),
        ({"epsilon": 0.1, "shares": {"correct": 1.0}}, "share of confusion"),
    ],
)
def test_wishes_out_of_range_are_refused(wishes, match):
    with pytest.raises(InvalidValue, match=match):
        plan_evaluation(description(), **wishes)


def test_a_hospital_without_classes_is_refused_with_the_operators_remedy():
    with pytest.raises(InvalidValue, match=r"records\.classes"):
        plan_evaluation(description(classes=0), epsilon=0.1)


def test_without_noise_to_speak_of_the_report_is_the_truth(counted):
    counter, labels, p = counted
    declared = Evaluation(CLASSES, 0.01, confusion_sigma=0.01, bins=8, calibration_sigma=0.01)
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
    declared = plan_evaluation(description(), epsilon=0.3, bins=8).declared
    right = (p.argmax(axis=1) == labels).mean()
    gap = p.max(axis=1).mean() - right
    noise, repeats = SeededNoise(b"m" * 32), 800
    found, covered, gaps, errors = [], 0, [], []
    for _ in range(repeats):
        release = release_of(counter, declared, noise)
        report = Report.of(release, declared=declared, records=N, epsilon=0.3, delta=1e-5)
        found.append(best_correct(release, declared, N)[0] / N)
        covered += report.accuracy_interval.low <= right <= report.accuracy_interval.high
        gaps.append(report.overconfidence)
        errors.append(report.overconfidence_error)
    stated = math.sqrt(correct_variance(declared)) / N
    assert np.mean(found) == pytest.approx(right, abs=5 * stated / math.sqrt(repeats))
    assert np.std(found) == pytest.approx(stated, rel=5 / math.sqrt(2 * repeats))
    assert covered == pytest.approx(0.95 * repeats, abs=5 * math.sqrt(repeats * 0.95 * 0.05))
    assert np.mean(gaps) == pytest.approx(gap, abs=5 * errors[0] / math.sqrt(repeats))
    assert np.std(gaps) == pytest.approx(errors[0], rel=5 / math.sqrt(2 * repeats))


def test_combining_the_parts_is_better_than_the_count_alone():
    declared = plan_evaluation(description(), epsilon=0.3).declared
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
    declared = plan_evaluation(description(), epsilon=0.01, bins=8).declared
    report = Report.of(
        release_of(counter, declared, SeededNoise(b"b" * 32)), declared=declared, records=N, epsilon=0.01, delta=1e-5
    )
    assert any(math.isnan(shown.accuracy) for shown in report.reliability)
    assert "too few against the noise" in str(report)
    assert json.loads(json.dumps(report.to_json()))["spent"] is None
    assert 0 <= report.accuracy <= 1
    assert 0 <= report.accuracy_interval.low <= report.accuracy_interval.high <= 1


def test_a_release_with_other_parts_than_declared_is_refused(counted):
    counter, _, _ = counted
    declared = Evaluation(CLASSES, 5.0, confusion_sigma=5.0)
    release = release_of(counter, declared, SeededNoise(b"c" * 32))
    with pytest.raises(InvalidValue, match="declared"):
        Report.of(release, declared=Evaluation(CLASSES, 5.0), records=N, epsilon=1.0, delta=1e-5)


def _grid(*shape):
    return encode_grid(GridArray(np.zeros(shape, np.int32), 1.0))


@pytest.mark.parametrize(
    "message",
    [
        pb.EvaluationRelease(),
        pb.EvaluationRelease(correct=_grid(2)),
        pb.EvaluationRelease(correct=_grid(1), confusion=_grid(2, 3)),
        pb.EvaluationRelease(correct=_grid(1), calibration=_grid(2, 3)),
    ],
)
def test_a_malformed_release_is_refused(message):
    with pytest.raises(RequestInvalid, match="evaluation_release"):
        EvaluationRelease.from_bytes(message.SerializeToString())


def test_models_come_as_modules_or_files_and_nothing_else(tmp_path):
    torch.manual_seed(0)
    extractor, classifier = nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, CLASSES)
    graph, weights = whole_model(nn.Sequential(extractor, classifier), (6,))
    from public_client.training.saved_model import save_adapted

    save_adapted(tmp_path / "m.safetensors", extractor=extractor, classifier=classifier, record_shape=(6,), plan={})
    composed, tensors = whole_model(tmp_path / "m.safetensors", (6,))
    records = torch.randn(7, 6)
    torch.testing.assert_close(
        Extractor.from_graph(graph, weights).features(records),
        Extractor.from_graph(composed, tensors).features(records),
    )
    with pytest.raises(InvalidValue, match="cannot be evaluated"):
        whole_model({"weights": 1}, (6,))
