"""Real workers: what they compute, what they cannot do, and what happens when they are ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.sandbox import process
from dpswd.private_curator.sandbox.confinement import probe
from dpswd.private_curator.sandbox.pool import MAX_LOADED, WorkerPool
from dpswd.private_curator.sandbox.process import WorkerFailed, WorkerProcess, WorkerSettings
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.errors import ExtractionStopped, RequestInvalid, SettingsError
from dpswd.shared.core.mechanisms.interface import ModelFacts

PROGRAM = (sys.executable, "-P", str(Path(__file__).with_name("worker_program.py")))
SHAPE = (1, 12, 12)
MEBIBYTE = 1 << 20
RECORDS = np.random.default_rng(1).random((40, *SHAPE), dtype=np.float32)


def source(module: nn.Module, shape: tuple[int, ...] = SHAPE, *, key: str = "small") -> ExtractorSource:
    graph = trace(module, shape)
    weights = weights_to_bytes(module_weights(module, graph))
    facts = ModelFacts(graph.input_shape, graph.feature_dimension, graph.parameter_shapes)
    return ExtractorSource(key=key, facts=facts, read=lambda: (graph.to_bytes(), weights))


def small() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(75, 6), nn.Tanh())


def settings(
    *, memory: int = 512, seconds: float = 60.0, program: tuple[str, ...] = PROGRAM, device: str = "cpu"
) -> WorkerSettings:
    return WorkerSettings(device=device, threads=1, memory_bytes=memory * MEBIBYTE, seconds=seconds, program=program)


@pytest.fixture(scope="module")
def pool():
    made = WorkerPool(settings(), workers=1)
    yield made
    made.close()


@pytest.fixture
def limited():
    """Makes pools with narrow limits."""
    made: list[WorkerPool] = []

    def make(**limits):
        made.append(WorkerPool(settings(**limits), workers=1))
        made[-1].ready()
        return made[-1]

    yield make
    for each in made:
        each.close()


def evaluate(engine, extractor, *, names=(), adapted=None, records=RECORDS):
    with engine.session(extractor) as session:
        features = session.features(records, names=names, adapted=adapted)
        if not names:
            return features, None
        return features, session.gradients(torch.ones_like(features)).clone()


def ask(pool, message, *, seconds=30.0):
    """Runs one of this test's own operations inside a worker."""
    with pool._taken() as place:
        return place.ensure().ask(message, deadline=time.monotonic() + seconds)


@pytest.mark.parametrize("changed", [False, True])
def test_a_worker_computes_what_the_curator_would(pool, changed):
    extractor, names = source(small()), ("4.weight", "4.bias")
    adapted = np.linspace(-1, 1, 75 * 6 + 6, dtype=np.float32) if changed else None
    here = evaluate(LocalEngine(device=torch.device("cpu")), extractor, names=names, adapted=adapted)
    there = evaluate(pool, extractor, names=names, adapted=adapted)
    torch.testing.assert_close(there[0], here[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(there[1], here[1], rtol=1e-4, atol=1e-6)
    assert there[1].shape == (40, 456)
    assert there[1].abs().sum() > 1.0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_worker_on_a_gpu_computes_the_same_and_is_confined(limited, tmp_path):
    pool = limited(device="cuda", memory=4096)
    extractor, names = source(small()), ("4.weight", "4.bias")
    here = evaluate(LocalEngine(device=torch.device("cpu")), extractor, names=names)
    for _ in range(2):
        there = evaluate(pool, extractor, names=names)
        torch.testing.assert_close(there[0], here[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(there[1], here[1], rtol=1e-4, atol=1e-6)
    (tmp_path / "ledger.key").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        could = pool.probe(port=listener.getsockname()[1], secret=str(tmp_path / "ledger.key"))
    assert not any(could.values()), could


def test_what_a_worker_must_not_do_it_cannot(pool, tmp_path):
    secret = tmp_path / "ledger.key"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        here = probe(port=port, secret=str(secret))
        there = pool.probe(port=port, secret=str(secret))
    assert here == dict.fromkeys(here, True)  # the attempts are real: outside of a worker each succeeds
    assert there == dict.fromkeys(here, False)


def test_code_inside_a_worker_finds_no_way_out(pool):
    evaluate(pool, source(small()))  # it holds shared memory now
    confinement = pool.ready()
    if not all(confinement.values()):
        pytest.skip(f"this machine confines less: {confinement}")
    could = ask(pool, {"op": "escape", "curator": os.getpid()})
    assert [name for name, worked in could.items() if worked] == []
    assert len(could) > 15
    evaluate(pool, source(small()))  # it still computes


def test_a_worker_inherits_no_secrets(pool, monkeypatch):
    monkeypatch.setenv("DPSWD_CURATOR_SECRET", "hush")
    fresh = WorkerPool(settings(), workers=1)
    try:
        environment = ask(fresh, {"op": "environment"})["environment"]
    finally:
        fresh.close()
    assert not [name for name in environment if "DPSWD" in name]
    assert set(environment) <= {"PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH", "OMP_NUM_THREADS",
                          "CUDA_VISIBLE_DEVICES", "SYSTEMROOT", "LC_CTYPE",
                          "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}  # fmt: skip


def test_a_graph_that_takes_too_long_is_ended_and_the_next_request_gets_a_fresh_worker(limited):
    pool = limited(seconds=2.0)
    slow = source(
        nn.Sequential(
            *[nn.Conv2d(1 if i == 0 else 48, 48, 5, padding=2) for i in range(12)], nn.Conv2d(48, 1, 1), nn.Flatten()
        ),
        (1, 64, 64),
        key="slow",
    )
    before = pool.pids
    with pytest.raises(ExtractionStopped, match=r"longer than 2 seconds .*nothing was released, repeat"):
        evaluate(pool, slow, records=np.zeros((256, 1, 64, 64), np.float32))
    with pytest.raises(ProcessLookupError):
        os.kill(before[0], 0)
    pool.ready()
    features, _ = evaluate(pool, source(small()))
    assert features.shape == (40, 6)
    assert pool.pids != before


def test_a_graph_that_eats_memory_is_ended_and_the_next_request_gets_a_fresh_worker(limited):
    pool = limited(memory=64)
    hungry = source(nn.Sequential(nn.Flatten(), nn.Linear(144, 3000)), key="hungry")
    before = pool.pids
    with pytest.raises(ExtractionStopped, match=r"more than 67108864 bytes \(compute\.worker_memory_bytes\)"):
        evaluate(pool, hungry, names=("1.weight",))  # 40 gradients of 432,000 numbers are 69 MB
    features, _ = evaluate(pool, source(small()), names=("4.bias",))
    assert features.shape == (40, 6)
    assert pool.pids != before


def test_an_upload_that_exceeds_a_limit_leaves_the_steps_worker_alone(limited):
    pool = limited(memory=64)
    evaluate(pool, source(small()))
    steps = pool.pids[0]
    graph, weights = source(nn.Sequential(nn.Flatten(), nn.Linear(144, 60_000)), key="large").read()
    with pytest.raises(ExtractionStopped):
        pool.check(graph, weights, client="ml-team")  # 35 MB of weights, twice
    pool.check(*source(small()).read(), client="ml-team")
    assert pool.pids[0] == steps


def test_one_client_s_upload_does_not_delay_another_s(limited):
    """Attack: all uploads waited for one lock, up to a fifth of compute.worker_seconds for each of them."""
    pool = limited(seconds=600.0)
    wide = [nn.Conv2d(1 if i == 0 else 48, 48, 5, padding=2) for i in range(12)]
    slow = source(nn.Sequential(*wide, nn.Conv2d(48, 1, 1), nn.Flatten()), (1, 64, 64)).read()
    outcome = []

    def upload():
        try:
            pool.check(*slow, client="another-team")
        except ExtractionStopped as error:  # the pool is closed before it is done
            outcome.append(error)

    first = threading.Thread(target=upload)
    first.start()
    try:
        while not pool._uploads:
            time.sleep(0.01)
        pool.check(*source(small()).read(), client="ml-team")
        assert first.is_alive()
        assert len(pool.pids) == 3
    finally:
        pool.close()
        first.join()
    assert outcome
    assert len(pool._uploads) <= 1, "one worker is kept for the next upload"


def test_a_pool_that_is_closed_says_so_to_whoever_waits():
    """Once `ready` said that no worker could be started; the curator took that for an incident."""
    starting = "import json, os, sys; os.read(json.loads(sys.stdin.readline())['lifeline'], 1)"  # and never ready
    pool, own = WorkerPool(settings(program=(sys.executable, "-I", "-c", starting)), workers=1), source(small())
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(pool.check, *own.read(), client="ml-team"), threads.submit(evaluate, pool, own)]
        while len(pool._uploads) < 1 or None in [
            each.worker.channel.gettimeout() for each in (*pool._for_steps, *pool._uploads)
        ]:
            time.sleep(0.01)
        pool.close()
        for each in asked:
            with pytest.raises(ExtractionStopped, match="closed its workers"):
                each.result(timeout=60)
    for late in (lambda: pool.check(*own.read(), client="ml-team"), lambda: evaluate(pool, own)):
        with pytest.raises(ExtractionStopped, match="closed its workers"):
            late()
    assert not any(each.worker.alive for each in (*pool._for_steps, *pool._uploads)), "one was started for nobody"


def test_a_channel_is_not_closed_under_whoever_is_about_to_read(monkeypatch):
    """Its number was another worker's channel by then, of which nothing came: one reader in a hundred waited on."""
    starting = "import json, os, sys; os.read(json.loads(sys.stdin.readline())['lifeline'], 1)"
    worker = WorkerProcess(settings(program=(sys.executable, "-I", "-c", starting)))
    about, go_on, really = threading.Event(), threading.Event(), process.receive

    def receive(channel):
        about.set()
        assert go_on.wait(timeout=60)
        assert channel.fileno() >= 0, "it is still this channel's"
        return really(channel)

    monkeypatch.setattr(process, "receive", receive)
    with ThreadPoolExecutor(2) as threads:
        reading = threads.submit(worker.ready)
        assert about.wait(timeout=60)
        closing = threads.submit(worker.close)
        while worker._lifeline >= 0:
            time.sleep(0.01)
        go_on.set()
        with pytest.raises(ExtractionStopped, match="closed its workers"):
            reading.result(timeout=60)
        closing.result(timeout=60)
    assert worker.channel.fileno() == -1
    assert not worker.alive


def test_bad_weights_are_refused_by_name_and_the_worker_goes_on(pool):
    graph, _ = source(small()).read()
    _, other = source(nn.Sequential(nn.Flatten(), nn.Linear(144, 2))).read()
    pool.check(graph, source(small()).read()[1], client="ml-team")
    before = pool.pids
    with pytest.raises(RequestInvalid, match="weights"):
        pool.check(graph, other, client="ml-team")
    assert pool.pids == before


@pytest.mark.parametrize("message", [{"op": "die"}, {"op": "sleep", "seconds": 60}])
def test_a_worker_that_dies_in_mid_step_is_replaced(pool, message):
    before = pool.pids[0]
    with pytest.raises(ExtractionStopped):
        ask(pool, message, seconds=0.5 if message["op"] == "sleep" else 30.0)
    features, _ = evaluate(pool, source(small()))
    assert features.shape == (40, 6)
    assert pool.pids[0] != before


def test_a_worker_that_dies_between_steps_is_not_noticed(pool):
    evaluate(pool, source(small()))
    os.kill(pool.pids[0], signal.SIGKILL)
    while pool._for_steps[0].worker.alive:
        time.sleep(0.01)
    features, _ = evaluate(pool, source(small()))
    assert features.shape == (40, 6)


def test_workers_end_with_their_curator_however_it_ends():
    """SIGKILL leaves no time to tidy up: an idle worker sees its channel close, a busy one its lifeline."""
    program = [sys.executable, str(Path(__file__).with_name("two_workers.py"))]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as curator:
        try:
            pids = [int(word) for word in curator.stdout.readline().split()]
            assert len(pids) == 2
            assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        finally:
            curator.kill()
    deadline = time.monotonic() + 60.0
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker outlives its curator"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_an_unexpected_error_leaves_a_worker_without_its_words(pool):
    with pytest.raises(WorkerFailed) as caught:
        ask(pool, {"op": "quote", "canary": "patient-4711"})
    assert "patient-4711" not in repr(caught.value.chain) + str(caught.value)
    assert caught.value.chain[0]["type"] == "builtins.ValueError"
    assert any("quote" in frame for frame in caught.value.chain[0]["frames"])


def test_a_worker_that_cannot_start_says_why(limited):
    broken = WorkerProcess(settings(program=(sys.executable, "-c", "raise SystemExit('no torch here')")))
    with pytest.raises(SettingsError, match=r"did not start \(no torch here\)"):
        broken.ready()


def test_many_steps_take_no_more_memory_than_few(pool):
    """Several extractors in turn, so that loading and dropping them counts as well."""
    extractors = [source(small(), key=f"small {i}") for i in range(MAX_LOADED + 2)]

    def steps(count):
        for number in range(count):
            evaluate(pool, extractors[number % len(extractors)], names=("4.weight",))
        return resident(pool.pids[0])

    steps(60)
    pid, before = pool.pids[0], resident(pool.pids[0])
    after = steps(240)
    assert pool.pids[0] == pid
    assert after - before < 4 * MEBIBYTE, (before, after)  # one step's gradients alone are 72 kB


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's allocator alone is told to keep memory"
)
@pytest.mark.usefixtures("true_starts")  # of some hundred forked workers one kept none
def test_a_step_keeps_its_memory_for_its_like_and_leaves_none_to_others():
    """Without being told, glibc gives the memory back after each part of the sample: mostly 1 to 3 MiB are left."""
    with contextlib.closing(WorkerPool(settings(), workers=1)) as pool:
        large, records = source(wide(), (1, 64, 64), key="large"), np.ones((100, 1, 64, 64), np.float32)
        for _ in range(3):
            evaluate(pool, large, records=records)
        pid, held = pool.pids[0], resident(pool.pids[0])
        evaluate(pool, source(small()))
        assert pool.pids[0] == pid
        assert held - resident(pid) > 8 * MEBIBYTE  # 26 to 50, told


def test_what_is_done_meanwhile_is_done_once_while_the_worker_computes(pool):
    computed = []

    def meanwhile():
        before = processor_ticks(pool.pids[0])
        os.kill(pool.pids[0], signal.SIGCONT)
        deadline = time.monotonic() + 30.0
        while processor_ticks(pool.pids[0]) < before + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        computed.append(processor_ticks(pool.pids[0]) - before)

    large, records = source(wide(), (1, 64, 64), key="wide"), np.ones((400, 1, 64, 64), np.float32)
    with pool.session(large) as session:
        os.kill(pool.pids[0], signal.SIGSTOP)  # it computes nothing before `meanwhile` looks
        beside = session.features(records, meanwhile=meanwhile).clone()
    assert len(computed) == 1
    assert computed[0] >= 2
    torch.testing.assert_close(beside, evaluate(pool, large, records=records)[0], rtol=0, atol=0)


def test_an_error_of_what_is_done_meanwhile_is_not_the_workers(pool):
    """Not even one that looks like a worker's; and the next step does not get this one's answer."""

    def fail():
        raise TimeoutError("of something else")

    extractor = source(small())
    with pytest.raises(TimeoutError, match="of something else"), pool.session(extractor) as session:
        session.features(RECORDS, meanwhile=fail)
    here = evaluate(LocalEngine(device=torch.device("cpu")), extractor)
    torch.testing.assert_close(evaluate(pool, extractor)[0], here[0], rtol=1e-5, atol=1e-6)


def wide() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(65536, 4))


def process_times(pid: int) -> list[str]:
    """What /proc says of a process behind its name: proc(5), fields 3 and following."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def processor_ticks(pid: int) -> int:
    return int(process_times(pid)[11])


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
