"""Loss of power: every state in which the disk may be left is a ledger that has forgotten nothing it answered.

SQLite's own requests to the disk are recorded while a curator works; then the disk is rebuilt as of a random moment,
with everything that was not yet synced done, torn at sectors, or dropped, at random: 50 states with a fixed seed, and
1500 with another one at each `make test-exhaustive`.
"""

from __future__ import annotations

import random
import shutil

import pytest
from exploring import seeded
from recording_vfs import Disk, RecordingVfs
from toy_accounting import ToyAccounting, toy_run

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.statements import Request, StepGranted, StoredReply

DIGEST = "d" * 64
NAME = "ledger.sqlite"


@pytest.fixture
def vfs():
    try:
        layer = RecordingVfs("recording")
    except LookupError as error:
        pytest.skip(str(error))
    yield layer
    layer.unregister()


@pytest.fixture
def session(vfs, ledger, path, key):
    """The disk before, and what a curator did that worked, was closed, and worked again."""
    ledger.close()
    before = {NAME: bytearray(path.read_bytes())}
    generator = random.Random(3)
    for life in range(2):
        with Ledger.open(SqliteFile(path, vfs=vfs.name), key=key, accounting=ToyAccounting()) as curator:
            for number in range(3):
                request = f"run-{life}-{number}"
                run = curator.open_run(
                    Request(client="alice", request_id=request, digest=DIGEST), event=toy_run(steps=5), parameters=b"p"
                )
                vfs.mark(f"run {request} {run.run_id}")
                for step in range(5):
                    request = f"step-{life}-{number}-{step}"
                    grant = curator.begin_step(
                        Request(client="alice", request_id=request, digest=DIGEST), run_id=run.run_id
                    )
                    vfs.mark(f"begun {request} {run.run_id}")
                    # Large enough that SQLite moves its log into the database in between (after 1000 pages).
                    reply = generator.randbytes(400_000 if step == 4 else 3000)
                    curator.finish_step(grant, reply=reply, audit={})
                    vfs.mark(f"answered {request} {run.run_id}", reply)
            history = [entry.statement for entry in curator.history()]
    return before, vfs.events, history


@pytest.mark.parametrize("states", [50, pytest.param(1500, marks=pytest.mark.exhaustive)])
@pytest.mark.long
def test_what_was_answered_survives_every_loss_of_power(session, memory, key, states):
    before, events, history = session
    kinds = {(event.kind, event.name) for event in events if event.kind != "mark"}
    assert {("write", f"{NAME}-wal"), ("sync", f"{NAME}-wal"), ("write", NAME), ("sync", NAME)} <= kinds
    generator = seeded(4)
    damaged = 0
    for number, moment in enumerate(sorted(generator.sample(range(len(events)), min(states, len(events))))):
        disk = Disk({name: bytearray(data) for name, data in before.items()})
        answered: dict[str, tuple[str, str, bytes]] = {}
        for event in events[:moment]:
            disk.take(event)
            if event.kind == "mark":
                state, request, run_id = event.name.split()
                answered[request] = state, run_id, event.data
        damaged += bool(disk.pending)
        directory = memory / f"state-{number}"
        directory.mkdir()
        for name, data in disk.lose_power(generator).items():
            (directory / name).write_bytes(data)
        with Ledger.open(directory / NAME, key=key, accounting=ToyAccounting()) as curator:
            report = curator.verify()
            assert report.ok, report.findings
            entries = [entry.statement for entry in curator.history()]
            assert entries == history[: len(entries)]  # a prefix of what happened
            for request, (state, run_id, reply) in answered.items():
                if state == "run":
                    assert curator.run(client="alice", run_id=run_id).request_id == request
                    continue
                result = curator.begin_step(Request(client="alice", request_id=request, digest=DIGEST), run_id=run_id)
                if state == "answered":
                    assert isinstance(result, StoredReply)
                    assert result.reply == reply
                elif isinstance(result, StepGranted):  # begun, and the answer may or may not have been stored
                    assert result.attempt > 1
                    curator.finish_step(result, reply=b"new noise", audit={})
            assert curator.verify().ok
        shutil.rmtree(directory)
    assert damaged > min(states, len(events)) // 3, "too few states with anything at stake"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 20))])
def test_a_log_that_is_cut_anywhere_leaves_a_prefix(ledger, path, key, open_run, answer, tmp_path, seed):
    """Cut below the last sync something answered is missing, and the cut ledger still is whole in itself."""
    generator = seeded(seed)
    run = open_run(ledger)
    synced = {0: ledger.status().entries}
    log = path.with_name(f"{NAME}-wal")
    for number in range(8):
        answer(ledger, run, f"step-{number}", reply=generator.randbytes(5000))
        synced[log.stat().st_size] = ledger.status().entries
    history = [entry.statement for entry in ledger.history()]
    database, content = path.read_bytes(), log.read_bytes()
    for cut in generator.sample(range(len(content)), 12):
        directory = tmp_path / f"cut-{cut}"
        directory.mkdir()
        (directory / NAME).write_bytes(database)
        (directory / f"{NAME}-wal").write_bytes(content[:cut] + generator.randbytes(len(content) - cut))
        with Ledger.open(directory / NAME, key=key, accounting=ToyAccounting()) as curator:
            assert curator.verify().ok
            entries = [entry.statement for entry in curator.history()]
        assert entries == history[: len(entries)]
        durable = max((size for size in synced if size <= cut), default=0)
        if durable:
            assert len(entries) >= synced[durable]
