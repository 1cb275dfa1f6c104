"""Counts of predictions: exact sums, sensitivities by brute force, what is neutralised, what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.public_client.methods.evaluation_report import bin_edges
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.evaluation.counts import (
    CONFIDENCE_WEIGHT,
    EvaluationCounter,
    bin_places,
    count_width,
    largest_count,
    released,
    signals,
)
from dpswd.shared.core.mechanisms.evaluation.mechanism import (
    CALIBRATION_SENSITIVITY,
    CONFUSION_SENSITIVITY,
    CORRECT_SENSITIVITY,
    EVALUATION,
    EvaluationDeclaration,
)
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.seeded_noise import SeededNoise


class NoNoise:
    def grid_gaussian(self, shape, *, sigma, step):
        return np.zeros(shape, dtype=np.int64)


def _parts(*, classes, bins, correct, confusion, calibration):
    """The three parts that price counts with these deviations of the noise."""
    declared = EvaluationDeclaration(classes, correct, confusion, bins, calibration)
    facts = Facts(DataSetFacts(records=10, record_shape=(2,), classes=classes), ModelFacts((2,), classes, {}))
    return EVALUATION.parts(declared, RunSize(batch=10), facts)


def _counted(scores, labels, *, classes, bins):
    counter = EvaluationCounter(classes=classes, bins=bins)
    counter.add(torch.as_tensor(np.array(scores)), np.asarray(labels))
    return counter


def _noised(counter, **arguments):
    return released(counter.sums, records=int(counter.sums[0].sum()), **arguments)


def _scores_for(confidence, prediction, classes):
    """Scores whose softmax is `confidence` at `prediction` and equal elsewhere."""
    rest = (1.0 - confidence) / (classes - 1)
    row = np.full(classes, math.log(max(rest, 1e-300)))
    row[prediction] = math.log(confidence)
    return row


def test_the_sums_are_those_of_a_plain_loop():
    rng = np.random.default_rng(3)
    classes, bins, n = 4, 5, 300
    scores = rng.normal(size=(n, classes)) * 3
    labels = rng.integers(classes, size=n)
    correct, confusion, calibration = signals(_counted(scores, labels, classes=classes, bins=bins).sums)
    edges = bin_edges(classes=classes, bins=bins)
    matrix, table = np.zeros((classes, classes)), np.zeros((3, bins))
    for row, label in zip(scores, labels, strict=True):
        p = np.exp(row) / np.exp(row).sum()
        guess = int(p.argmax())
        matrix[label, guess] += 1
        b = max(j for j in range(bins) if p[guess] >= edges[j])
        table[0 if guess == label else 1, b] += 1
        table[2, b] += 0.25 * ((p[guess] - edges[b]) / (edges[1] - edges[0]) - 0.5)
    assert correct[0] == np.trace(matrix)
    np.testing.assert_array_equal(confusion, matrix)
    np.testing.assert_array_equal(calibration[:2], table[:2])
    np.testing.assert_allclose(calibration[2], table[2], atol=n * 2.0**-22)


def test_chunks_and_order_change_no_bit():
    rng = np.random.default_rng(5)
    scores, labels = rng.normal(size=(100, 3)), rng.integers(3, size=100)
    whole = _counted(scores, labels, classes=3, bins=7)
    order = rng.permutation(100)
    parts = EvaluationCounter(classes=3, bins=7)
    for piece in np.array_split(order, 9):
        parts.add(torch.from_numpy(scores[piece]), labels[piece])
    for one, other in zip(whole.sums, parts.sums, strict=True):
        np.testing.assert_array_equal(one, other)
    assert parts.sums[0].sum() == 100


# Every pair of kinds of record on a grid of confidences: the suprema are attained at the ends of bins.
def _kinds(classes, bins):
    edges = bin_edges(classes=classes, bins=bins)
    inside = [edges[0] + 1e-12, *(np.nextafter(e, s) for e in edges[1:-1] for s in (0.0, 2.0)), 1.0]
    for label, prediction, q in itertools.product(range(classes), range(classes), inside):
        yield _scores_for(q, prediction, classes), label


def test_the_declared_sensitivities_are_attained_and_never_exceeded():
    classes, bins = 3, 3
    vectors = [
        [v.ravel() for v in signals(_counted([scores], [label], classes=classes, bins=bins).sums)]
        for scores, label in _kinds(classes, bins)
    ]
    parts = _parts(classes=classes, bins=bins, correct=1.0, confusion=1.0, calibration=1.0)
    for place, part in enumerate(parts):
        pairs = [(one[place], other[place]) for one, other in itertools.combinations(vectors, 2)]
        distances = [np.linalg.norm(one - other) for one, other in pairs]
        changed = [np.count_nonzero(one != other) for one, other in pairs]
        assert part.values == len(vectors[0][place])
        assert max(distances) <= part.sensitivity
        assert max(distances) == pytest.approx(part.sensitivity, rel=1e-5)
        assert max(changed) == part.changed
    joint = max(
        sum(np.linalg.norm(a - b) ** 2 for a, b in zip(one, other, strict=True))
        for one, other in itertools.combinations(vectors, 2)
    )
    total = CORRECT_SENSITIVITY**2 + CONFUSION_SENSITIVITY**2 + CALIBRATION_SENSITIVITY**2
    assert joint == pytest.approx(total, rel=1e-5)  # one pair of records attains all three


@settings(max_examples=tried(60))
@given(
    st.integers(2, 5),
    st.integers(1, 6),
    st.lists(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=5, max_size=5), min_size=2),
    st.data(),
)
def test_any_replaced_record_stays_within_the_sensitivity_after_rounding(classes, bins, rows, data):
    """Whatever the scores: non-finite, huge, tied. The grid moves the changed coordinates alone."""
    scores = np.array(rows, dtype=np.float32)[:, :classes]
    labels = np.array([data.draw(st.integers(0, classes - 1)) for _ in rows])
    first = _counted(scores[:-1], labels[:-1], classes=classes, bins=bins)
    scores[-2], labels[-2] = scores[-1], labels[-1]
    second = _counted(scores[:-1], labels[:-1], classes=classes, bins=bins)
    replies = [
        released(
            counter.sums, records=10, correct_sigma=77.0, confusion_sigma=333.0, calibration_sigma=0.7, noise=NoNoise()
        )
        for counter in (first, second)
    ]
    parts = _parts(classes=classes, bins=bins, correct=77.0, confusion=333.0, calibration=0.7)
    assert [part.grid_step for part in parts] == [77.0 / 2048, 333.0 / 2048, 0.7 / 2048]
    for name, part in zip(("correct", "confusion", "calibration"), parts, strict=True):
        one, other = (getattr(counts, name) for counts in replies)
        moved = (one.values.astype(np.int64) - other.values.astype(np.int64)) * one.step
        assert np.linalg.norm(moved) <= part.sensitivity + part.grid_step * math.sqrt(part.changed) + 1e-12
        assert np.count_nonzero(moved) <= part.changed


def test_scores_that_are_not_finite_count_as_zero():
    counter = _counted([[np.nan, -1.0], [np.inf, 1.0], [1e30, -1e30]], [0, 0, 1], classes=2, bins=2)
    np.testing.assert_array_equal(counter.confusion, [[1, 1], [1, 0]])


def test_places_lie_within_half_a_bin_and_cover_the_ends():
    confidences = np.array([0.1, 0.25, 0.2500001, 0.5, 0.62499999, 1.0, 1.0000001])
    bins, places = bin_places(confidences, classes=4, bins=6)
    np.testing.assert_array_equal(bins, [0, 0, 0, 2, 2, 5, 5])
    assert (np.abs(places) <= 1 << 19).all()
    assert places[0] == places[1] == -(1 << 19)
    assert places[-1] == 1 << 19


def test_noise_has_the_declared_deviation_and_absent_parts_are_absent():
    counter = _counted(np.zeros((10, 40)), np.zeros(10, dtype=np.int64), classes=40, bins=0)
    counts = released(
        counter.sums,
        records=10,
        correct_sigma=5.0,
        confusion_sigma=3.0,
        calibration_sigma=0.0,
        noise=SeededNoise(b"e" * 32),
    )
    assert counts.calibration is None
    assert counts.confusion is not None
    values = counts.confusion.values * counts.confusion.step
    values[0, 0] -= 10
    # 1600 values: the sample deviation is within 5 of its own deviations with probability above 1 - 1e-6
    assert values.std() == pytest.approx(3.0, rel=5 / math.sqrt(2 * 1600))
    assert _noised(
        counter, correct_sigma=5.0, confusion_sigma=0.0, calibration_sigma=0.0, noise=NoNoise()
    ).confusion is None  # fmt: skip
    with pytest.raises(InvalidValue, match="correct_sigma is 0"):
        released(
            counter.sums, records=10, correct_sigma=0.0, confusion_sigma=1.0, calibration_sigma=0.0, noise=NoNoise()
        )


@pytest.mark.parametrize(
    ("scores", "labels", "match"),
    [
        (np.zeros((3, 2)), [0, 1], "needed: "),
        (np.zeros((2, 3)), [0, 1], "needed: "),
        (np.zeros(2), [0, 1], "needed: "),
        (np.zeros((2, 2)), [0, 2], "outside of 0 to 1"),
        (np.zeros((2, 2)), [-2, 0], "outside of 0 to 1"),
    ],
)
def test_what_cannot_be_counted_is_refused(scores, labels, match):
    with pytest.raises(InvalidValue, match=match):
        EvaluationCounter(classes=2).add(torch.as_tensor(scores), np.array(labels))


def test_noise_too_small_for_the_wire_is_refused_by_public_numbers():
    assert count_width(records=10**6, sigma=1.0) == "int32"
    assert count_width(records=10**6, sigma=0.5) == "int64"
    # Of several models with a private number of labels that number is weighted, and has to fit as well.
    assert largest_count(10**6, models=3, partly_labelled=True) == 1_500_000
    assert largest_count(10**6, models=3, partly_labelled=False) == 10**6
    assert count_width(records=largest_count(10**6, models=3, partly_labelled=True), sigma=1.0) == "int64"
    with pytest.raises(InvalidValue, match="more noise"):
        count_width(records=10**6, sigma=1e-7)
    with pytest.raises(InvalidValue, match="2 classes"):
        EvaluationCounter(classes=1)


def test_the_confidence_weight_is_what_the_events_were_priced_with():
    """Ledgers hold events made from it: another vector is another release."""
    assert CONFIDENCE_WEIGHT == 0.25
    assert pytest.approx(2.0 + 1 / 16, rel=1e-14) == CALIBRATION_SENSITIVITY**2
