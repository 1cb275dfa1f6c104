"""A hospital with labels for some of its records: evaluation as a ratio, statistics by an estimated number. A mock."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpswd import DomainAdaptation, Hospital, MockCurator, Statistics, mock_description
from dpswd.public_client.methods.evaluation_ratio import Tally
from dpswd.shared.core.wire.limits import UNLABELLED

D, CLASSES, N = 6, 3, 4000
MEANS = 2.0 * np.eye(CLASSES, D)
RNG = np.random.default_rng(0)
TRUTH = RNG.integers(CLASSES, size=N)
RECORDS = (MEANS[TRUTH] + RNG.normal(size=(N, D))).astype(np.float32)


def hospital(labelled, *, public=False):
    """The first `labelled` of the records have their label."""
    description = mock_description(
        records=N, record_shape=(D,), epsilon=100.0, delta=1e-5, classes=CLASSES, partly_labelled=True,
        labelled=labelled if public else 0,
    )  # fmt: skip
    labels = np.where(np.arange(N) < labelled, TRUTH, UNLABELLED)
    return Hospital(MockCurator(description, records=RECORDS, labels=labels, randomness=np.random.default_rng(0).bytes))


def test_a_model_is_learned_and_evaluated_by_the_labelled_records_alone():
    with hospital(1000) as where:
        assert "(3 classes, of some records only)" in str(where.describe())
        plan = where.plan(Statistics(prior="none"), epsilon=1.0)
        model = DomainAdaptation(nn.Identity(), nn.Linear(D, CLASSES), hospital=where, plan=plan, source_epochs=0)
        loader = [(torch.from_numpy(RECORDS[-60:]), torch.arange(60) % CLASSES)]
        model.fit(loader, progress=False)
        scores = nn.Sequential(nn.Flatten(), model.model().classifier)
        right = (model.predict(torch.from_numpy(RECORDS)).numpy() == TRUTH)[:1000]
        assert right.mean() > 0.75
        assert "depends on how many they are" in str(where.plan_evaluation(epsilon=1.0, model=scores))
        report = where.evaluate(scores, epsilon=1.0)
        assert abs(report.labelled - 1000) < 120
        assert abs(report.accuracy - right.mean()) < 0.05
        low, high = report.accuracy_interval.low, report.accuracy_interval.high
        assert 0.01 < high - low < 0.1
        assert report.population_interval.low < low < high < report.population_interval.high
        assert report.confusion.sum() == pytest.approx(report.labelled)
        assert f"of the about {report.labelled:.0f} labelled ones of 4000 records" in str(report)
        assert where.curator.charges[0].epsilon <= 1.0
        assert where.describe().spent <= 2.0  # what the second adds, not the ledger's price of it alone


def test_a_number_that_the_operator_says_is_no_part_of_the_release():
    """The same models and epsilon: the accuracy is known better where nothing is spent on the number."""
    good, poor = nn.Linear(D, CLASSES), nn.Linear(D, CLASSES)
    with torch.no_grad():
        good.weight.copy_(torch.from_numpy(MEANS))
        good.bias.zero_()
        poor.weight.copy_(-good.weight)
        poor.bias.zero_()
    right = [(model(torch.from_numpy(RECORDS)).argmax(dim=1).numpy() == TRUTH)[:800].mean() for model in (poor, good)]
    with hospital(800) as private, hospital(800, public=True) as public:
        assert "(3 classes, of 800 of the records)" in str(public.describe())
        assert type(public.describe()).from_json(public.describe().to_json()) == public.describe()
        assert "percentage points (95%)" in str(public.plan_evaluation(epsilon=1.0, model=good))
        reports = [where.evaluate(good, epsilon=1.0) for where in (private, public)]
        assert reports[1].labelled == 800
        assert "of the 800 labelled ones of 4000 records" in str(reports[1])
        assert reports[1].confusion.sum() == pytest.approx(800)
        widths = [one.accuracy_interval.high - one.accuracy_interval.low for one in reports]
        assert widths[1] < widths[0]
        assert all(abs(one.accuracy - right[1]) < 0.05 for one in reports)
        comparisons = [where.compare({"poor": poor, "good": good}, epsilon=1.0) for where in (private, public)]
        assert [one.winner for one in comparisons] == ["good", "good"]
        for one in comparisons:
            assert list(one.accuracies.values()) == pytest.approx([100 * share for share in right], abs=2.5 * one.error)
            assert one.error < 6.0
        assert comparisons[1].error < comparisons[0].error
        plans = [where.plan(Statistics(), epsilon=1.0) for where in (private, public)]
        assert [(plan.with_label, plan.number_private) for plan in plans] == [(N, True), (800, False)]
        few = hospital(2).compare({"poor": poor, "good": good}, epsilon=0.2)
        assert math.isnan(few.accuracies["good"])
        assert few.winner == list(few.accuracies)[-1]  # noise would choose
        assert "too few labels" in str(few)


def test_where_too_few_have_a_label_there_is_no_accuracy():
    with hospital(3) as where:
        report = where.evaluate(nn.Linear(D, CLASSES), epsilon=0.2)
        assert math.isnan(report.accuracy)
        assert report.to_json()["accuracy"] is None
        assert "too few against the noise" in str(report)
        assert (report.accuracy_interval.low, report.accuracy_interval.high) == (0.0, 1.0)


@pytest.mark.parametrize(("right", "wrong", "noise"), [(900, 100, 20.0), (60, 40, 30.0), (20, 0, 10.0), (0, 5, 10.0)])
def test_the_interval_covers_as_often_as_it_says(right, wrong, noise):
    """20,000 draws: coverage 95% within five standard errors, 0.8 points (a false alarm of 6e-7), or above it where the
    true share lies at an end of 0 to 1."""
    draws, deviations = 20_000, 1.959964
    rng = np.random.default_rng(5)
    seen = rng.normal((right, wrong), (noise, 2 * noise), size=(draws, 2))
    share, covered = right / (right + wrong), 0
    for one, other in seen:
        low, high = Tally(one, noise**2, other, 4 * noise**2).interval(deviations, sampling=False)
        covered += low <= share <= high
    assert covered / draws > 0.942
    if 0.0 < share < 1.0 and right + wrong > 500:
        assert covered / draws < 0.958


def test_the_interval_of_exact_numbers_is_the_ratio():
    tally = Tally(75.0, 1e-12, 25.0, 1e-12)
    assert tally.share() == 0.75
    assert tally.interval(2.0, sampling=False) == pytest.approx((0.75, 0.75), abs=1e-6)
    low, high = tally.interval(1.959964, sampling=True)
    assert high - low == pytest.approx(2 * 1.959964 * math.sqrt(0.75 * 0.25 / 100), rel=1e-3)
