"""Disks that fill up, turn read-only or are locked, and clocks that jump: UNAVAILABLE, nothing spent, recovery."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toy_accounting import ToyAccounting, ToyBudget

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.sqlite import translate
from dpswd.private_curator.core.ledger.statements import Request, StepGranted
from dpswd.shared.books.chain_checks import Tampering
from dpswd.shared.core.errors import LedgerCorrupt, LedgerUnavailable

DRIVER = Path(__file__).with_name("fault_driver.py")
DIGEST = "d" * 64


def test_files_may_not_grow(tmp_path):
    done = subprocess.run([sys.executable, DRIVER, tmp_path, "limit"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def own_mounts():
    """A command prefix that lets a child mount file systems that nobody else sees."""
    prefix = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs unprivileged mount namespaces to make a small disk")
    return prefix


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_disk(tmp_path, own_mounts, fault):
    script = f'mount -t tmpfs -o size=1500k none "$1" && exec "$2" "$3" "$1" {fault}'
    command = [*own_mounts, "sh", "-ec", script, "sh", tmp_path, sys.executable, DRIVER]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "mount: " in done.stderr and "permission denied" in done.stderr.lower():
        pytest.skip(f"no small disk here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def test_a_disk_that_fails_at_start(ledger, path, reopen):
    """Attack on the operator's patience: he was told to repeat a request, and there was none."""
    ledger.close()
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # SQLite's index of its log cannot get a size
    try:
        with pytest.raises(LedgerUnavailable) as caught:
            reopen()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value) == (
        f"the ledger {path} cannot be used: the disk does not read or write (disk I/O error); nothing was spent"
    )
    assert reopen().verify().ok


class TestLocked:
    def test_by_another_sqlite_program(self, ledger, path, reopen, open_run, answer):
        run = open_run(ledger)
        stored = answer(ledger, run, "answered")
        ledger.close()
        patient = reopen(lock_timeout_s=0.1)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerUnavailable, match="nothing was spent"):
                open_run(patient, request_id="2")
            with pytest.raises(LedgerUnavailable):
                patient.begin_step(Request(client="alice", request_id="new", digest=DIGEST), run_id=run.run_id)
            again = patient.begin_step(Request(client="alice", request_id="answered", digest=DIGEST), run_id=run.run_id)
            assert again == stored
            other.execute("ROLLBACK")
        assert patient.status().runs == 1
        open_run(patient, request_id="2")

    def test_by_another_curator_program(self, ledger, path, reopen, open_run):
        ledger.close()
        patient = reopen(lock_timeout_s=0.1)
        with path.with_name("ledger.sqlite.lock").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(LedgerUnavailable):
                open_run(patient)
        open_run(patient)
        assert patient.status().runs == 1

    def test_waits_for_a_lock_that_is_given_up_in_time(self, ledger, path, open_run):
        with path.with_name("ledger.sqlite.lock").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            timer = threading.Timer(0.2, fcntl.flock, (other, fcntl.LOCK_UN))
            timer.start()
            open_run(ledger)
            timer.join()


class TestClock:
    def test_jumps_change_nothing(self, path, key, open_run, answer):
        zone = timezone(timedelta(hours=5))
        jumps = [datetime(2026, 5, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC),
                 datetime(2026, 5, 1, tzinfo=zone)]  # fmt: skip
        count = 0

        def clock():
            nonlocal count
            count += 1
            return jumps[count % len(jumps)]

        with Ledger.create(
            path, key=key, records=100, budget=ToyBudget(1.0), accounting=ToyAccounting(), clock=clock
        ) as ledger:
            ledger.add_client("alice", "f" * 64)
            run = open_run(ledger)
            for number in range(6):
                stored = answer(ledger, run, f"step-{number}")
                again = ledger.begin_step(
                    Request(client="alice", request_id=f"step-{number}", digest=DIGEST), run_id=run.run_id
                )
                assert again == stored
            assert {finding.tampering for finding in ledger.verify().findings} == {Tampering.MISDATED}
            times = [entry.time for entry in ledger.history()]
            assert times != sorted(times)
            assert "2026-04-30T19:00:00.000000Z" in times  # written in UTC


class TestFiles:
    def test_ledger_replaced_while_open(self, ledger, path, open_run):
        ledger.backup(path.with_name("old"))
        open_run(ledger)
        path.with_name("old").replace(path)
        for act in (ledger.status, lambda: open_run(ledger, request_id="2")):
            with pytest.raises(LedgerUnavailable, match="replaced"):
                act()

    def test_ledger_overwritten_by_an_older_one(self, ledger, path, reopen, open_run):
        ledger.close()
        old = path.read_bytes()
        ledger = reopen()
        open_run(ledger)
        watching = reopen()
        watching.status()
        ledger.close()
        # Written over in place, below the feet of a process that has seen more.
        with contextlib.closing(sqlite3.connect(path.with_name("old"))) as source:
            path.with_name("old").write_bytes(old)
            with contextlib.closing(sqlite3.connect(path)) as target:
                source.backup(target)
        with pytest.raises(LedgerCorrupt, match="older"):
            watching.status()

    def test_deleted(self, ledger, path, open_run):
        path.unlink()
        with pytest.raises(LedgerUnavailable):
            open_run(ledger)

    def test_no_database(self, path, key):
        path.write_bytes(b"not a database" * 1000)
        with pytest.raises(LedgerCorrupt):
            Ledger.open(path, key=key, accounting=ToyAccounting())

    def test_another_database(self, path, key):
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA user_version = 1")
        with pytest.raises(LedgerCorrupt, match="not a ledger"):
            Ledger.open(path, key=key, accounting=ToyAccounting())

    def test_newer_schema(self, ledger, path, reopen):
        ledger.close()
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA user_version = 99")
        with pytest.raises(LedgerCorrupt, match="newer"):
            reopen()

    def test_another_key(self, ledger, path):
        ledger.close()
        with pytest.raises(LedgerCorrupt, match="key"):
            Ledger.open(path, key=Ed25519PrivateKey.generate(), accounting=ToyAccounting())

    def test_after_close(self, ledger, open_run):
        ledger.close()
        ledger.close()
        with pytest.raises(LedgerUnavailable, match="closed"):
            open_run(ledger)

    def test_a_forked_process_is_refused(self, ledger, open_run):
        pid = os.fork()
        if pid == 0:
            try:
                open_run(ledger)
            except LedgerUnavailable:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        open_run(ledger)


def test_every_result_code_of_sqlite_has_a_meaning():
    """A table that forgets a code that passes by itself would report a busy disk as a damaged ledger."""
    passing = {
        "FULL",
        "BUSY",
        "LOCKED",
        "READONLY",
        "IOERR",
        "CANTOPEN",
        "PROTOCOL",
        "PERM",
        "AUTH",
        "NOMEM",
        "INTERRUPT",
    }
    primary = {
        name.removeprefix("SQLITE_"): value
        for name, value in vars(sqlite3).items()
        if name.startswith("SQLITE_")
        and name.removeprefix("SQLITE_")
        in passing
        | {
            "ERROR",
            "CORRUPT",
            "NOTADB",
            "CONSTRAINT",
            "MISMATCH",
            "ABORT",
            "FORMAT",
            "SCHEMA",
            "TOOBIG",
            "RANGE",
            "EMPTY",
        }
    }
    for name, code in primary.items():
        for extended in (code, code | (3 << 8)):  # SQLITE_IOERR_WRITE and its like
            error = sqlite3.OperationalError("x")
            error.sqlite_errorcode, error.sqlite_errorname = extended, name
            expected = LedgerUnavailable if name in passing else LedgerCorrupt
            assert type(translate(error, Path("x"))) is expected, name


def test_a_locked_file_while_a_step_is_answered(ledger, open_run, reopen, path):
    """The caller learns that nothing is stored, and a repeat computes the step; the attempt does not count twice."""
    run = open_run(ledger)
    ledger.close()
    ledger = reopen(lock_timeout_s=0.1)
    grant = ledger.begin_step(Request(client="alice", request_id="step", digest=DIGEST), run_id=run.run_id)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable):
            ledger.finish_step(grant, reply=b"noise", audit={})
    again = ledger.begin_step(Request(client="alice", request_id="step", digest=DIGEST), run_id=run.run_id)
    assert isinstance(again, StepGranted)
    assert again.attempt == 1
    ledger.finish_step(again, reply=b"noise", audit={})
    assert ledger.status().steps_used == 1
