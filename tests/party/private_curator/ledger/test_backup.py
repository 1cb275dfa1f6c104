"""Backups are whole; a restore forgets nothing that anybody knows of without a written acceptance."""

from __future__ import annotations

import dataclasses
import random
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toy_accounting import ToyAccounting

from dpswd.private_curator.books.audit import verify_file
from dpswd.private_curator.books.backup import restore
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.statements import Request
from dpswd.shared.books.chain_checks import Tampering
from dpswd.shared.core.errors import InvalidValue, LedgerCorrupt, LedgerUnavailable, RestoreRefused

DIGEST = "d" * 64
both = pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)
ACCEPTANCE = "The disk of 3 May is lost; the ethics board has accepted this, minutes of 5 May."


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "backup.sqlite"


@pytest.fixture
def replaced(request, location, path):
    """Where the ledger that a restore replaced stands."""
    if isinstance(location, SqliteFile):
        return SqliteFile(path.with_name("ledger.sqlite.replaced-1"))
    return dataclasses.replace(location, schema=f"{location.schema}_replaced_1")


@pytest.fixture
def destroy(request, location):
    """Takes the ledger away, as a lost disk would."""

    def destroy():
        if isinstance(location, SqliteFile):
            location.path.unlink()
            return
        with request.getfixturevalue("postgres").administer() as administrator:
            administrator.execute(f"DROP SCHEMA {location.schema} CASCADE")

    return destroy


@pytest.fixture
def bring_back(copy, location, key):
    def bring_back(**options):
        return restore(copy, location, key=key, accounting=ToyAccounting(), **options)

    return bring_back


@both
def test_backup_is_the_ledger_as_it_was(ledger, copy, open_run, answer, key):
    run = open_run(ledger)
    stored = answer(ledger, run, "step")
    ledger.backup(copy)
    assert {file.name for file in copy.parent.iterdir()} >= {"backup.sqlite"}
    assert not copy.with_name("backup.sqlite-wal").exists()
    assert copy.stat().st_mode & 0o777 == 0o600
    assert verify_file(copy, public_key=ledger.public_key, accounting=ToyAccounting()).ok
    open_run(ledger, request_id="later")
    with Ledger.open(copy, key=key, accounting=ToyAccounting()) as opened:
        assert opened.status().runs == 1
        assert opened.begin_step(Request(client="alice", request_id="step", digest=DIGEST), run_id=run.run_id) == stored


def test_backup_never_replaces_a_file(ledger, copy):
    copy.write_text("precious")
    with pytest.raises(LedgerUnavailable, match="exists already"):
        ledger.backup(copy)
    assert copy.read_text() == "precious"
    assert not list(copy.parent.glob("*.draft-*"))


@both
def test_backup_while_the_curator_works(ledger, copy, open_run, answer):
    run = open_run(ledger, steps=60)
    worker = threading.Thread(target=lambda: [answer(ledger, run, f"step-{n}", bytes(20_000)) for n in range(60)])
    worker.start()
    copies = [copy.with_name(f"backup-{number}") for number in range(6)]
    for target in copies:
        ledger.backup(target)
    worker.join(timeout=60)
    for target in copies:
        report = verify_file(target, public_key=ledger.public_key, accounting=ToyAccounting())
        assert report.ok, report.findings


@both
class TestRestore:
    def test_of_everything(self, ledger, copy, bring_back, open_run, reopen, replaced):
        run = open_run(ledger)
        ledger.backup(copy)
        receipts = [ledger.head()]
        ledger.close()
        assert bring_back() is None
        again = reopen()
        last = list(again.history())[-1]
        assert (last.kind, last.payload["accepted"], last.payload["forgotten"]) == ("restored", None, [])
        assert again.verify(receipts=receipts).ok
        assert again.run(client="alice", run_id=run.run_id) == run
        assert replaced.exists()

    def test_that_forgets_is_refused(self, ledger, copy, bring_back, open_run, answer, reopen):
        open_run(ledger)
        ledger.backup(copy)
        forgotten = open_run(ledger, request_id="later")
        answer(ledger, forgotten, "step")
        ledger.close()
        with pytest.raises(RestoreRefused, match="3 entries would be forgotten, among them the charges of 1 runs"):
            bring_back()
        assert reopen().status().runs == 2  # nothing happened

    def test_that_forgets_is_done_with_a_written_acceptance(self, ledger, copy, bring_back, open_run, reopen, replaced):
        open_run(ledger)
        ledger.backup(copy)
        forgotten = open_run(ledger, request_id="later")
        ledger.close()
        loss = bring_back(accept_loss=ACCEPTANCE)
        assert loss.runs == (forgotten.run_id,)
        again = reopen()
        entry = list(again.history())[-1]
        assert entry.payload["accepted"] == ACCEPTANCE
        assert entry.payload["forgotten_runs"] == [forgotten.run_id]
        report = again.verify(receipts=[forgotten.receipt.entry])
        # The client's receipt shows the loss for ever.
        assert {finding.tampering for finding in report.findings} == {Tampering.REWRITTEN}
        with Ledger.open(replaced, key=again._key, accounting=ToyAccounting()) as restored:
            assert restored.status().runs == 2

    @pytest.mark.parametrize("text", ["", "yes", "I accept."])
    def test_acceptance_takes_a_sentence(self, ledger, copy, bring_back, open_run, text):
        ledger.backup(copy)
        open_run(ledger)
        ledger.close()
        with pytest.raises(InvalidValue, match="sentence"):
            bring_back(accept_loss=text)

    def test_acts_of_the_operator_are_not_forgotten_either(self, ledger, copy, bring_back):
        ledger.backup(copy)
        ledger.revoke_client("alice", reason="key lost")
        ledger.close()
        with pytest.raises(RestoreRefused, match="1 entries would be forgotten"):
            bring_back()

    def test_receipts_count_when_the_ledger_is_gone(self, ledger, copy, bring_back, open_run, answer, destroy):
        run = open_run(ledger)
        ledger.backup(copy)
        receipt = answer(ledger, run, "step").receipt.entry
        ledger.close()
        destroy()
        with pytest.raises(RestoreRefused, match=r"1 entries would be forgotten.*no present ledger"):
            bring_back(receipts=[receipt])
        loss = bring_back(receipts=[receipt], accept_loss=ACCEPTANCE)
        assert loss.entries == (receipt.hash,)

    def test_nobody_can_tell_without_a_present_ledger(self, ledger, copy, bring_back, destroy):
        ledger.backup(copy)
        ledger.close()
        destroy()
        with pytest.raises(RestoreRefused, match="no present ledger"):
            bring_back()

    def test_a_damaged_backup_is_refused(self, ledger, copy, bring_back, open_run):
        open_run(ledger)
        ledger.backup(copy)
        ledger.close()
        content = bytearray(copy.read_bytes())
        where = content.index(b'"kind":"run-opened"')
        content[where + 8] ^= 1
        copy.write_bytes(content)
        with pytest.raises(LedgerCorrupt, match="does not verify"):
            bring_back(accept_loss=ACCEPTANCE)

    def test_another_ledgers_backup_is_refused(self, ledger, copy, location):
        ledger.backup(copy)
        ledger.close()
        with pytest.raises(LedgerCorrupt):
            restore(
                copy, location, key=Ed25519PrivateKey.generate(), accounting=ToyAccounting(), accept_loss=ACCEPTANCE
            )

    def test_not_below_a_running_curator(self, ledger, copy, bring_back, open_run):
        ledger.backup(copy)
        open_run(ledger)  # claims the right to charge
        with pytest.raises(LedgerUnavailable, match="serves"):
            bring_back(accept_loss=ACCEPTANCE)


@pytest.mark.parametrize("damage", ["scrambled", "half"])
def test_a_damaged_ledger_is_set_aside(ledger, copy, bring_back, open_run, path, reopen, damage):
    open_run(ledger)
    ledger.backup(copy)
    ledger.close()
    content = path.read_bytes()
    broken = random.Random(1).randbytes(len(content)) if damage == "scrambled" else content[: len(content) // 2]
    path.write_bytes(broken)
    with pytest.raises(RestoreRefused, match="present ledger"):
        bring_back()
    bring_back(accept_loss=ACCEPTANCE)
    assert reopen().status().runs == 1
    assert path.with_name("ledger.sqlite.replaced-1").read_bytes() == broken
