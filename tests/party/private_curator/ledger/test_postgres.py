"""PostgreSQL's own troubles: servers that die, connections that break, locks that are held, changed tables."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from toy_accounting import ToyAccounting, ToyBudget

from dpswd.private_curator.books import sqlite_file
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger import store
from dpswd.private_curator.core.ledger.statements import Request, StoredReply
from dpswd.private_curator.postgres.database import translate
from dpswd.private_curator.postgres.schema import PostgresSchema
from dpswd.shared.core.errors import LedgerCorrupt, LedgerUnavailable, SettingsError

DIGEST = "d" * 64


@pytest.fixture
def location(new_schema):
    return new_schema


@pytest.fixture
def mortal(postgres):
    """The server, for a test that kills it; it runs again when the test has ended, however that was."""
    yield postgres
    if postgres.process is None:
        postgres.start()


@pytest.fixture
def watched(location, key, ledger):
    """A curator that something happens to: ``happen[point]`` is called when it reaches that point, once."""
    happen = {}

    def checkpoint(point):
        if point in happen:
            happen.pop(point)()

    with Ledger.open(location, key=key, accounting=ToyAccounting(), checkpoint=checkpoint, lock_timeout_s=5) as curator:
        yield curator, happen


def begin(ledger, run, request_id="step"):
    return ledger.begin_step(Request(client="alice", request_id=request_id, digest=DIGEST), run_id=run.run_id)


def cut_all(postgres):
    """The administrator ends every connection of the curators."""
    with postgres.administer() as administrator:
        administrator.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'curator'")


@contextlib.contextmanager
def locked(postgres, location):
    """Somebody else is in the middle of a transaction on the ledger."""
    with postgres.administer() as other:
        other.execute("BEGIN")
        other.execute(f"SELECT version FROM {location.schema}.ledger FOR UPDATE")
        yield other


class TestReaching:
    def test_with_a_password_from_a_file_over_tls(self, postgres, location, ledger, key, tmp_path):
        secret = tmp_path / "password"
        secret.write_text(f"{postgres.password}\n")
        url = postgres.url(tcp=True, sslmode="verify-full", sslrootcert=postgres.root_certificate)
        safe = PostgresSchema(url, schema=location.schema, password_file=secret)
        with Ledger.open(safe, key=key, accounting=ToyAccounting()) as there:
            assert there.status() == ledger.status()
            assert (
                there._database._connection.info.ssl_in_use if hasattr(psycopg.ConnectionInfo, "ssl_in_use") else True
            )
        assert postgres.password not in f"{safe} {safe!r}"

    @pytest.mark.long
    def test_with_a_password_from_pgpassfile(self, postgres, location, ledger, key, tmp_path):
        secret = tmp_path / "pgpass"
        secret.write_text(f"127.0.0.1:*:*:*:{postgres.password}\n")
        secret.chmod(0o600)
        code = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[3])!r}, {str(Path(__file__).parents[4])!r}]
from toy_accounting import ToyAccounting
from dpswd.private_curator.books.audit import verify_file
from dpswd.private_curator.postgres.schema import PostgresSchema
place = PostgresSchema({postgres.url(tcp=True, sslmode="require")!r}, schema={location.schema!r})
assert verify_file(place, public_key=bytes.fromhex({ledger.public_key.hex()!r}), accounting=ToyAccounting()).ok
"""
        run = [sys.executable, "-c", code]
        subprocess.run(run, check=True, env={**os.environ, "PGPASSFILE": str(secret)})
        without = subprocess.run(run, check=False, env={**os.environ, "PGPASSFILE": "/dev/null"}, capture_output=True)
        assert b"LedgerUnavailable" in without.stderr

    @pytest.mark.parametrize("fault", ["password", "certificate", "plain text", "database", "server"])
    def test_what_the_server_or_tls_refuses(self, postgres, location, ledger, key, tmp_path, fault):
        secret = tmp_path / "password"
        secret.write_text("wrong" if fault == "password" else postgres.password)
        options = {"sslmode": "verify-full", "sslrootcert": postgres.root_certificate}
        if fault == "certificate":
            options["sslrootcert"] = _other_certificate(tmp_path)
        if fault == "plain text":
            options = {"sslmode": "disable"}
        url = postgres.url(tcp=True, **options)
        if fault == "database":
            url = url.replace("/hospital?", "/elsewhere?")
        if fault == "server":
            url = url.replace(f":{postgres.port}/", ":1/")
        with pytest.raises(LedgerUnavailable, match="nothing was spent") as caught:
            Ledger.open(PostgresSchema(url, schema=location.schema, password_file=secret), key=key)
        assert postgres.password not in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"url": "postgresql://curator:secret@host/db"}, "password_file"),
            ({"url": "postgresql://host/db?password=secret"}, "password_file"),
            ({"url": "postgresql://[::1/db"}, "no URL"),
            ({"url": "postgresql://host/db?sslmoed=require"}, "sslmoed"),
            ({"url": "postgresql://host/db", "schema": "Ward-7"}, "lower-case"),
            ({"url": "postgresql://host/db", "schema": ""}, "lower-case"),
        ],
    )
    def test_settings_that_cannot_work(self, options, says):
        with pytest.raises(SettingsError, match=says) as caught:
            PostgresSchema(**options)
        assert "secret" not in str(caught.value)

    def test_a_missing_password_file(self, postgres, location, tmp_path, key):
        with pytest.raises(SettingsError, match="cannot be read"):
            Ledger.open(dataclasses.replace(location, password_file=tmp_path / "no"), key=key)

    def test_made_once_by_whoever_comes_first(self, location, key):
        def make(_):
            try:
                Ledger.create(location, key=key, records=5, budget=ToyBudget(1.0), accounting=ToyAccounting()).close()
            except LedgerUnavailable as error:
                return str(error)
            return "made"

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(make, range(4)))
        assert outcomes.count("made") == 1
        assert sum("exists already" in outcome for outcome in outcomes) == 3

    def test_of_a_maker_that_fails_nothing_is_left(self, location, key):
        def die(_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Ledger.create(
                location, key=key, records=5, budget=ToyBudget(1.0), accounting=ToyAccounting(), checkpoint=die
            )
        assert not location.exists()


class TestServer:
    def test_must_sync(self, postgres, location, ledger, key):
        with postgres.administer() as administrator:
            administrator.execute("ALTER SYSTEM SET fsync = off")
            administrator.execute("SELECT pg_reload_conf()")
            try:
                deadline = time.monotonic() + 10
                while administrator.execute("SHOW fsync").fetchone() != ("off",):
                    assert time.monotonic() < deadline
                with pytest.raises(LedgerUnavailable, match="fsync off"):
                    Ledger.open(location, key=key, accounting=ToyAccounting())
            finally:
                administrator.execute("ALTER SYSTEM RESET fsync")
                administrator.execute("SELECT pg_reload_conf()")

    @pytest.mark.parametrize(("given", "used"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
    def test_commits_wait_for_the_disk(self, postgres, location, ledger, given, used):
        with postgres.administer() as administrator:
            administrator.execute(f"ALTER ROLE curator SET synchronous_commit = {given}")
            try:
                cut_all(postgres)
                with ledger._database.write() as session:
                    assert session.execute("SHOW synchronous_commit").fetchone() == (used,)
            finally:
                administrator.execute("ALTER ROLE curator RESET synchronous_commit")

    def test_a_pooler_in_between_is_noticed(self, postgres, location, ledger, key, tmp_path):
        with _pooler(postgres, tmp_path) as url, pytest.raises(LedgerUnavailable, match="pooler"):
            Ledger.open(PostgresSchema(url, schema=location.schema), key=key, accounting=ToyAccounting())

    @pytest.mark.long
    @pytest.mark.parametrize(
        "points",
        [
            ["begin_step:written", "finish_step:step-answered"],
            pytest.param(
                ["begin_step:begun", "begin_step:step-consumed", "finish_step:begun", "finish_step:written"],
                marks=pytest.mark.exhaustive,
            ),
        ],
        ids=["two", "the others"],
    )
    def test_killed_and_recovered(self, points, mortal, watched, open_run, answer):
        """SIGKILL to all of the server while a transaction is open: what was answered stays, the rest never was."""
        curator, happen = watched
        run = open_run(curator, steps=20)
        stored = answer(curator, run, "answered")
        for number, point in enumerate(points):
            request = f"step-{number}"
            happen[point] = mortal.kill
            with pytest.raises(LedgerUnavailable):
                answer(curator, run, request)
            with pytest.raises(LedgerUnavailable):  # it is down, and says so at once
                begin(curator, run, "answered")
            mortal.start()
            assert begin(curator, run, "answered") == stored
            answer(curator, run, request)
        status = curator.status()
        assert (status.steps_used, status.runs) == (1 + len(points), 1)
        assert sum(entry.kind == "step-answered" for entry in curator.history()) == 1 + len(points)
        assert curator.verify().ok

    def test_killed_after_the_commit_and_before_the_answer(self, mortal, watched, open_run, answer):
        curator, happen = watched
        run = open_run(curator)
        happen["finish_step:durable"] = mortal.kill
        stored = answer(curator, run, "step")
        mortal.start()
        assert begin(curator, run) == stored


def test_the_database_s_clock_dates_entries_and_no_replica_s(postgres, location, key, monkeypatch):
    """Attack: a replica three days ahead wrote, and the right ones were told to set their clocks."""
    ahead = dt.timedelta(days=3)
    for module in (store, sqlite_file):
        monkeypatch.setattr(module, "utc_now", lambda: dt.datetime.now(dt.UTC) + ahead)
    options = {"key": key, "accounting": ToyAccounting()}
    with Ledger.create(location, records=100, budget=ToyBudget(1.0), **options) as wrong:
        wrong.add_client("alice", "f" * 64)
        times = [dt.datetime.fromisoformat(entry.time) for entry in wrong.history()]
        assert len(times) == 2
        with postgres.administer() as administrator:
            (now,) = administrator.execute("SELECT clock_timestamp()").fetchone()
        assert all(abs(time - now) < dt.timedelta(minutes=5) for time in (*times, wrong.now()))
        assert wrong.day(wrong._snapshot()) == now.astimezone(dt.UTC).date().isoformat()


class TestConnection:
    def test_a_cut_between_two_requests_is_not_noticed(self, postgres, ledger, open_run, answer):
        run = open_run(ledger)
        cut_all(postgres)
        stored = answer(ledger, run, "step")
        cut_all(postgres)
        assert begin(ledger, run) == stored
        assert ledger.status().steps_used == 1

    @pytest.mark.parametrize(
        "point", ["begin_step:begun", "begin_step:step-consumed", "finish_step:step-answered", "finish_step:written"]
    )
    def test_a_cut_inside_a_transaction_spends_nothing(self, postgres, watched, open_run, answer, point):
        curator, happen = watched
        run = open_run(curator)
        length = curator.status().entries
        happen[point] = lambda: cut_all(postgres)
        with pytest.raises(LedgerUnavailable) as caught:
            answer(curator, run, "step")
        # Whether a commit arrived cannot be known when the connection breaks under it.
        assert ("repeat the request" in str(caught.value)) == point.endswith("written")
        assert curator.status().entries == length + (point.startswith("finish_step"))
        assert answer(curator, run, "step").receipt.step == 1
        assert curator.status().steps_used == 1

    def test_a_reply_that_was_committed_unheard_is_sent_to_the_repeat(self, postgres, ledger, open_run, monkeypatch):
        """The server commits, and the connection breaks before it can say so."""
        run = open_run(ledger)
        grant = begin(ledger, run)
        execute = psycopg.Connection.execute

        def deaf(connection, query, *rest):
            result = execute(connection, query, *rest)
            if query == "COMMIT":
                connection.close()
                raise psycopg.OperationalError("the connection broke")
            return result

        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "execute", deaf)
            with pytest.raises(LedgerUnavailable, match="repeat the request"):
                ledger.finish_step(grant, reply=b"noise", audit={})
        again = begin(ledger, run)
        assert isinstance(again, StoredReply)
        assert again.reply == b"noise"

    def test_a_statement_that_failed_is_never_called_durable(self, ledger):
        """PostgreSQL answers COMMIT with ROLLBACK when a statement failed before."""
        with (
            pytest.raises(LedgerUnavailable, match="refused the transaction"),
            ledger._database.write() as session,
            contextlib.suppress(psycopg.Error),
        ):
            session.execute("SELECT 1 / 0")
        ledger.freeze(reason="and it goes on")

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

    def test_after_close(self, ledger, open_run):
        ledger.close()
        ledger.close()
        with pytest.raises(LedgerUnavailable, match="closed"):
            open_run(ledger)


class TestLocks:
    def test_held_by_somebody_else(self, postgres, location, ledger, reopen, open_run, answer):
        run = open_run(ledger)
        stored = answer(ledger, run, "answered")
        patient = reopen(lock_timeout_s=0.1)
        with locked(postgres, location):
            with pytest.raises(LedgerUnavailable, match=r"another program holds it.*nothing was spent"):
                open_run(patient, request_id="2")
            with pytest.raises(LedgerUnavailable):
                begin(patient, run, "new")
            assert begin(patient, run, "answered") == stored  # reading waits for nobody
        assert patient.status().runs == 1
        open_run(patient, request_id="2")

    def test_given_up_in_time(self, postgres, location, ledger, open_run):
        with locked(postgres, location) as other:
            timer = threading.Timer(0.2, other.execute, ("ROLLBACK",))
            timer.start()
            open_run(ledger)
            timer.join()

    def test_a_cancelled_or_timed_out_statement(self, postgres, location, ledger, open_run):
        """SQLSTATE 57014 is both the administrator's cancellation and statement_timeout."""
        with locked(postgres, location), postgres.administer() as administrator, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(open_run, ledger)
            cancelled = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while administrator.execute(cancelled).fetchone() == (0,):
                time.sleep(0.01)
            with pytest.raises(LedgerUnavailable, match="nothing was spent"):
                waiting.result(timeout=30)
        assert ledger.status().runs == 0

    def test_a_deadlock_is_survived(self, postgres, location, ledger, open_run):
        """Each waits for a lock of the other; the server ends our wait, and we try again."""
        run = open_run(ledger)
        begin(ledger, run)  # from now on the curator holds the step's lock
        with locked(postgres, location) as other, ThreadPoolExecutor(2) as pool:
            other.execute("SET deadlock_timeout = '60s'; SET lock_timeout = '6s'")
            key = ledger._database._step_lock(("alice", "step"))
            theirs = pool.submit(other.execute, "SELECT pg_advisory_xact_lock(%s)", (key,))
            ours = pool.submit(open_run, ledger, request_id="second")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                theirs.result(timeout=30)
            other.execute("ROLLBACK")
            assert ours.result(timeout=30).steps == 10
        with postgres.administer() as administrator:
            deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            deadline = time.monotonic() + 60
            while administrator.execute(deadlocks).fetchone() == (0,):  # statistics come a moment later
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def test_a_serialization_failure_is_repeated(self, ledger, open_run, monkeypatch):
        execute, failures = psycopg.Connection.execute, [2]

        def unlucky(connection, query, *rest):
            if "FOR UPDATE" in str(query) and failures[0]:
                failures[0] -= 1
                return execute(connection, "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
            return execute(connection, query, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "execute", unlucky)
            open_run(ledger)
        assert failures == [0]
        assert ledger.status().runs == 1

    def test_a_replica_that_hangs_in_a_transaction_is_cut_off(self, postgres, location, ledger, open_run):
        with ledger._database.write() as session:
            (seconds,) = session.execute(
                "SELECT extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)::int"
            ).fetchone()
        assert 0 < seconds <= 60


def test_every_sqlstate_of_what_passes_has_a_meaning():
    """A class that is forgotten would report a busy server as a damaged ledger, or damage as something that passes."""
    passing = {
        psycopg.errors.DiskFull: "disk is full",
        psycopg.errors.OutOfMemory: "memory",
        psycopg.errors.TooManyConnections: "connection left",
        psycopg.errors.ReadOnlySqlTransaction: "no writes",
        psycopg.errors.AdminShutdown: "stopped",
        psycopg.errors.CrashShutdown: "stopped",
        psycopg.errors.CannotConnectNow: "stopped",
        psycopg.errors.QueryCanceled: "cancelled",
        psycopg.errors.IdleInTransactionSessionTimeout: "no writes",
        psycopg.errors.LockNotAvailable: "holds it",
        psycopg.errors.SerializationFailure: "faster",
        psycopg.errors.DeadlockDetected: "faster",
        psycopg.errors.ConnectionFailure: "connection",
        psycopg.errors.IoError: "disk",
        psycopg.errors.InvalidPassword: "let this user in",
        psycopg.errors.InvalidCatalogName: "no such database",
        psycopg.errors.InsufficientPrivilege: "permit",
        psycopg.OperationalError: "connection",
        psycopg.InterfaceError: "connection",
    }
    for kind, words in passing.items():
        error = translate(kind("secret text of the server"), "there")
        assert type(error) is LedgerUnavailable, kind
        assert words in str(error), kind
        assert "secret" not in str(error)
    for kind in (
        psycopg.errors.UniqueViolation,
        psycopg.errors.CheckViolation,
        psycopg.errors.UndefinedTable,
        psycopg.errors.DataCorrupted,
        psycopg.errors.IndexCorrupted,
        psycopg.errors.RaiseException,
        psycopg.ProgrammingError,
    ):
        assert type(translate(kind("x"), "there")) is LedgerCorrupt, kind


def _other_certificate(directory):
    from postgres_server import _certificate

    path = directory / "other.crt"
    path.write_text(_certificate()[1])
    return path


@contextlib.contextmanager
def _pooler(postgres, directory):
    """A proxy that, like a pooler, hands out process numbers of its own."""
    import socket
    import struct

    near = socket.socket(socket.AF_UNIX)
    near.bind(str(directory / ".s.PGSQL.5432"))
    near.listen()

    def pump(source, target, change):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if change:
                    at = data.find(b"K\0\0\0\x0c")  # BackendKeyData, after the authentication
                    if at >= 0:
                        data, change = data[: at + 5] + struct.pack("!I", 1) + data[at + 9 :], False
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client, _ = near.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(postgres.directory / f".s.PGSQL.{postgres.port}"))
                threading.Thread(target=pump, args=(client, server, False), daemon=True).start()
                threading.Thread(target=pump, args=(server, client, True), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"postgresql://curator@/hospital?host={directory}&port=5432"
    near.shutdown(socket.SHUT_RDWR)
    near.close()
