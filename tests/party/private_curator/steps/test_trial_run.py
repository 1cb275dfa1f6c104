"""What a step takes is learned from random numbers, and once."""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from declarations import evaluation, gradient, quantiles, rows
from delayed_evaluator import Delayed
from torch import nn

from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerFailed, WorkerSettings
from dpswd.private_curator.steps import trial_run
from dpswd.private_curator.steps.trial_run import MAX_REMEMBERED, MadeRecords, StepTime, TrialTimes
from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Limits, ModelFacts
from dpswd.shared.core.steps.admission import admit_run
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum

RECORDS = np.random.default_rng(7).normal(size=(24, 6)).astype(np.float32)


@pytest.fixture
def module():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))


class Untouchable:
    """Records that nobody may read."""

    count = 24

    def take(self, indices):
        raise AssertionError("a trial reads no record")


class NoLabels:
    """Labels that nobody may read."""

    def __getitem__(self, rows):
        raise AssertionError("a trial reads no label")


SUM = ClippedSum(("0.weight",), 0.1, 1.0)
LABELLED = EvaluationDeclaration(5, correct_sigma=1.0, bins=3, calibration_sigma=1.0)
KINDS = {
    "rows": rows(),
    "quantiles": quantiles(2, 1.0),
    "gradient of rows": gradient(rows(), SUM),
    "gradient of quantiles": gradient(quantiles(2, 1.0), SUM),
    "evaluation": evaluation(LABELLED),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_trial_reads_no_record_and_charges_nothing(make_hospital, module, kind):
    hospital = make_hospital(RECORDS, classes=5)
    hospital.pipeline.lab = replace(hospital.lab, records=Untouchable(), labels=NoLabels())
    parameters = hospital.declare(module, KINDS[kind], batch_size=24 if kind == "evaluation" else 20)
    entries = len(list(hospital.ledger.history()))
    took = hospital.trials.step_time(hospital.admit(parameters), hospital.extractor(parameters))
    assert 0.0 < took.processor_s < 60.0
    assert 0.0 < took.wall_s < 60.0
    assert len(list(hospital.ledger.history())) == entries


def test_what_computes_side_by_side_divides_the_time_of_a_sum_over_every_record_and_of_nothing_else(
    make_hospital, module, monkeypatch
):
    monkeypatch.setattr(TrialTimes, "step_time", lambda self, run, once: once(None, 1.0))
    clock = itertools.count()  # every look at it is a second later
    monkeypatch.setattr(
        trial_run, "time", SimpleNamespace(monotonic=lambda: float(next(clock)), thread_time=lambda: 0.0)
    )
    seconds = {}
    for speedup in (1.0, 4.0):
        hospital = make_hospital(RECORDS, classes=5, pass_speedup=speedup)
        for kind in ("rows", "evaluation"):
            parameters = hospital.declare(module, KINDS[kind], batch_size=24)
            took = hospital.trials.step_time(hospital.admit(parameters), hospital.extractor(parameters))
            seconds[kind, speedup] = took.wall_s
    assert seconds["evaluation", 4.0] == seconds["evaluation", 1.0] / 4.0
    assert seconds["rows", 4.0] == seconds["rows", 1.0] > 0.0


def test_a_trial_reaches_no_named_point(make_hospital, module):
    seen = []
    hospital = make_hospital(RECORDS, checkpoint=seen.append)
    parameters = hospital.declare(module, rows(), batch_size=20)
    hospital.trials.step_time(hospital.admit(parameters), hospital.extractor(parameters))
    assert seen == []


def test_a_trial_meets_numbers_that_reach_every_operation():
    shape = (3, 6)
    for value in trial_run.KINDS.values():
        made = MadeRecords(24, (6,), value).take(np.arange(3))
        assert made.shape == shape
        assert made.dtype == np.float32
        assert value is None or np.array_equal(made, np.full(shape, value, np.float32), equal_nan=True)


def test_a_run_of_slow_steps_is_refused(make_hospital, module):
    hospital = make_hospital(RECORDS)
    parameters = hospital.declare(module, rows(), batch_size=20)
    hospital.trials._most_seconds = 1e-6
    with pytest.raises(RequestInvalid, match="use a smaller batch or extractor"):
        hospital.trials.step_time(hospital.admit(parameters), hospital.extractor(parameters))


@pytest.mark.parametrize("error", [RuntimeError("of torch's"), WorkerFailed([{"type": "RuntimeError"}])], ids=repr)
def test_made_records_that_fail_are_refused_in_words_and_not_an_incident(make_hospital, module, monkeypatch, error):
    """Attack: each attempt to open such a run wrote an incident."""

    def fail(*_):
        raise error

    hospital = make_hospital(RECORDS)
    parameters = hospital.declare(module, rows(), batch_size=20)
    run, extractor = hospital.admit(parameters), hospital.extractor(parameters)
    monkeypatch.setattr(trial_run, "computed", fail)
    with pytest.raises(RequestInvalid, match="declare steps that cannot be computed: made records failed"):
        hospital.trials.step_time(run, extractor)


def test_a_step_that_reads_every_record_is_tried_on_some_of_them(make_hospital, module):
    hospital = make_hospital(RECORDS, classes=5)
    admitted = hospital.admit(hospital.declare(module, evaluation(LABELLED), batch_size=24))
    facts = replace(admitted.facts, data=replace(admitted.facts.data, records=100_000))
    made, labels, scale = MadeRecords.for_run(replace(admitted, facts=facts))
    assert (made.count, len(labels), scale) == (4096, 4096, 100_000 / 4096)
    assert sorted(set(labels.tolist())) == [0, 1, 2, 3, 4]
    assert made.take(np.arange(7)).shape == (7, 6)
    for share, count in ((0.0, 256), (0.01, 1000), (1.0, 4096)):
        made, _, scale = MadeRecords.for_run(replace(admitted, facts=facts), share=share)
        assert (made.count, scale) == (count, 100_000 / count)


@pytest.mark.parametrize(("pass_s", "share"), [(0.5, 1.0), (40.0, 0.1), (4000.0, 0.001)])
def test_a_pass_that_takes_long_is_tried_on_fewer_records(pass_s, share):
    """Four passes of a ResNet over 3,000 images took longer than any client waits for a run to open."""
    shares = []

    def once(value, part):
        shares.append(part)
        return StepTime(pass_s, pass_s / 2)

    assert trial_run._measured(once) == (pass_s, pass_s / 2)
    assert shares[0] == 0.0
    assert set(shares[1:]) == {share}


def _declared(declared=None, *, batch_size=40, steps=3):
    name, declaration = declared or rows(directions=10)
    parameters = RunParameters("a" * 64, "b" * 64, name, declaration.to_bytes(), batch_size, steps)
    data, model = DataSetFacts(records=10**6, record_shape=(6,)), ModelFacts((6,), 5, {"0.weight": (8, 6)})
    return admit_run(parameters, mechanisms=ALL_MECHANISMS, data=data, model=model, limits=Limits())


def test_each_kind_of_step_is_measured_once():
    trials, measured = TrialTimes(), []

    def once(value, share):
        measured.append((value, share))
        return StepTime(2.0, 1.0)

    times = 1 + len(trial_run.KINDS)
    noisier = rows(3.0, directions=10)
    for run in (_declared(), _declared(steps=9), _declared(noisier)):
        assert trials.step_time(run, once) == (2.0, 1.0)
    assert len(measured) == times  # neither the number of steps nor the noise changes what a step takes
    for run in (_declared(batch_size=50), _declared(rows(directions=11)), _declared(quantiles(2, 1.0, directions=10))):
        trials.step_time(run, once)
    assert len(measured) == 4 * times
    summed = gradient(rows(directions=10), SUM)
    for run in (_declared(summed), _declared(gradient(rows(directions=10), replace(SUM, clip_norm=0.2, sigma=2.0)))):
        trials.step_time(run, once)
    assert len(measured) == 5 * times


def test_a_trial_takes_what_the_slowest_records_need_on_a_quiet_machine():
    """Attack: a busy machine during the trial made the quantum arbitrary, 26 ms or 1,446 ms for one graph."""
    rng = np.random.default_rng(5)

    def once(value, _share):
        needed = 0.03 if value is not None and np.isnan(value) else 0.02
        waited = rng.exponential(0.03) * (rng.random() < 0.6)  # others want the machine as well
        return StepTime(needed + waited, needed)

    took = [TrialTimes().step_time(_declared(), once) for _ in range(20)]
    assert {each.processor_s for each in took} == {0.03}
    seconds = [each.wall_s for each in took]
    assert max(seconds) < 1.2 * min(seconds)
    assert min(seconds) >= 0.03


def worker_pool():
    return WorkerPool(WorkerSettings(device="cpu", threads=1, memory_bytes=1 << 30, seconds=60.0), workers=1)


@pytest.mark.parametrize("isolation", ["in-process", "worker"])
def test_waiting_for_a_processor_is_no_part_of_what_fixes_a_quantum(make_hospital, module, isolation):
    """Attack: quanta of 100 and 150 ms for one graph, by the load."""
    hospital = make_hospital(RECORDS)
    parameters = hospital.declare(module, gradient(rows(), SUM), batch_size=20)
    run, extractor = hospital.admit(parameters), hospital.extractor(parameters)
    with contextlib.ExitStack() as stack:
        engine = hospital.pipeline.evaluator
        if isolation == "worker":
            engine = stack.enter_context(contextlib.closing(worker_pool()))
        hospital.pipeline.evaluator = Delayed(engine, lambda: time.sleep(0.3))  # for its turn at a processor
        took = hospital.trials.step_time(run, extractor)
    assert took.wall_s >= 0.3
    assert 0.0 < took.processor_s < took.wall_s - 0.25


def test_the_processor_time_of_the_worker_counts(make_hospital, module):
    hospital = make_hospital(RECORDS)
    extractor = hospital.extractor(hospital.declare(module, rows(), batch_size=20))
    with contextlib.closing(worker_pool()) as pool, pool.session(extractor) as session:
        processors = trial_run.ProcessorClock()
        processors.enter(session)
        before, own = session.processor_seconds(), time.thread_time()
        for _ in range(20):
            session.features(RECORDS)
        own, theirs = time.thread_time() - own, session.processor_seconds() - before
        assert theirs > 0.0
        assert own + theirs <= processors.seconds()


def test_a_trial_is_of_the_largest_request(make_hospital, module):
    hospital = make_hospital(RECORDS)
    admitted = hospital.admit(hospital.declare(module, gradient(rows(), SUM), batch_size=20))
    made = admitted.asked(admitted.synthetic()).request
    assert made.source.shape == (admitted.declaration.source_features, 5)
    assert made.adapted.shape == (48,)
    assert made.feature_map is not None


def test_the_memory_of_trials_is_bounded():
    trials = TrialTimes()
    for batch in range(20, MAX_REMEMBERED + 70):
        trials.step_time(_declared(batch_size=batch), lambda *_: StepTime(2.0, 2.0))
    assert len(trials._times) == MAX_REMEMBERED


def test_a_remembered_trial_keeps_nothing_of_its_request():
    """A request may have tens of megabytes, and 256 trials are remembered."""
    trials = TrialTimes()

    class Once:
        def __call__(self, value, share):
            return StepTime(2.0, 2.0)

    once = Once()
    alive = weakref.ref(once)
    trials.step_time(_declared(), once)
    del once
    assert alive() is None


def test_a_step_whose_time_was_measured_makes_no_request_for_a_trial(make_hospital, module, monkeypatch):
    hospital = make_hospital(RECORDS)
    parameters = hospital.declare(module, gradient(rows(), SUM), batch_size=20)
    run, extractor = hospital.admit(parameters), hospital.extractor(parameters)
    seconds, made = hospital.trials.step_time(run, extractor), []
    monkeypatch.setattr(type(ALL_MECHANISMS["gradient"]), "synthetic", lambda *given: made.append(given))
    assert hospital.trials.step_time(run, extractor) == seconds
    assert made == []
