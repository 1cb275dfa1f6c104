"""A copy of a ledger is not served; what one has released all the same is charged, and then production goes on."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toy_accounting import ToyAccounting, ToyBudget

from dpswd.private_curator.books import place
from dpswd.private_curator.books.backup import restore
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.books.place import elsewhere, place_of
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.shared.books.chain_checks import Tampering
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, LedgerCorrupt, SettingsError
from dpswd.shared.core.ledger.receipts import Signed, SignedEntry

both = pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)
DIGEST = "d" * 64
REASON = "the copy of 3 May served until noon; counted"


@pytest.fixture
def opened(location, key):
    """Opens a ledger as a curator does; the one in use by default."""

    def opened(where=location, **options):
        return Ledger.open(where, key=key, accounting=ToyAccounting(), **options)

    return opened


@pytest.fixture
def copy(ledger, location, new_copy, opened):
    """A copy of the ledger as it is now, which writes under the same key."""
    return lambda: opened(new_copy())


@pytest.fixture
def new_copy(ledger, location, tmp_path, request):
    """Makes one."""

    def new_copy(name="copy"):
        ledger.backup(tmp_path / name)
        if isinstance(location, SqliteFile):
            return SqliteFile(tmp_path / name)
        other = dataclasses.replace(location, schema=f"{location.schema}_{name}")
        other.replace(tmp_path / name, lambda _: None)  # as `pg_dump` and `psql` would
        return other

    return new_copy


def test_a_file_is_in_its_place_until_it_is_copied(ledger, location, opened, tmp_path):
    ledger.close()
    opened(here=True).close()
    for number, copied in enumerate((shutil.copyfile, shutil.copy2, shutil.move)):
        elsewhere_ = tmp_path / f"other-{number}" / location.path.name
        elsewhere_.parent.mkdir()
        copied(location.path, elsewhere_)
        with pytest.raises(SettingsError, match=r"was copied, moved.*entry 1 states another place.*ledger move"):
            opened(SqliteFile(elsewhere_), here=True)
    assert not location.path.exists()
    moved = SqliteFile(elsewhere_)
    with opened(moved) as there:
        there.move(reason="the old machine is gone")
        with pytest.raises(InvalidValue, match="nothing to move"):
            there.move(reason="once more")
        assert there.verify().ok
    with opened(moved, here=True) as there:
        assert there.head().payload["reason"] == "the old machine is gone"
        assert there.head().payload["accepted"] is None  # nothing is forgotten by it


def test_the_same_path_with_another_file_is_another_place(ledger, location, opened, tmp_path):
    """A home put back with `cp` or `rsync`, past `restore`."""
    ledger.close()
    shutil.copy2(location.path, tmp_path / "kept")
    location.path.unlink()
    shutil.copy2(tmp_path / "kept", location.path)
    with pytest.raises(SettingsError, match="states another place"):
        opened(here=True)


def test_another_machine_is_another_place_and_none_is_no_statement(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()

    def on(machine, named=file):
        (tmp_path / "machine-id").write_text(machine)
        monkeypatch.setattr(place, "_MACHINE_ID", tmp_path / "machine-id")
        return place_of(file, named=named)

    here, container = on("a" * 32 + "\n"), on("uninitialized\n")
    assert "a" * 32 not in str(here)
    assert not elsewhere(here, on("a" * 32))
    assert elsewhere(here, on("b" * 32))  # a disk, copied as a whole
    assert elsewhere(here, on("a" * 32, named=tmp_path / "snapshot" / "file"))
    assert container["machine"] is None
    assert not elsewhere(container, here)
    assert not elsewhere(here, container)
    assert not elsewhere({}, here)
    assert elsewhere({**container, "born": 1}, container)
    assert not elsewhere({**container, "born": None}, container)
    assert elsewhere(container, {"database": "7"}) is False


@both
def test_a_restored_ledger_stands_where_it_was_restored(ledger, location, key, opened, tmp_path):
    ledger.backup(tmp_path / "backup")
    ledger.close()
    restore(tmp_path / "backup", location, key=key, accounting=ToyAccounting())
    opened(here=True).close()
    if isinstance(location, SqliteFile):
        with pytest.raises(SettingsError, match="another place"):
            opened(SqliteFile(tmp_path / "backup"), here=True)


@pytest.mark.parametrize("location", ["postgres"], indirect=True)
def test_a_dump_in_another_server_is_a_copy(ledger, location, opened, monkeypatch):
    """PostgreSQL's own number stands for the server; a standby has its primary's."""
    ledger.close()
    opened(here=True).close()
    monkeypatch.setattr(type(location), "place", lambda *_: {"database": "another"})
    with pytest.raises(SettingsError, match="another place"):
        opened(here=True)


@both
def test_what_a_copy_released_is_charged_and_then_production_goes_on(ledger, copy, open_run, answer, opened):
    """Attack: a client keeps a receipt of a copy, and the original refused everything for ever."""
    shared = open_run(ledger, request_id="shared", cost=1000)  # 0.01
    with copy() as served:
        own = open_run(served, request_id="at the copy", cost=5000)  # 0.05
        receipts = [own.receipt.entry, answer(served, own, "step").receipt.entry]
        receipts.append(answer(served, shared, "shared step").receipt.entry)  # again, with noise of its own
    before = answer(ledger, shared, "shared step").receipt.entry
    spent = ledger.status().data_set.epsilon_spent
    ledger.close()
    with opened() as ledger, pytest.raises(LedgerCorrupt, match="lacks entry"):
        ledger.hold_to(receipts[-1])
    with opened() as ledger:
        assert ledger.count_copies([*receipts, *receipts, before], reason=REASON) == 2
        entry = ledger.head()
        assert {run["run"]: run["times"] for run in entry.payload["runs"]} == {own.run_id: 1, shared.run_id: 1}
        assert entry.payload["reason"] == REASON
        assert ledger.status().data_set.epsilon_spent == pytest.approx(spent + 0.05 + 0.01)
        assert ledger.verify().ok
        for receipt in receipts:
            ledger.hold_to(receipt)
        open_run(ledger, request_id="production goes on")
        with pytest.raises(InvalidValue, match="nothing to do"):
            ledger.count_copies(receipts, reason=REASON)


@both
def test_a_receipt_that_nobody_counted_still_stops(ledger, copy, open_run, answer):
    with copy() as served:
        first = open_run(served, request_id="first")
        second = open_run(served, request_id="second")
        step = answer(served, second, "step").receipt.entry
    ledger.count_copies([first.receipt.entry], reason=REASON)
    ledger.hold_to(first.receipt.entry)
    with pytest.raises(InvalidValue, match=f"step of run {second.run_id}, and none of its opening"):
        ledger.count_copies([step], reason=REASON)
    with pytest.raises(LedgerCorrupt, match="lacks entry"):
        ledger.hold_to(second.receipt.entry)


def test_two_copies_are_charged_twice_and_one_only_once(ledger, new_copy, opened, open_run, answer):
    shared = open_run(ledger, request_id="shared")
    receipts = []
    for name in ("one", "two"):
        with opened(new_copy(name)) as served:
            receipts.append([answer(served, shared, f"{step} at {name}").receipt.entry for step in range(3)])
    assert ledger.count_copies(receipts[0][:2], reason=REASON) == 1
    assert ledger.count_copies(receipts[0], reason=REASON) == 0  # a further step of what was charged
    assert ledger.count_copies(receipts[1], reason=REASON) == 1
    assert ledger.status().data_set.epsilon_spent == pytest.approx(0.03)
    assert ledger.verify().ok


def test_more_than_the_budget_is_counted_and_nothing_fits_any_more(ledger, copy, open_run):
    """What was released was released: it is no question of what the budget allows."""
    ledger.set_share("alice", ToyBudget(0.5), reason="x")
    with copy() as served:
        runs = [open_run(served, request_id=f"{number}", steps=50, cost=9000) for number in range(1)]
    open_run(ledger, request_id="here", steps=50, cost=9000)
    ledger.freeze(reason="x")
    assert ledger.count_copies([run.receipt.entry for run in runs], reason=REASON) == 1
    ledger.unfreeze(reason="x")
    status = ledger.status()
    assert status.data_set.epsilon_spent == pytest.approx(0.9)
    ((_, share),) = status.clients
    assert share.epsilon_spent == pytest.approx(0.9)
    assert share.epsilon_remaining == 0.0
    with pytest.raises(BudgetExhausted) as refused:
        open_run(ledger, request_id="more", steps=1, cost=1000)
    assert refused.value.scope == "client"


def test_only_this_ledger_s_key_proves_anything(ledger, copy, open_run, answer):
    with copy() as served:
        genuine = open_run(served).receipt.entry
    foreign = Ed25519PrivateKey.generate().sign(Signed.ENTRY.over(genuine.statement))
    for signature in (bytes(64), foreign):
        with pytest.raises(InvalidValue, match="nothing to do"):
            ledger.count_copies([SignedEntry.parse(genuine.statement, signature)], reason=REASON)


def test_a_count_that_charges_too_little_does_not_verify(ledger, copy, open_run, monkeypatch):
    with copy() as served:
        receipt = open_run(served, cost=5000).receipt.entry
    price = ToyAccounting.price
    with monkeypatch.context() as patched:
        patched.setattr(
            ToyAccounting, "price", lambda *given: price(*given[:-1], dataclasses.replace(given[-1], steps=1))
        )
        ledger.count_copies([receipt], reason=REASON)
    report = ledger.verify()
    assert [finding.tampering for finding in report.findings] == [Tampering.UNLAWFUL]
    assert "charges the data set epsilon 0.005 for a run that costs 0.05" in report.findings[0].text


def test_a_signed_act_counts(ledger, copy, open_run, reopen):
    anna = Operator("anna", Ed25519PrivateKey.generate())
    reopen(by=anna).enrol("anna", anna.credential)
    with copy() as served:
        receipt = open_run(served).receipt.entry
    with pytest.raises(SettingsError, match="give yours with --credential"):
        reopen().count_copies([receipt], reason=REASON)
    assert reopen(by=anna).count_copies([receipt], reason=REASON) == 1
