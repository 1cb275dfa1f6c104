from __future__ import annotations

import contextlib
import uuid

import numpy as np
import pytest
import torch
from declarations import evaluation, gradient, quantiles, rows
from torch import nn

from dpswd.private_curator.core.ledger.sqlite import file_lock, write_lock
from dpswd.private_curator.records.target import Target
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.private_curator.steps.shards import LocalShards, ShardLost
from dpswd.shared.core.errors import ExtractionStopped, LedgerUnavailable, RequestIdReused, RunFinished, StepGivenUp
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis
from dpswd.shared.core.mechanisms.sliced import SlicedRequest
from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.messages import StepRelease
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.cotangents import (
    QuantileCotangent,
    noised_source_projections,
    row_cotangents,
)
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest

INPUTS, FEATURES = 6, 5
RNG = np.random.default_rng(7)
RECORDS = RNG.normal(size=(24, INPUTS)).astype(np.float32)
SOURCE = (RNG.normal(size=(17, FEATURES)) + 0.3).astype(np.float32)
MAP = FeatureMap(center=torch.full((FEATURES,), 0.1), scale=torch.full((FEATURES,), 0.6))
BRINGS = GradientRequest(SOURCE)
POINTS = ["consumed", "sampled", "directed", "extracted", "released", "sanitized", "stored"]


@pytest.fixture
def module():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, FEATURES))


def _features(module, records=RECORDS):
    with torch.no_grad():
        raw = module(torch.from_numpy(records))
    return clip_records((raw - MAP.center) * MAP.scale)


def _number(stored):
    """Of the step that a stored reply answers."""
    return StepRelease.from_bytes(stored.reply).step


def _rows(sigma=1.0):
    return rows(sigma, feature_map=MAP)


def _quantiles(coefficients, sigma=1.0):
    return quantiles(coefficients, sigma, feature_map=MAP)


def _run(hospital, module, declared, *, batch_size=24, **options):
    parameters = hospital.declare(module, declared, batch_size=batch_size, **options)
    return hospital.open_run(parameters), parameters


ALL_SIZE = INPUTS * 8 + 8 + 8 * FEATURES + FEATURES
ALL = ClippedSum(("0.weight", "0.bias", "2.weight", "2.bias"), clip_norm=0.05, sigma=0.5)


def test_without_noise_the_rows_are_the_clipped_projections_in_a_random_order(make_hospital, module, no_noise):
    hospital = make_hospital(RECORDS, noise=no_noise)
    run, parameters = _run(hospital, module, _rows())
    reply = hospital.reply(parameters, hospital.step(run, parameters))
    released = reply.values.to_tensor().numpy()
    U = directions(reply.seed, FEATURES, 20)
    expected = (_features(module) @ U).numpy()
    half_step = 0.5 / 2048 + 1e-6
    np.testing.assert_allclose(np.sort(released, axis=0), np.sort(expected, axis=0), atol=half_step)
    order = np.argmin(np.abs(released[:, None, :] - expected[None]).max(axis=2), axis=1)
    np.testing.assert_allclose(released, expected[order], atol=half_step)
    assert list(order) != list(range(len(RECORDS)))  # 1 in 24! by chance


def test_every_step_takes_a_sample_of_its_own(make_hospital, module, no_noise):
    """Which is what is priced. Of twelve pairs of 24 records six or fewer are different with less than 1e-8."""
    hospital = make_hospital(RECORDS, noise=no_noise)
    run, parameters = _run(hospital, module, _rows(), batch_size=2, steps=12)
    taken = set()
    for _ in range(12):
        reply = hospital.reply(parameters, hospital.step(run, parameters))
        expected = (_features(module) @ directions(reply.seed, FEATURES, 20)).numpy()
        apart = np.abs(reply.values.to_tensor().numpy()[:, None, :] - expected[None]).max(axis=2)
        taken.add(frozenset(np.argmin(apart, axis=1)))
    assert all(len(sample) == 2 for sample in taken)
    assert len(taken) > 6


def test_without_noise_the_coefficients_are_those_of_the_sorted_projections(make_hospital, module, no_noise):
    hospital = make_hospital(RECORDS, noise=no_noise)
    run, parameters = _run(hospital, module, _quantiles(4))
    reply = hospital.reply(parameters, hospital.step(run, parameters))
    U = directions(reply.seed, FEATURES, 20)
    expected = cosine_basis(24, 4).float().T @ (_features(module) @ U).sort(dim=0).values
    np.testing.assert_allclose(reply.values.to_tensor().numpy(), expected.numpy(), atol=0.5 / 2048 + 1e-5)


@pytest.mark.parametrize("sliced", [_rows(), _quantiles(3)], ids=["rows", "quantiles"])
def test_without_noise_the_gradient_is_the_clipped_sum_over_records(make_hospital, module, no_noise, sliced):
    """Second derivation: one record after the other by plain autograd, no vmap and no closed form of the clip."""
    hospital = make_hospital(RECORDS, noise=no_noise)
    run, parameters = _run(hospital, module, gradient(sliced, ALL))
    reply = hospital.reply(parameters, hospital.step(run, parameters, BRINGS))
    U = directions(reply.sliced.seed, FEATURES, 20)
    source = clip_records((torch.from_numpy(SOURCE) - MAP.center) * MAP.scale)
    values = reply.sliced.values.to_tensor()
    if sliced[0] == "rows":
        noised = noised_source_projections(source, U, sigma=1.0, seed=reply.sliced.seed)
        moves, scale = row_cotangents(values, noised, U)
        projections = (_features(module) @ U).numpy()
        order = np.argmin(np.abs(values.numpy()[:, None, :] - projections[None]).max(axis=2), axis=1)
        cotangents = {int(record): moves[row] for row, record in enumerate(order)}
    else:
        function = QuantileCotangent.from_release(values, source, U, batch=24)
        cotangents, scale = dict(enumerate(function.batch(_features(module)))), function.scale
    total = torch.zeros(ALL_SIZE)
    weights = dict(module.named_parameters())
    for i, record in enumerate(torch.from_numpy(RECORDS)):
        mapped = (module(record) - MAP.center) * MAP.scale
        clipped = mapped * (0.5 / mapped.norm()).clamp(max=1.0)
        grads = torch.autograd.grad((clipped * cotangents[i]).sum(), [weights[name] for name in ALL.parameters])
        flat = torch.cat([g.reshape(-1) for g in grads])
        total += flat * (ALL.clip_norm / flat.norm()).clamp(max=1.0)
    released = reply.gradient.to_tensor().numpy()
    assert reply.cotangent_scale == pytest.approx(scale, rel=1e-4)
    np.testing.assert_allclose(released, total.numpy(), atol=24 * 0.5 * ALL.sigma / 2048)
    assert np.linalg.norm(released) > 0.05  # not zero against zero
    clipped_rows = (_features(module).norm(dim=1) > 0.499).sum()
    assert 3 < clipped_rows < 21  # both sides of the clip are exercised


def test_the_order_of_events(make_hospital, module):
    seen: list[str] = []
    hospital = make_hospital(RECORDS, checkpoint=seen.append)
    run, parameters = _run(hospital, module, gradient(_quantiles(2), ALL))
    hospital.step(run, parameters, BRINGS)
    assert seen == POINTS
    assert hospital.ledger.run(client="ml-team", run_id=run.run_id).steps_used == 1


def test_a_repeat_gets_the_same_bytes_and_computes_nothing(make_hospital, module):
    seen: list[str] = []
    hospital = make_hospital(RECORDS, checkpoint=seen.append)
    run, parameters = _run(hospital, module, _rows())
    request = str(uuid.uuid4())
    first = hospital.step(run, parameters, request_id=request)
    count = len(seen)
    second = hospital.step(run, parameters, request_id=request)
    assert (second.reply, second.receipt) == (first.reply, first.receipt)
    assert len(seen) == count


def test_another_request_draws_everything_anew(make_hospital, module):
    hospital = make_hospital(RECORDS)
    run, parameters = _run(hospital, module, _rows(), batch_size=8)
    replies = [hospital.step(run, parameters) for _ in range(3)]
    assert [_number(stored) for stored in replies] == [1, 2, 3]
    assert len({hospital.reply(parameters, stored).seed for stored in replies}) == 3
    with pytest.raises(RunFinished):
        hospital.step(run, parameters)


def test_an_id_with_other_content_is_refused(make_hospital, module):
    hospital = make_hospital(RECORDS)
    run, parameters = _run(hospital, module, gradient(_quantiles(2), ALL))
    request = str(uuid.uuid4())
    hospital.step(run, parameters, BRINGS, request_id=request)
    with pytest.raises(RequestIdReused):
        hospital.step(run, parameters, GradientRequest(SOURCE + 1), request_id=request)


class Fault(Exception):
    pass


@pytest.mark.parametrize("point", POINTS[:-1])
def test_a_step_that_fails_anywhere_releases_nothing_and_can_be_repeated(make_hospital, module, point):
    failing = True

    def checkpoint(name):
        if failing and name == point:
            raise Fault

    hospital = make_hospital(RECORDS, checkpoint=checkpoint)
    run, parameters = _run(hospital, module, gradient(_quantiles(2), ALL))
    request = str(uuid.uuid4())
    with pytest.raises(Fault):
        hospital.step(run, parameters, BRINGS, request_id=request)
    failing = False
    stored = hospital.step(run, parameters, BRINGS, request_id=request)
    assert _number(stored) == 1
    assert hospital.ledger.run(client="ml-team", run_id=run.run_id).steps_used == 1
    assert hospital.pipeline.idle()
    assert hospital.ledger.verify().ok


def test_how_often_a_step_may_fail_is_bounded(make_hospital, module):
    def checkpoint(name):
        if name == "sampled":
            raise Fault

    hospital = make_hospital(RECORDS, checkpoint=checkpoint, max_attempts=2)
    run, parameters = _run(hospital, module, _rows())
    request = str(uuid.uuid4())
    outcomes = []
    for _ in range(4):
        with pytest.raises((Fault, StepGivenUp)) as caught:
            hospital.step(run, parameters, request_id=request)
        outcomes.append(caught.type)
    assert outcomes == [Fault, Fault, StepGivenUp, StepGivenUp]
    assert _attempts_written(hospital) == [2]  # a step that is given up writes nothing more


def test_why_a_worker_was_stopped_reaches_the_client(make_hospital, module, monkeypatch):
    """Those words are made of settings; other errors from inside do not travel."""
    hospital = make_hospital(RECORDS)
    run, parameters = _run(hospital, module, _rows())

    def stopped(_):
        raise ExtractionStopped("it took longer than 3 s")

    monkeypatch.setattr(hospital.pipeline.evaluator, "session", stopped)
    with pytest.raises(ExtractionStopped, match="3 s"):
        hospital.step(run, parameters)


def _attempts_written(hospital):
    return [entry.payload["attempt"] for entry in hospital.ledger.history() if entry.kind == "step-resumed"]


def test_a_step_that_is_given_up_does_not_block_its_run(make_hospital, module):
    failing = True

    def checkpoint(name):
        if failing and name == "extracted":
            raise Fault

    hospital = make_hospital(RECORDS, checkpoint=checkpoint, max_attempts=1)
    run, parameters = _run(hospital, module, _rows(), steps=2)
    poisoned = str(uuid.uuid4())
    with pytest.raises(Fault):
        hospital.step(run, parameters, request_id=poisoned)
    failing = False
    with pytest.raises(StepGivenUp, match=r"step 1 of this run failed 1 times.*next step under a new request id"):
        hospital.step(run, parameters, request_id=poisoned)
    assert _number(hospital.step(run, parameters)) == 2
    with pytest.raises(RunFinished):
        hospital.step(run, parameters)  # the step that was given up stays charged


class Outage(LocalShards):
    """This machine's shards behind a network that fails: before a step, or in the middle of one."""

    away = lost = False

    def ready(self):
        if self.away:
            raise ExtractionStopped("no machine computes now")

    def sums(self, run, extractor):
        for part in super().sums(run, extractor):
            yield part
            if self.lost:
                self.away = True
                raise ShardLost("a node was lost")


def test_an_outage_costs_one_attempt_and_not_all_of_them(make_hospital, module):
    """Machines are lost during the step, which counts, and stay away for longer than attempts would last."""
    labels, cpu = np.arange(24) % FEATURES, torch.device("cpu")
    shards = Outage(LocalEngine(device=cpu), records=Target(RECORDS, (INPUTS,)), labels=labels, device=cpu, parallel=1)
    hospital = make_hospital(RECORDS, labels=labels, classes=FEATURES, shards=shards, max_attempts=2)
    labelled = evaluation(EvaluationDeclaration(FEATURES, correct_sigma=1.0, bins=3, calibration_sigma=1.0))
    run, parameters = _run(hospital, module, labelled)
    request = str(uuid.uuid4())
    shards.lost = True
    for _ in range(6):
        with pytest.raises(ExtractionStopped):
            hospital.step(run, parameters, request_id=request)
    assert _attempts_written(hospital) == []  # the first began, the others did not
    assert hospital.ledger.run(client="ml-team", run_id=run.run_id).steps_used == 1
    shards.away = shards.lost = False
    stored = hospital.step(run, parameters, request_id=request)
    assert _number(stored) == 1
    assert _attempts_written(hospital) == [2]


def test_a_reply_that_could_not_be_stored_does_not_count_as_a_failed_step(make_hospital, module):
    """A full disk or a locked ledger says nothing about a record, and passes: the step must not be lost to it."""
    locked = True

    def checkpoint(name):
        if locked and name == "released":
            holding.enter_context(file_lock(write_lock(hospital.home.ledger), timeout_s=0.0, held_by="this test"))

    hospital = make_hospital(RECORDS, checkpoint=checkpoint, max_attempts=1, lock_timeout_s=0.01)
    run, parameters = _run(hospital, module, _rows())
    request = str(uuid.uuid4())
    for _ in range(3):
        with contextlib.ExitStack() as holding, pytest.raises(LedgerUnavailable):
            hospital.step(run, parameters, request_id=request)
    locked = False
    assert _number(hospital.step(run, parameters, request_id=request)) == 1
    assert _attempts_written(hospital) == []
    assert hospital.ledger.verify().ok


@pytest.mark.parametrize("sliced", [_rows(), _quantiles(2)], ids=["rows", "quantiles"])
def test_hostile_records_change_no_size_and_break_nothing(make_hospital, tmp_path, module, sliced):
    """Zero, huge and tiny records: the reply has the same length, and every value is finite."""
    lengths = set()
    for number, scale in enumerate((0.0, 1e-38, 1.0, 1e38)):
        records = np.full((24, INPUTS), scale, np.float32)
        hospital = make_hospital(records, directory=tmp_path / str(number))
        run, parameters = _run(hospital, module, gradient(sliced, ALL))
        stored = hospital.step(run, parameters, BRINGS)
        reply = hospital.reply(parameters, stored)
        assert torch.isfinite(reply.sliced.values.to_tensor()).all()
        assert torch.isfinite(reply.gradient.to_tensor()).all()
        lengths.add(len(stored.reply))
    assert len(lengths) == 1


def test_adapted_parameters_replace_the_uploaded_ones(make_hospital, module, no_noise):
    hospital = make_hospital(RECORDS, noise=no_noise)
    summed = ClippedSum(("2.weight", "2.bias"), 0.05, 0.5)
    run, parameters = _run(hospital, module, gradient(_quantiles(3), summed))
    zero = np.zeros(8 * FEATURES + FEATURES, np.float32)
    reply = hospital.reply(parameters, hospital.step(run, parameters, GradientRequest(SOURCE, adapted=zero)))
    released = reply.sliced.values.to_tensor().numpy()
    # All features are zero now, so every record maps to the same clipped point and only the mean coefficient is left.
    assert np.abs(released[1:]).max() < 1e-3
    assert np.abs(released[0]).max() > 0.01


def test_a_map_of_the_step_replaces_that_of_the_run(make_hospital, module, no_noise):
    hospital = make_hospital(RECORDS, noise=no_noise)
    run, parameters = _run(hospital, module, _quantiles(2))
    own = FeatureMap(center=MAP.center + 1.0, scale=2.0 * MAP.scale)
    reply = hospital.reply(parameters, hospital.step(run, parameters, SlicedRequest(own)))
    with torch.no_grad():
        mapped = clip_records((module(torch.from_numpy(RECORDS)) - own.center) * own.scale)
    projected = (mapped @ directions(reply.seed, FEATURES, 20)).sort(dim=0).values
    expected = cosine_basis(24, 2).float().T @ projected
    np.testing.assert_allclose(reply.values.to_tensor().numpy(), expected.numpy(), atol=0.5 / 2048 + 1e-5)


def test_denormal_numbers_cost_no_time_of_their_own(make_hospital, module):
    """A client writes the graph; numbers below 1e-38, 16 to 80 times slower, would show some records in the clock."""
    products: list[float] = []
    hospital = make_hospital(
        RECORDS, checkpoint=lambda _: products.append(float(torch.tensor(1e-30) * torch.tensor(1e-10)))
    )
    run, parameters = _run(hospital, module, _rows())
    hospital.step(run, parameters)
    seen = dict(zip([point for point in POINTS if point != "sanitized"], products, strict=True))
    assert seen["sampled"] == seen["extracted"] == seen["released"] == 0.0
    assert seen["consumed"] > 0.0  # the ledger and the accountant keep the whole of float arithmetic
    assert seen["stored"] > 0.0
