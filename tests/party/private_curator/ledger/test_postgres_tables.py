"""A ledger's tables in PostgreSQL: changed behind its back, put back to an older state, moved to a file and back."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toy_accounting import ToyAccounting, ToyBudget

from dpswd.private_curator.books.audit import verify_file
from dpswd.private_curator.books.backup import move, restore
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.statements import Kind, Request, StepGranted
from dpswd.shared.books.chain_checks import Tampering
from dpswd.shared.core.errors import LedgerCorrupt, LedgerUnavailable, RequestInProgress

DIGEST = "d" * 64
ACCEPTANCE = "The disk of 3 May is lost; the ethics board has accepted this, minutes of 5 May."


@pytest.fixture
def location(new_schema):
    return new_schema


def begin(ledger, run, request_id="step"):
    return ledger.begin_step(Request(client="alice", request_id=request_id, digest=DIGEST), run_id=run.run_id)


class TestTables:
    @pytest.mark.parametrize(
        "change",
        [
            "ALTER TABLE entries DISABLE TRIGGER entries_are_never_changed",
            "ALTER TABLE requests DISABLE TRIGGER ALL",
            "ALTER TABLE replies SET UNLOGGED",
            "ALTER TABLE replies DROP CONSTRAINT replies_pkey",
            "ALTER TABLE runs ALTER COLUMN steps DROP NOT NULL",
            "ALTER TABLE runs ADD COLUMN more INTEGER",
            "CREATE RULE nothing AS ON INSERT TO replies DO INSTEAD NOTHING",
            "CREATE OR REPLACE FUNCTION refuse_to_change_entries() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
            "CREATE FUNCTION more() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
            "ALTER TABLE replies ENABLE ROW LEVEL SECURITY",
        ],
    )
    def test_changes_are_detected(self, postgres, location, ledger, open_run, answer, change):
        answer(ledger, open_run(ledger), "step")
        with postgres.administer() as administrator:
            administrator.execute(f"SET search_path TO {location.schema}")
            administrator.execute(change)
        report = ledger.verify()
        assert {finding.tampering for finding in report.findings} == {Tampering.INCONSISTENT}

    def test_a_foreign_schema_is_no_ledger(self, postgres, location, key):
        with postgres.administer() as administrator:
            administrator.execute(f"CREATE SCHEMA {location.schema} AUTHORIZATION curator")
            administrator.execute(f"CREATE TABLE {location.schema}.patients (name TEXT)")
        with pytest.raises(LedgerCorrupt, match="no ledger"):
            Ledger.open(location, key=key, accounting=ToyAccounting())
        with pytest.raises(LedgerUnavailable, match="exists already"):
            Ledger.create(location, key=key, records=1, budget=ToyBudget(1.0), accounting=ToyAccounting())
        with postgres.administer() as administrator:
            tables = administrator.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'",
                (location.schema,),
            ).fetchall()
        assert tables == [("patients",)]

    def test_a_newer_schema(self, postgres, location, ledger, key):
        with postgres.administer() as administrator:
            administrator.execute(f"UPDATE {location.schema}.ledger SET version = 99")
        with pytest.raises(LedgerCorrupt, match="newer"):
            Ledger.open(location, key=key, accounting=ToyAccounting())

    def test_another_key(self, location, ledger):
        with pytest.raises(LedgerCorrupt, match="key"):
            Ledger.open(location, key=Ed25519PrivateKey.generate(), accounting=ToyAccounting())


class TestRollback:
    """An administrator puts an older state back: the promise would be forgotten with it."""

    def test_below_a_running_curator(self, location, ledger, open_run, reopen, key, tmp_path):
        watching = reopen()
        ledger.backup(tmp_path / "old")
        open_run(ledger)
        watching.status()
        ledger.close()
        restore(tmp_path / "old", location, key=key, accounting=ToyAccounting(), accept_loss=ACCEPTANCE)
        with pytest.raises(LedgerCorrupt, match="older"):
            watching.status()

    def test_to_another_history_of_the_same_length(
        self, postgres, location, ledger, open_run, answer, reopen, key, tmp_path
    ):
        watching = reopen()
        ledger.backup(tmp_path / "old")
        ledger.approve_extractor("1" * 64)
        watching.status()
        restore(tmp_path / "old", location, key=key, accounting=ToyAccounting(), accept_loss=ACCEPTANCE)
        assert reopen().status().entries == 3  # as many as before: only the entries themselves differ
        with pytest.raises(LedgerCorrupt, match="lacks entry 3, which this process has seen"):
            watching.status()


class TestMeanwhile:
    def test_an_operators_act_ends_before_the_schema_is_replaced(self, location, ledger, key, reopen, tmp_path):
        """Neither is the act torn in two, nor does whoever waits behind the restore write into what it replaced."""
        ledger.backup(tmp_path / "old")
        ledger.close()
        operator, late = reopen(), reopen()
        with ThreadPoolExecutor(2) as pool:
            with operator._transaction("act") as transaction:
                restoring = pool.submit(restore, tmp_path / "old", location, key=key, accounting=ToyAccounting())
                while not _waiting(operator):
                    time.sleep(0.01)
                waiting = pool.submit(late.approve_extractor, "2" * 64)
                transaction.append(Kind.EXTRACTOR_APPROVED, {"digest": "1" * 64})
            assert restoring.result(timeout=30) is None
            waiting.result(timeout=30)
        replaced = dataclasses.replace(location, schema=f"{location.schema}_replaced_1")
        with Ledger.open(replaced, key=key, accounting=ToyAccounting()) as before:
            assert "1" * 64 in before.approved_extractors()
        again = reopen()
        assert again.approved_extractors() == {"2" * 64}
        assert again.verify().ok


def _waiting(ledger):
    with ledger.location.reading() as session:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'LOCK TABLE%'"
        return session.execute(sql).fetchone() != (0,)


class TestFormats:
    """A backup is a file in either case, and comes back into either."""

    def test_from_a_file_into_a_schema_and_back(self, location, ledger, path, key, open_run, answer, tmp_path):
        run = open_run(ledger)
        stored = answer(ledger, run, "step", reply=bytes(range(256)))
        ledger.prune_replies(open_run(ledger, request_id="pruned").run_id, reason="x")
        ledger.backup(tmp_path / "backup")
        receipts = [ledger.head()]
        restore(tmp_path / "backup", path, key=key, accounting=ToyAccounting(), accept_loss=ACCEPTANCE)
        with Ledger.open(path, key=key, accounting=ToyAccounting()) as file:
            assert file.verify(receipts=receipts).ok
            assert begin(file, run) == stored
            later = open_run(file, request_id="later")
            file.backup(tmp_path / "later")
        elsewhere = dataclasses.replace(location, schema=f"{location.schema}_b")
        restore(tmp_path / "later", elsewhere, key=key, accounting=ToyAccounting(), accept_loss=ACCEPTANCE)
        with Ledger.open(elsewhere, key=key, accounting=ToyAccounting()) as back:
            assert back.verify(receipts=[*receipts, later.receipt.entry]).ok
            assert begin(back, run) == stored
            assert isinstance(begin(back, run, "new"), StepGranted)
        # The schema that was backed up first knows less by now.
        assert verify_file(location, public_key=ledger.public_key, accounting=ToyAccounting(), receipts=receipts).ok

    def test_a_restore_that_fails_leaves_the_ledger_as_it_was(
        self, location, ledger, key, open_run, tmp_path, monkeypatch
    ):
        open_run(ledger)
        ledger.backup(tmp_path / "backup")
        before = ledger.status()
        ledger.close()
        monkeypatch.setattr(
            "dpswd.private_curator.postgres.schema.copy_tables", lambda *_: (_ for _ in ()).throw(RequestInProgress())
        )
        with pytest.raises(RequestInProgress):
            restore(tmp_path / "backup", location, key=key, accounting=ToyAccounting())
        with Ledger.open(location, key=key, accounting=ToyAccounting()) as again:
            assert again.status() == before
        assert not dataclasses.replace(location, schema=f"{location.schema}_replaced_1").exists()


class TestMove:
    """From a file to replicas: the old file must not be spent from as well."""

    @pytest.fixture
    def file(self, path, key, open_run, answer):
        with Ledger.create(path, key=key, records=100, budget=ToyBudget(1.0), accounting=ToyAccounting()) as ledger:
            ledger.add_client("alice", "a" * 64)
            answer(ledger, open_run(ledger), "step")
        return SqliteFile(path)

    def test_takes_everything_along_and_leaves_no_second_ledger(self, file, location, key, path):
        with Ledger.open(path, key=key, accounting=ToyAccounting()) as before:
            status, receipts = before.status(), list(before.history())
        moved = move(file, location, key=key, accounting=ToyAccounting())
        with pytest.raises(LedgerUnavailable, match="no ledger"):
            Ledger.open(path, key=key, accounting=ToyAccounting())
        with Ledger.open(location, key=key, accounting=ToyAccounting()) as after:
            assert after.verify(receipts=receipts).ok
            assert after.status().data_set == status.data_set
            payload = dict(after.head().payload)
            assert set(payload.pop("place")) == {"database"}
            assert payload == {
                "accepted": None, "forgotten": [], "forgotten_entries": 0, "forgotten_runs": [], "unknown": "",
                "reason": None,
                "by": {"operator": "", "credential": None},
            }  # fmt: skip
        left = {entry.name for entry in path.parent.iterdir()}
        assert left == {"ledger.sqlite.moved", "ledger.sqlite.lock", "ledger.sqlite.serving"}
        assert verify_file(moved, public_key=key.public_key().public_bytes_raw(), accounting=ToyAccounting()).ok

    def test_not_below_a_curator(self, file, location, key, path):
        with Ledger.open(path, key=key, accounting=ToyAccounting()) as serving:
            serving.serve()
            with pytest.raises(LedgerUnavailable, match="serves"):
                move(file, location, key=key, accounting=ToyAccounting())
        assert not location.exists()

    def test_not_onto_another_ledger(self, file, location, key, ledger):
        before = ledger.status()
        with pytest.raises(LedgerUnavailable, match="exists already"):
            move(file, location, key=key, accounting=ToyAccounting())
        assert ledger.status() == before
        assert file.exists()

    def test_not_a_damaged_ledger(self, file, location, path):
        with pytest.raises(LedgerCorrupt, match="does not verify"):
            move(file, location, key=Ed25519PrivateKey.generate(), accounting=ToyAccounting())
        assert file.exists()
        assert not location.exists()
