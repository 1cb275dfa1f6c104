"""Every way of tampering with a real ledger or with a client's receipts, and which of the two verifications finds it.

The ledger is the curator's own, with the real accountant and two clients whose entries alternate. "Stranger" has the
file and not the key; "holder" has both and signs a new history.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.private_curator.books.audit import verify_file
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.renyi import RENYI
from dpswd.private_curator.core.ledger.statements import Request
from dpswd.public_client.cli.main import main
from dpswd.public_client.curator.receipts import ReceiptFile, check_pinned
from dpswd.public_client.curator.verify import pinned_key, read_receipts, verify
from dpswd.shared.books.chain_checks import Tampering, read_export
from dpswd.shared.books.view import read_view, write_view
from dpswd.shared.core.errors import InvalidValue, LedgerCorrupt, ProtocolError, SettingsError
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.ledger.receipts import GENESIS, Signed, SignedEntry, canonical_json, sha256
from dpswd.shared.core.privacy.events import QuantileCoefficients, RunEvent, StepEvent

KEY = Ed25519PrivateKey.from_private_bytes(b"v" * 32)
PUBLIC = KEY.public_key().public_bytes_raw()
ACCOUNTING = RENYI
RECORDS = 200
STEPS = 4
TIME = "2026-05-01T00:00:00+00:00"


def _event(steps=STEPS):
    part = QuantileCoefficients(feature_dimension=8, directions=4, coefficients=1, sigma=2.0)
    return RunEvent(step=StepEvent(records=RECORDS, batch=20, parts=(part,)), steps=steps)


def _open(ledger, client, request):
    digest = sha256(request.encode())
    return ledger.open_run(
        Request(client=client, request_id=request, digest=digest), event=_event(), parameters=request.encode()
    )


def _step(ledger, run, request):
    digest = sha256(request.encode())
    grant = ledger.begin_step(Request(client=run.client, request_id=request, digest=digest), run_id=run.run_id)
    return ledger.finish_step(grant, reply=request.encode(), audit={}).receipt.entry


@dataclass
class Story:
    """What happened, and what everybody kept."""

    path: Path
    entries: list[SignedEntry]
    receipts: list[SignedEntry]  # alice's
    backup: Path
    backup_entries: int
    early_view: list[str]

    def view(self, entries=None):
        return list(write_view(self.entries if entries is None else entries, client="alice", time=TIME, sign=KEY.sign))

    def export(self, entries=None):
        return [entry.to_json() for entry in (self.entries if entries is None else entries)]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """alice and bob take turns; a backup and a view are made in the middle; bob has the last word."""
    directory = tmp_path_factory.mktemp("ledger")
    path = directory / "ledger.db"
    budget = ACCOUNTING.budget(epsilon=8.0, delta=1e-5, relation="replace-one")
    with Ledger.create(path, key=KEY, records=RECORDS, budget=budget) as ledger:
        for name in ("alice", "bob"):
            ledger.add_client(name, sha256(name.encode()))
        runs = {name: _open(ledger, name, f"{name}-open") for name in ("alice", "bob")}
        receipts = [runs["alice"].receipt.entry]
        for number in range(2):
            receipts.append(_step(ledger, runs["alice"], f"alice-{number}"))
            _step(ledger, runs["bob"], f"bob-{number}")
        ledger.backup(directory / "backup.db")
        backup_entries = ledger.status().entries
        early = list(write_view(ledger.history(), client="alice", time=TIME, sign=KEY.sign))
        again = _open(ledger, "alice", "alice-again")
        receipts.append(again.receipt.entry)
        receipts.append(_step(ledger, again, "alice-again-0"))
        receipts.append(_step(ledger, runs["alice"], "alice-2"))
        _step(ledger, runs["bob"], "bob-2")
        entries = list(ledger.history())
    return Story(path, entries, receipts, directory / "backup.db", backup_entries, early)


def _tampering(receipts, ledger=None, **options):
    return {f.tampering for f in verify(receipts, public_key=PUBLIC, ledger=ledger, **options).findings}


def _curator_finds(path, receipts=()):
    report = verify_file(path, public_key=PUBLIC, accounting=ACCOUNTING, receipts=receipts)
    return {finding.tampering for finding in report.findings}


def _resigned(entries, change):
    """A new history by the holder of the key: statements changed, linked and signed anew."""
    values = change([json.loads(entry.statement) for entry in entries])
    made, previous = [], GENESIS
    for seq, value in enumerate(values, start=1):
        statement = canonical_json({**value, "seq": seq, "previous": previous})
        made.append(SignedEntry.parse(statement, KEY.sign(Signed.ENTRY.over(statement))))
        previous = made[-1].hash
    return made


def test_all_is_well(story):
    assert not _tampering(story.receipts)
    assert not _tampering(story.receipts, story.export())
    report = verify(story.receipts, public_key=PUBLIC, ledger=story.view(), earlier=[story.early_view])
    assert report.ok
    assert (report.receipts, report.runs, report.steps) == (6, 2, 4)
    assert report.entries == len(story.entries)
    assert not _curator_finds(story.path, story.receipts)


def test_a_file_that_is_no_ledger_is_one_error_and_not_a_finding_for_each_line(story):
    own = [entry.to_json() for entry in story.receipts]
    for lines, held in ((own, "nothing but your own receipts"), (['{"some": "log"}'] * 30, "no entry of a ledger")):
        with pytest.raises(InvalidValue, match=held):
            verify(story.receipts, public_key=PUBLIC, ledger=lines)


def test_a_view_shows_nothing_of_others(story):
    text = "\n".join(story.view())
    assert "bob" not in text
    assert sha256(b"bob-0") not in text
    view, findings = read_view(story.view(), PUBLIC)
    assert not findings
    assert {entry.kind for entry in view.shown.values()} == {
        "data-set-opened", "client-added", "run-opened", "step-consumed", "step-answered",
    }  # fmt: skip
    assert len(view.hashes) == len(story.entries) > len(view.shown)


class TestViews:
    @given(st.data())
    @settings(max_examples=tried(80))
    @pytest.mark.long
    def test_any_changed_letter_is_detected(self, story, data):
        text = "\n".join(story.view())
        place = data.draw(st.integers(0, len(text) - 1))
        letter = data.draw(st.characters(min_codepoint=32, max_codepoint=126).filter(lambda c: c != text[place]))
        changed = (text[:place] + letter + text[place + 1 :]).split("\n")
        try:
            assert _tampering(story.receipts, changed)
        except InvalidValue:
            assert "\n" not in text[:place]  # the header itself is no header any more

    def test_a_signature_has_one_spelling(self, story):
        lines = story.view()
        letter = next(letter for letter in lines[0][14:142] if letter in "abcdef")
        respelt = lines[0][:14] + lines[0][14:142].replace(letter, letter.upper()) + lines[0][142:]
        with pytest.raises(InvalidValue):
            _tampering(story.receipts, [respelt, *lines[1:]])

    @given(st.data())
    @settings(max_examples=tried(60))
    def test_deleted_repeated_and_reordered_lines_are_detected(self, story, data):
        lines = story.view()
        one = data.draw(st.integers(1, len(lines) - 1))
        two = data.draw(st.integers(1, len(lines) - 1).filter(lambda other: other != one))
        kind = data.draw(st.sampled_from(["delete", "repeat", "swap", "move", "cut"]))
        changed = list(lines)
        if kind == "delete":
            del changed[one]
        elif kind == "repeat":
            changed.insert(two, changed[one])
        elif kind == "swap":
            changed[one], changed[two] = changed[two], changed[one]
        elif kind == "move":
            changed.insert(two, changed.pop(one))
        else:
            changed = changed[:one]
        assert Tampering.EDITED in _tampering(story.receipts, changed)

    @given(st.data())
    @settings(max_examples=tried(60))
    @pytest.mark.long
    def test_the_holder_cannot_change_what_stands_before_the_last_receipt(self, story, data):
        """Edit, deletion, insertion or exchange, of anybody's entry, signed anew with the right key."""
        last = story.receipts[-1].seq
        place = data.draw(st.integers(0, last - 2))
        kind = data.draw(st.sampled_from(["edit", "delete", "insert", "exchange"]))

        def change(values):
            values = [dict(value) for value in values]
            if kind == "edit":
                values[place]["time"] = "1999-01-01T00:00:00.000000Z"
            elif kind == "delete":
                del values[place]
            elif kind == "insert":
                values.insert(place, {**values[place], "kind": "frozen", "payload": {"reason": "x"}})
            else:
                values[place], values[place + 1] = values[place + 1], values[place]
            return values

        forged = _resigned(story.entries, change)
        for ledger in (story.view(forged), story.export(forged)):
            assert _tampering(story.receipts, ledger) & {Tampering.REWRITTEN, Tampering.TRUNCATED, Tampering.MISSING}

    @pytest.mark.parametrize("length", [1, 5, 9, 14])
    def test_truncation_and_rollback(self, story, length):
        assert length < story.receipts[-1].seq
        for ledger in (story.view(story.entries[:length]), story.export(story.entries[:length])):
            assert Tampering.TRUNCATED in _tampering(story.receipts, ledger)

    def test_what_stands_behind_the_last_receipt_needs_an_earlier_view(self, story):
        """The honest limit: nobody can miss what no witness stands behind."""
        tail = story.receipts[-1].seq
        assert tail < len(story.entries)
        cut = story.entries[:tail]
        assert not _tampering(story.receipts, story.view(cut))
        tampering = _tampering(story.receipts, story.view(cut), earlier=[story.view()])
        assert tampering == {Tampering.TRUNCATED}

        def other_end(values):
            values[-1]["payload"]["reply"] = "0" * 64
            return values

        rewritten = _resigned(story.entries, other_end)
        assert not _tampering(story.receipts, story.view(rewritten))
        assert _tampering(story.receipts, story.view(rewritten), earlier=[story.view()]) == {Tampering.REWRITTEN}

    def test_another_key_and_another_clients_view(self, story):
        foreign = Ed25519PrivateKey.generate()
        view = list(write_view(story.entries, client="alice", time=TIME, sign=foreign.sign))
        assert Tampering.FORGED in _tampering(story.receipts, view)
        others = [
            SignedEntry.parse(entry.statement, foreign.sign(Signed.ENTRY.over(entry.statement)))
            for entry in story.entries
        ]
        view = list(write_view(others, client="alice", time=TIME, sign=foreign.sign))
        (finding,) = verify(story.receipts, public_key=PUBLIC, ledger=view).findings
        assert "it is another curator's ledger, or forged as a whole" in finding.text
        bobs = list(write_view(story.entries, client="bob", time=TIME, sign=KEY.sign))
        assert Tampering.INCONSISTENT in _tampering(story.receipts, bobs, complete=False)

    @pytest.mark.parametrize("lines", [[], ["{}"], ['{"view":"x","signature":""}'], ['{"view":1,"signature":"00"}']])
    def test_what_is_no_view_is_said_so(self, lines):
        with pytest.raises(InvalidValue, match=r"view|empty"):
            read_view(lines, PUBLIC)

    @pytest.mark.parametrize(
        ("kind", "change"),
        [
            ("run-opened", {"steps": 1}),  # more steps are answered than were charged
            ("step-consumed", {"step": 2}),  # step 1 was never begun
            ("step-answered", {"step": 2}),  # answered before it was begun, and the same step twice
            ("step-answered", {"digest": "0" * 64}),  # another request's content
        ],
    )
    def test_an_unlawful_history_is_detected_without_any_receipt(self, story, kind, change):
        def rewrite(values):
            own = next(v for v in values if v["kind"] == kind and v["payload"]["client"] == "alice")
            own["payload"].update(change)
            return values

        assert Tampering.UNLAWFUL in _tampering([], story.view(_resigned(story.entries, rewrite)), complete=False)

    def test_spending_never_shrinks(self, story):
        def refund(values):
            run = next(v for v in values if v["kind"] == "run-opened")
            price = json.loads(run["payload"]["prices"]["data set"])
            text = json.dumps(price)
            first = str(next(value for value in _numbers(price) if value > 0))
            run["payload"]["prices"]["data set"] = text.replace(first, "-" + first, 1)
            return values

        assert Tampering.UNLAWFUL in _tampering([], story.view(_resigned(story.entries, refund)), complete=False)


def _numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, float):
        yield value


class TestReceipts:
    @given(st.data())
    @settings(max_examples=tried(80))
    def test_any_changed_letter_is_detected(self, story, data):
        text = "\n".join(entry.to_json() for entry in story.receipts)
        place = data.draw(st.integers(0, len(text) - 1))
        letter = data.draw(st.characters(min_codepoint=32, max_codepoint=126).filter(lambda c: c != text[place]))
        read, unreadable = read_export((text[:place] + letter + text[place + 1 :]).split("\n"))
        assert unreadable or _tampering(read) or [e.to_json() for e in read] == [e.to_json() for e in story.receipts]

    @pytest.mark.parametrize("field", ["step", "run"])
    def test_a_field_under_another_name_is_detected(self, story, field):
        renamed = [entry.to_json().replace(f'{field}\\":', f'{field}_\\":') for entry in story.receipts]
        read, unreadable = read_export(renamed)
        assert not unreadable
        assert Tampering.FORGED in _tampering(read)

    @given(st.data())
    @settings(max_examples=tried(40))
    def test_a_deleted_receipt_is_detected_with_a_view(self, story, data):
        rest = data.draw(st.lists(st.sampled_from(story.receipts), unique_by=id, max_size=len(story.receipts) - 1))
        assert _tampering(rest, story.view()) == {Tampering.UNRECEIPTED} or not rest
        assert not _tampering(rest, story.view(), complete=False) or not rest

    def test_a_deleted_receipt_is_detected_alone_where_a_later_one_shows_it(self, story):
        without = [entry for entry in story.receipts if entry.payload.get("step") != 2]
        assert _tampering(without) == {Tampering.UNRECEIPTED}
        assert _tampering(story.receipts[1:]) == {Tampering.UNRECEIPTED}  # the charge is missing
        assert not _tampering(story.receipts[:-1])  # the last one leaves no trace here; the view has it
        assert _tampering(story.receipts[:-1], story.view()) == {Tampering.UNRECEIPTED}

    @given(st.randoms(use_true_random=False))
    @settings(max_examples=tried(20))
    def test_order_and_repetition_mean_nothing(self, story, random):
        shuffled = [*story.receipts, *story.receipts[:2]]
        random.shuffle(shuffled)
        assert not _tampering(shuffled, story.view())

    def test_invented_and_foreign_receipts(self, story):
        value = json.loads(story.receipts[1].statement)
        statement = canonical_json({**value, "payload": {**value["payload"], "step": 3}})
        forged = SignedEntry.parse(statement, Ed25519PrivateKey.generate().sign(Signed.ENTRY.over(statement)))
        assert Tampering.FORGED in _tampering([*story.receipts, forged])
        bobs = next(e for e in story.entries if e.kind == "step-answered" and e.payload["client"] == "bob")
        assert Tampering.UNLAWFUL in _tampering([*story.receipts, bobs])


class TestFile:
    """The database itself: what `dpswd-curator ledger verify` finds, and what reaches the client."""

    @pytest.fixture
    def copy(self, story, tmp_path):
        return Path(shutil.copyfile(story.path, tmp_path / "ledger.db"))

    def _tamper(self, path, *statements):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for name, _ in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(statement)
            for _, sql in triggers:
                connection.execute(sql)

    @given(st.data())
    @settings(max_examples=tried(25))
    def test_a_strangers_edit_deletion_or_exchange_is_detected_and_never_exported(self, story, tmp_path_factory, data):
        path = Path(shutil.copyfile(story.path, tmp_path_factory.mktemp("copy") / "ledger.db"))
        seq = data.draw(st.integers(1, len(story.entries) - 1))
        kind = data.draw(st.sampled_from(["edit", "delete", "exchange"]))
        if kind == "edit":
            self._tamper(
                path,
                f"UPDATE entries SET statement = CAST(replace(statement, '202', '302') AS BLOB) WHERE seq = {seq}",
            )
        elif kind == "delete":
            self._tamper(path, f"DELETE FROM entries WHERE seq = {seq}")
        else:
            self._tamper(
                path,
                f"UPDATE entries SET seq = 999999 WHERE seq = {seq}",
                f"UPDATE entries SET seq = {seq} WHERE seq = {seq + 1}",
                f"UPDATE entries SET seq = {seq + 1} WHERE seq = 999999",
            )
        assert _curator_finds(path)
        with pytest.raises(LedgerCorrupt):  # so no view of it can be made
            Ledger.open(path, key=KEY)

    def test_a_truncated_ledger_is_detected_by_receipts_on_either_side(self, story, copy):
        last = story.receipts[-1]
        where = f"WHERE seq >= {last.seq}"
        run = last.payload["run"]
        # answered entries alone are cut, with every table brought along
        self._tamper(
            copy,
            f"DELETE FROM replies {where}",
            f"DELETE FROM requests {where}",
            f"DELETE FROM entries {where}",
        )
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("SELECT count(*) FROM entries").fetchone()[0] == last.seq - 1
        assert run
        assert Tampering.TRUNCATED in _curator_finds(copy, story.receipts)
        assert Tampering.TRUNCATED in _tampering(story.receipts, story.view(story.entries[: last.seq - 1]))

    def test_an_older_backup_that_goes_on_is_detected_by_the_receipts_alone(self, story, tmp_path):
        """Rolled back and used again: places are given twice, and two signed receipts for one place accuse."""
        path = Path(shutil.copyfile(story.backup, tmp_path / "ledger.db"))
        assert not _curator_finds(path)  # by itself the backup is sound
        assert Tampering.TRUNCATED in _curator_finds(path, story.receipts)
        with Ledger.open(path, key=KEY) as ledger:
            new = [_open(ledger, "alice", "alice-new").receipt.entry]
            run = ledger.runs(client="alice")[-1]
            new += [_step(ledger, run, f"alice-new-{number}") for number in range(3)]
            entries = list(ledger.history())
        assert len(entries) > story.backup_entries
        assert Tampering.REWRITTEN in _curator_finds(path, story.receipts)
        assert Tampering.REWRITTEN in _tampering([*story.receipts, *new], complete=False)
        assert Tampering.REWRITTEN in _tampering(story.receipts, story.view(entries), complete=False)
        assert Tampering.REWRITTEN in _tampering([], story.view(entries), earlier=[story.view()], complete=False)


class TestCommand:
    @pytest.fixture
    def directory(self, story, tmp_path):
        stored = ReceiptFile(tmp_path / "run" / "receipts.jsonl")
        stored.pin(LedgerKeys(PUBLIC))
        for entry in story.receipts:
            stored.append(entry)
        (tmp_path / "view").write_text("\n".join(story.view()) + "\n")
        (tmp_path / "early").write_text("\n".join(story.early_view) + "\n")
        return tmp_path

    def _run(self, *arguments):
        result = CliRunner().invoke(main, ["check", *map(str, arguments)])
        return result.exit_code, result.output

    def test_says_what_was_verified(self, directory):
        status, output = self._run(
            directory / "run", "--ledger", directory / "view", "--earlier", directory / "early", "--format", "json"
        )
        assert status == 0
        report = json.loads(output)
        assert (report["ok"], report["receipts"], report["steps"]) == (True, 6, 4)
        assert self._run(directory / "run" / "receipts.jsonl")[0] == 0

    def test_ends_with_13_when_something_is_wrong(self, directory, story):
        (directory / "view").write_text("\n".join(story.view(story.entries[:8])))
        status, output = self._run(directory / "run", "--ledger", directory / "view")
        assert status == 13
        assert "truncated" in output
        file = directory / "run" / "receipts.jsonl"
        file.write_text(file.read_text() + "not a receipt\n")
        assert self._run(directory / "run")[0] == 13

    def test_a_key_is_pinned_once(self, directory):
        other = "0" * 64
        with pytest.raises(ProtocolError, match="another key"):
            ReceiptFile(directory / "run" / "receipts.jsonl").pin(LedgerKeys(bytes(32)))
        check_pinned(directory / "run" / "ledger.pub", LedgerKeys(PUBLIC))
        (directory / "other.pub").write_text(other)
        assert self._run(directory / "run", "--key", directory / "other.pub")[0] == 3
        (directory / "run" / "ledger.pub").unlink()
        with pytest.raises(SettingsError, match="no ledger key is pinned"):
            pinned_key(given=None, credentials=None, receipts=[directory / "run"])
        (directory / "other.pub").write_text("nonsense")
        with pytest.raises(SettingsError, match="64 hexadecimal"):
            pinned_key(given=directory / "other.pub", credentials=None, receipts=[directory / "run"])

    def test_what_is_missing_is_said_so(self, directory):
        assert self._run(directory / "nowhere")[0] == 3
        assert self._run(directory / "run", "--earlier", directory / "view")[0] == 3
        assert self._run(directory / "run", "--ledger", directory / "nothing")[0] == 3

    def test_a_line_that_a_crash_cut_short_spoils_itself_alone(self, directory, story):
        file = directory / "run" / "receipts.jsonl"
        whole = file.read_text()
        file.write_text(whole[: len(whole) - 40])
        ReceiptFile(file).append(story.receipts[-1])
        entries, findings = read_receipts([file])
        assert len(entries) == len(story.receipts)
        assert [finding.tampering for finding in findings] == [Tampering.UNREADABLE]
