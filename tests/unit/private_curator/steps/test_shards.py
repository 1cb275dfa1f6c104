"""Sums over every record in shards: the same release however they are divided, lost, repeated or late."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hospital import NoNoise

from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.records.mapped import MappedRecords
from dpswd.private_curator.records.target import Target
from dpswd.private_curator.sandbox.process import LimitReached
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.private_curator.steps.shards import LocalShards, ShardLost, gathered, shards
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.errors import ExtractionStopped
from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration
from dpswd.shared.core.mechanisms.evaluation.mechanism import EVALUATION, EvaluationDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts
from dpswd.shared.core.mechanisms.linear import LinearRun
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.steps.computing import Laboratory, completed

CPU = torch.device("cpu")
N, VALUES, CLASSES = 100_011, 24, 3


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    """Records in their file, labels, a linear extractor, and an engine in this process."""
    path = tmp_path_factory.mktemp("records") / "records.npy"
    rng = np.random.default_rng(0)
    np.save(path, rng.normal(size=(N, VALUES)).astype(np.float32))
    stored = MappedRecords(path, offset=128, dtype=np.dtype(np.float32), shape=(N, VALUES))
    torch.manual_seed(0)
    module = torch.nn.Linear(VALUES, CLASSES)
    graph = trace(module, (VALUES,))
    sent = graph.to_bytes(), weights_to_bytes(module_weights(module, graph))
    source = ExtractorSource("key", ModelFacts.of(graph), lambda: sent)
    labels = rng.integers(CLASSES, size=N).astype(np.int8)
    local = LocalShards(
        LocalEngine(device=CPU), records=Target(stored, (VALUES,)), labels=labels, device=CPU, parallel=2
    )
    return source, local


def runs():
    facts = Facts(DataSetFacts(N, (VALUES,), CLASSES), ModelFacts((VALUES,), CLASSES, {}))
    public = FeatureMap(torch.full((CLASSES,), 0.1), torch.full((CLASSES,), 0.3))
    return (
        LinearRun(CLASS_STATISTICS, StatisticsDeclaration(CLASSES, 0.7, 0.7, 0.5, 4.0, public), facts),
        LinearRun(EVALUATION, EvaluationDeclaration(CLASSES, 3.0, 3.0, 5, 3.0), facts),
    )


class CountedNoise(NoNoise):
    """Says how often noise was drawn."""

    drawn = 0

    def grid_gaussian(self, shape, *, sigma, step):
        self.drawn += 1
        return super().grid_gaussian(shape, sigma=sigma, step=step)


def finished(run, parts):
    noise = CountedNoise()
    reply = completed(run, parts, Laboratory(None, None, noise, CPU, lambda: bytes(32), lambda _: None))
    return reply, noise.drawn


def test_any_division_loss_and_order_releases_the_same_bits_with_one_noise(hospital):
    source, local = hospital
    for run in runs():
        whole, drawn = finished(run, [local.sum(run, source, shards(run.facts, 1)[0])])
        assert drawn == (3 if run.mechanism is EVALUATION else 2)  # of the release's parts, not of the shards
        for count in (2, 7):
            parts = [local.sum(run, source, shard) for shard in shards(run.facts, count)]
            assert len(parts) == count
            assert finished(run, reversed(parts)) == (whole, drawn)
        assert finished(run, local.sums(run, source)) == (whole, drawn)

        # The third shard is lost twice; the first hangs until a second copy of it has come.
        asked, begun, lock = {}, threading.Event(), threading.Lock()

        def unreliable(shard, run=run, asked=asked, begun=begun, lock=lock):
            with lock:
                asked[shard] = asked.get(shard, 0) + 1
                number = asked[shard]
            place = shards(run.facts, 7).index(shard)
            if place == 2 and number <= 2:
                raise ShardLost("its process has ended")
            if place == 0:
                if number == 1:
                    assert begun.wait(30.0)
                begun.set()
            return local.sum(run, source, shard)

        with ThreadPoolExecutor(3) as threads:
            parts = gathered(
                shards(run.facts, 7),
                lambda shard, f=unreliable, pool=threads: pool.submit(f, shard),
                at_once=lambda: 3,
                least_straggling_s=0.05,
            )
            assert finished(run, parts) == (whole, drawn)
        places = {shards(run.facts, 7).index(shard): times for shard, times in asked.items()}
        assert places[0] == 2
        assert places[2] == 3


def test_a_shard_that_is_always_lost_and_one_that_meets_a_limit_end_the_step():
    parts = shards(runs()[0].facts, 3)

    def failing(error):
        future: Future = Future()
        future.set_exception(error)
        return future

    for error, times in ((ShardLost("ended"), 3), (LimitReached("too long"), 1)):
        asked = []

        def submit(shard, error=error, asked=asked):
            asked.append(shard)
            return failing(error)

        with pytest.raises(ExtractionStopped):
            list(gathered(parts[:1], submit, at_once=lambda: 2, attempts=3))
        assert len(asked) == times


def test_a_cluster_waits_for_one_copy_and_one_machine_makes_none():
    """The first copy of a shard never returns. A second one ends the step; without copies the deadline does."""
    parts = shards(runs()[0].facts, 3)

    def submitting(asked):
        def submit(shard):
            asked.append(shard)
            future: Future = Future()
            if shard != parts[0] or asked.count(shard) == 2:
                future.set_result(shard)
            return future

        return submit

    asked = []
    steady = {"at_once": lambda: 2, "least_straggling_s": 0.02}
    assert set(gathered(parts, submitting(asked), **steady)) == set(parts)
    assert asked.count(parts[0]) == 2
    asked = []
    with pytest.raises(ExtractionStopped, match=r"longer than 0\.4 seconds; nothing was released"):
        list(gathered(parts, submitting(asked), copies=False, pass_seconds=0.2, **steady))
    assert sorted(asked, key=parts.index) == list(parts)


def test_a_local_shard_that_never_returns_does_not_hold_the_step(hospital, monkeypatch):
    source, local = hospital
    released = threading.Event()
    monkeypatch.setattr(local, "_pass_seconds", 0.1)
    monkeypatch.setattr(local, "sum", lambda *_: released.wait(30.0))
    begun = time.monotonic()
    try:
        with pytest.raises(ExtractionStopped, match="longer than"):
            list(local.sums(runs()[0], source))
        assert time.monotonic() - begun < 10.0
    finally:
        released.set()


def test_a_pass_reads_the_file_in_blocks_and_not_as_a_whole(hospital, monkeypatch):
    """Every read is of one block at most, and neighbours are read at once."""
    source, local = hospital
    read = []
    monkeypatch.setattr(MappedRecords, "_read", _noting(MappedRecords._read, read))
    local.sum(runs()[0], source, shards(runs()[0].facts, 1)[0])
    assert max(read) == 16384 * VALUES * 4
    assert sum(read) == N * VALUES * 4
    assert len(read) == -(-N // 16384)


def _noting(original, sizes):
    def read(self, into, place):
        sizes.append(len(into))
        return original(self, into, place)

    return read
