"""Verification finds what was done to a ledger: by a stranger with the file, and by an operator with the key."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from held_receipts import verify_receipts
from toy_accounting import ToyAccounting, ToyBudget

from dpswd.private_curator.books.audit import verify_file
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.sqlite_tables import layout
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.private_curator.keys.checking import SignatureCheck, processes_for
from dpswd.private_curator.operator.telling import ProgressReporter
from dpswd.private_curator.postgres.database import PostgresSession
from dpswd.shared.books.chain_checks import Tampering, read_export
from dpswd.shared.core.errors import LedgerCorrupt, LedgerUnavailable
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.ledger.receipts import FORMAT, GENESIS, Signed, SignedEntry, canonical_json

DIGEST = "d" * 64
both = pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def used(ledger, open_run, answer):
    """Two runs, five answered steps; closed. The receipts of the steps."""
    first, second = open_run(ledger), open_run(ledger, request_id="second", steps=20)
    receipts = [answer(ledger, first, f"step-{n}", reply=b"noise %d" % n).receipt.entry for n in range(3)]
    receipts += [answer(ledger, second, f"other-{n}").receipt.entry for n in range(2)]
    ledger.close()
    return receipts


@pytest.fixture
def check(location, ledger):
    def check(receipts=()):
        return verify_file(location, public_key=ledger.public_key, accounting=ToyAccounting(), receipts=receipts)

    return check


@contextlib.contextmanager
def in_file(path, *, keep_triggers):
    """Somebody who knows SQLite: the triggers are taken away and put back."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        if keep_triggers:
            for _, sql in triggers:
                connection.execute(sql)


@contextlib.contextmanager
def in_server(server, schema, *, keep_triggers):
    """Somebody who administers the server: triggers and references are off in this session."""
    with server.administer() as connection:
        connection.execute(f"SET search_path TO {schema}")
        if not keep_triggers:
            connection.execute("DROP TRIGGER entries_are_never_changed ON entries")
        connection.execute("SET session_replication_role = replica")
        yield PostgresSession(connection)


def for_server(statement):
    """SQLite's way to write bytes, as PostgreSQL writes it."""
    statement = re.sub(r"x'([0-9a-f]*)'", r"'\\x\1'::bytea", statement)
    return re.sub(
        r"CAST\(replace\(statement, (.*?)\) AS BLOB\)",
        r"convert_to(replace(convert_from(statement, 'UTF8'), \1), 'UTF8')",
        statement,
    )


@pytest.fixture
def tamper(request, location):
    """Changes the tables behind the ledger's back."""

    def tamper(*statements, keep_triggers=True):
        if isinstance(location, SqliteFile):
            session = in_file(location.path, keep_triggers=keep_triggers)
        else:
            session = in_server(request.getfixturevalue("postgres"), location.schema, keep_triggers=keep_triggers)
            statements = [each for each in statements if each != "PRAGMA foreign_keys = OFF"]
            statements = [for_server(each) if isinstance(each, str) else each for each in statements]
        with session as connection:
            for statement in statements:
                connection.execute(*((statement,) if isinstance(statement, str) else statement))

    return tamper


def tamperings(report):
    return {finding.tampering for finding in report.findings}


def seqs(location, kind):
    with location.reading() as connection:
        return [seq for (seq,) in connection.execute("SELECT seq FROM entries WHERE kind = ? ORDER BY seq", (kind,))]


@both
def test_a_sound_ledger_has_no_findings(used, check, reopen):
    report = check(used)
    assert report.ok
    assert report.epsilon_spent == pytest.approx(0.03)
    status = reopen().status()
    assert (report.entries, report.head) == (status.entries, status.head)


def test_verification_changes_nothing(used, check, path):
    before = path.read_bytes()
    check(used)
    assert path.read_bytes() == before


@pytest.mark.parametrize("statement", ["UPDATE entries SET kind = 'x' WHERE seq = 2", "DELETE FROM entries"])
def test_sqlite_itself_refuses_changes_of_entries(used, path, statement):
    with (
        contextlib.closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)


@both
class TestStranger:
    """Has the file, not the key."""

    def test_edit(self, used, check, tamper, location, reopen):
        seq = seqs(location, "run-opened")[1]
        tamper(f"UPDATE entries SET statement = CAST(replace(statement, '20000', '20001') AS BLOB) WHERE seq = {seq}")
        report = check()
        assert Tampering.EDITED in tamperings(report)
        assert any(finding.seq == seq for finding in report.findings)
        with pytest.raises(LedgerCorrupt):  # and the curator does not start on it
            reopen()

    def test_edit_that_is_no_statement(self, used, check, tamper):
        tamper("UPDATE entries SET statement = x'00ff' WHERE seq = 3")
        assert Tampering.UNREADABLE in tamperings(check())

    def test_edited_label(self, used, check, tamper, location, reopen):
        seq = seqs(location, "run-opened")[1]
        tamper(f"UPDATE entries SET kind = 'step-consumed' WHERE seq = {seq}")
        assert Tampering.EDITED in tamperings(check())
        with pytest.raises(LedgerCorrupt):
            reopen()

    @pytest.mark.parametrize("kind", ["step-answered", "step-consumed", "run-opened", "data-set-opened"])
    def test_deletion(self, used, check, tamper, location, reopen, kind):
        tamper("PRAGMA foreign_keys = OFF", f"DELETE FROM entries WHERE seq = {seqs(location, kind)[0]}")
        assert Tampering.MISSING in tamperings(check())
        with pytest.raises(LedgerCorrupt):
            reopen()

    def test_reordering(self, used, check, tamper, location):
        one, two = seqs(location, "step-answered")[:2]
        tamper(
            "PRAGMA foreign_keys = OFF",
            f"UPDATE entries SET seq = 9999 WHERE seq = {one}",
            f"UPDATE entries SET seq = {one} WHERE seq = {two}",
            f"UPDATE entries SET seq = {two} WHERE seq = 9999",
        )
        assert tamperings(check()) & {Tampering.REORDERED, Tampering.MISSING}

    def test_truncation_needs_receipts(self, used, check, tamper, location):
        """The chain cannot show that its own end is gone; the tables and the receipts do."""
        last = seqs(location, "step-answered")[-1]
        where = f"WHERE seq >= {last - 1}"
        tamper(f"DELETE FROM replies {where}", f"DELETE FROM requests {where}", f"DELETE FROM entries {where}",
               "UPDATE runs SET steps_used = 1 WHERE steps = 20")  # fmt: skip
        assert check().ok
        report = check(used)
        assert tamperings(report) == {Tampering.TRUNCATED}
        assert [finding.seq for finding in report.findings] == [last]

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE runs SET steps_used = 0",
            "UPDATE runs SET steps = 4000 WHERE steps = 20",
            "UPDATE runs SET parameters = x'00'",
            "UPDATE runs SET pruned = 1 WHERE steps = 20",
            "UPDATE replies SET reply = x'00' WHERE step = 2",
            "UPDATE replies SET audit = '{}' WHERE step = 2",
            "UPDATE replies SET reply = NULL WHERE step = 2",
            "DELETE FROM replies WHERE step = 2",
            "UPDATE requests SET digest = replace(digest, 'd', 'e') WHERE step = 1",
            "UPDATE requests SET request_id = 'free-again' WHERE request_id = 'step-1'",
            "UPDATE requests SET attempts = 5 WHERE step = 1",
            "DROP INDEX entries_beside_steps",
            "CREATE TABLE more (x INTEGER)",
        ],
    )
    def test_tables_that_disagree(self, used, check, tamper, statement):
        tamper(statement)
        assert tamperings(check()) == {Tampering.INCONSISTENT}

    def test_missing_triggers(self, used, check, tamper):
        tamper(keep_triggers=False)
        assert tamperings(check()) == {Tampering.INCONSISTENT}


@both
class TestOperator:
    """Has the key, and can sign whatever it likes."""

    @pytest.fixture
    def rewrite(self, location, key, tamper):
        """Signs the whole chain anew after a change of its entries."""

        def rewrite(change):
            with location.reading() as connection:
                rows = connection.execute("SELECT statement FROM entries ORDER BY seq").fetchall()
            values = change([json.loads(statement) for (statement,) in rows])
            previous, statements = GENESIS, []
            for seq, value in enumerate(values, start=1):
                statement = canonical_json({**value, "seq": seq, "previous": previous})
                entry = SignedEntry.parse(statement, key.sign(Signed.ENTRY.over(statement)))
                previous = entry.hash
                statements.append(entry)
            inserts = [
                ("INSERT INTO entries VALUES (?, ?, ?, ?)", (e.seq, e.kind, e.statement, e.signature))
                for e in statements
            ]
            tamper("PRAGMA foreign_keys = OFF", "DELETE FROM entries", *inserts)

        return rewrite

    def test_a_rewritten_history_is_refuted_by_receipts(self, used, check, rewrite):
        def change(values):
            for value in values:
                value["time"] = "2000-01-01T00:00:00.000000Z"
            return values

        rewrite(change)
        assert check().ok  # consistent in itself
        assert tamperings(check(used)) == {Tampering.REWRITTEN}

    def test_a_free_run(self, used, check, rewrite):
        def change(values):
            for value in values:
                if value["kind"] == "run-opened" and value["payload"]["steps"] == 20:
                    value["payload"]["prices"]["data set"] = '{"micro": 1}'
            return values

        rewrite(change)
        report = check()
        assert tamperings(report) == {Tampering.UNLAWFUL}
        assert "costs 0.02" in report.findings[0].text

    def test_more_steps_than_were_charged(self, used, check, rewrite, tamper):
        def change(values):
            for value in values:
                if value["kind"] == "run-opened" and value["payload"]["steps"] == 20:
                    value["payload"]["steps"] = 40
            return values

        rewrite(change)
        tamper("UPDATE runs SET steps = 40 WHERE steps = 20")
        assert tamperings(check()) == {Tampering.UNLAWFUL}

    def test_a_budget_that_was_never_extended(self, used, check, rewrite):
        def change(values):
            values[0]["payload"]["budget"]["epsilon"] = 0.015
            for value in values:
                if value["kind"] == "filter-fixed":
                    value["payload"]["filter"] = value["payload"]["filter"].replace("1.0", "0.015")
            return values

        rewrite(change)
        assert Tampering.UNLAWFUL in tamperings(check())

    @pytest.mark.parametrize("kind", ["step-consumed", "run-opened", "filter-fixed"])
    def test_a_release_without_its_charge(self, used, check, rewrite, kind):
        def change(values):
            first = next(number for number, value in enumerate(values) if value["kind"] == kind)
            return values[:first] + values[first + 1 :]

        rewrite(change)
        assert Tampering.UNLAWFUL in tamperings(check())

    def test_a_release_while_frozen(self, used, check, rewrite):
        def change(values):
            first = next(number for number, value in enumerate(values) if value["kind"] == "step-consumed")
            frozen = {"format": FORMAT, "kind": "frozen", "payload": {"reason": "x"}, "time": ""}
            return [*values[:first], frozen, *values[first:]]

        rewrite(change)
        assert Tampering.UNLAWFUL in tamperings(check())

    def test_a_step_answered_twice(self, used, check, rewrite):
        rewrite(lambda values: [*values, values[-1]])
        assert Tampering.UNLAWFUL in tamperings(check())

    def test_another_key(self, used, location):
        report = verify_file(location, public_key=b"\x01" * 32, accounting=ToyAccounting())
        assert {Tampering.EDITED, Tampering.FORGED} <= tamperings(report)


def test_signatures_are_checked_in_processes_of_their_own(key, tmp_path, monkeypatch):
    """Statements of all kinds of lengths; whoever signs, a process tells the number. A package that happens to lie in
    the operator's directory is not imported."""
    (tmp_path / "dpswd").mkdir()
    (tmp_path / "dpswd" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)
    public_key, other = key.public_key().public_bytes_raw(), Ed25519PrivateKey.generate()
    forged = {3, 700, 1200}
    with SignatureCheck(LedgerKeys(public_key), processes=2) as signatures:
        for seq in range(1, 1201):
            statement = b"s" * (seq % 300)
            signatures.take(seq, statement, (other if seq in forged else key).sign(Signed.ENTRY.over(statement)))
        assert signatures.wrong() == sorted(forged)
    with SignatureCheck(LedgerKeys(public_key), processes=2) as signatures:
        signatures._processes[0].kill()
        with pytest.raises(LedgerUnavailable, match="has ended"):  # and no ledger seems sound for it
            signatures.wrong()
    assert (processes_for(100), processes_for(10**6)) == (0, len(os.sched_getaffinity(0)))


def test_a_long_verification_tells_how_far_it_is(used, location, ledger, monkeypatch):
    monkeypatch.setattr("dpswd.private_curator.books.audit.PROGRESS_EACH", 5)
    sentences = []
    report = verify_file(
        location,
        public_key=ledger.public_key,
        accounting=ToyAccounting(),
        progress=ProgressReporter(sentences.append, each_s=0.0),
    )
    total = report.entries
    assert sentences == [
        f"the ledger: {done} of {total} entries are verified" for done in (0, *range(5, total + 1, 5), total)
    ]
    quiet = []
    verify_file(
        location, public_key=ledger.public_key, accounting=ToyAccounting(), progress=ProgressReporter(quiet.append)
    )
    assert quiet == []


def test_flipped_bits_of_the_file(used, check, path):
    """Wherever a byte of the file is changed: verification says so, or the byte carried no content."""

    def content_of_tables():
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return list(connection.iterdump())

    content, tables = path.read_bytes(), content_of_tables()
    noticed, positions = 0, range(1, len(content), len(content) // 60)
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        try:
            sound = check(used).ok
        except (LedgerCorrupt, LedgerUnavailable):
            sound = False
        noticed += not sound
        assert not sound or content_of_tables() == tables, position
    path.write_bytes(content)
    assert check(used).ok
    assert noticed > len(positions) // 10


@both
class TestExport:
    def test_is_checked_offline(self, used, reopen):
        ledger = reopen()
        entries, unreadable = read_export(ledger.export())
        assert not unreadable
        assert verify_receipts(entries, [*used, ledger.head()], ledger.public_key) == ()

    def test_history_continues_where_a_reader_stopped(self, used, reopen):
        ledger = reopen()
        everything = list(ledger.history())
        assert list(ledger.history(after=5)) == everything[5:]

    def test_of_more_entries_than_a_page(self, ledger, monkeypatch):
        for number in range(30):
            ledger.approve_extractor(f"{number:064x}")
        for module in ("core.ledger.store", "books.ledger"):
            monkeypatch.setattr(f"dpswd.private_curator.{module}.PAGE", 7)
        assert [entry.seq for entry in ledger.history()] == list(range(1, ledger.status().entries + 1))


@both
def test_verify_counts_clients_shares(ledger, open_run):
    ledger.add_client("bob", "b" * 64, ToyBudget(0.5))
    open_run(ledger, client="bob")
    ledger.set_share("bob", ToyBudget(0.6), reason="x")
    ledger.extend_budget(ToyBudget(2.0), reason="x")
    open_run(ledger, client="bob", request_id="2")
    assert ledger.verify().ok
    assert [entry.kind for entry in ledger.history()][-3:] == [Kind.SHARE_SET, Kind.BUDGET_EXTENDED, Kind.RUN_OPENED]


def test_layout_is_what_the_schema_says(ledger, path):
    ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        names = set(layout(connection))
    assert {"table entries", "table runs", "table requests", "table replies"} <= names
    assert "trigger entries_are_never_changed" in names


@both
def test_a_ledger_cannot_be_opened_with_an_unlawful_entry(ledger, key, location):
    """Charges beyond the budget do not stand in the books even when they are signed."""
    with ledger._transaction("test") as transaction:
        transaction.append(Kind.UNFROZEN, {"reason": "x"})
        transaction.append(Kind.CLIENT_REVOKED, {"client": "nobody", "reason": "x"})
    ledger.close()
    with pytest.raises(LedgerCorrupt, match="cannot stand"):
        Ledger.open(location, key=key, accounting=ToyAccounting())
