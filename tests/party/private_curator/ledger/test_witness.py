"""A database that was put back to an older state past `restore`: the curator's own note shows it."""

from __future__ import annotations

import shutil
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toy_accounting import ToyAccounting

from dpswd.private_curator.books.backup import restore
from dpswd.private_curator.books.heads import Heads
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.books.witness import Witness
from dpswd.private_curator.core.ledger.statements import Request
from dpswd.shared.books.chain_checks import read_export
from dpswd.shared.core.errors import InvalidValue, LedgerCorrupt, RestoreRefused
from dpswd.shared.core.ledger.receipts import Signed, SignedEntry

DIGEST = "d" * 64
ACCEPTANCE = "The disk of 3 May is lost; the ethics board has accepted this, minutes of 5 May."

pytestmark = pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def note(tmp_path):
    return tmp_path / "home" / "ledger.witness"


@pytest.fixture
def serve(location, key, ledger, note):
    """Opens the ledger as a curator does that keeps a note."""
    note.parent.mkdir()
    ledger.close()

    def serve():
        return Ledger.open(location, key=key, accounting=ToyAccounting(), witness=note)

    return serve


@pytest.fixture
def snapshot(request, location, tmp_path):
    """Takes the database as it is, and gives a function that puts this state back, as an administrator would."""

    def snapshot():
        if isinstance(location, SqliteFile):
            shutil.copyfile(location.path, tmp_path / "snapshot")
            return lambda: shutil.copyfile(tmp_path / "snapshot", location.path)
        server = request.getfixturevalue("postgres")
        dump = tmp_path / "dump.sql"
        server.run("pg_dump", "--schema", location.schema, "--file", str(dump))

        def put_back():
            with server.administer() as administrator:
                administrator.execute(f"DROP SCHEMA {location.schema} CASCADE")
            server.run("psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(dump))

        return put_back

    return snapshot


def test_an_older_state_is_not_served(serve, snapshot, note, open_run, answer):
    with serve() as ledger:
        run = open_run(ledger)
    put_back = snapshot()
    with serve() as ledger:
        answer(ledger, run, "step")
    put_back()
    with pytest.raises(LedgerCorrupt, match=r"lacks entry 6.*older state"):
        serve()


def test_what_was_noted_after_a_look_began_is_not_missing(serve, location, open_run):
    with serve() as ledger, location.reading() as earlier:
        earlier.execute("SELECT count(*) FROM entries").fetchone()
        open_run(ledger)
        ledger.look(earlier)
        open_run(ledger, request_id="another")


def test_nor_what_a_serving_curator_noted_while_another_program_read_the_chain(serve, location, key, note, open_run):
    with serve() as ledger:

        class Slow(Ledger):
            def _follow_the_chain(self, connection):
                last = super()._follow_the_chain(connection)
                open_run(ledger)
                return last

        Slow.open(location, key=key, accounting=ToyAccounting(), witness=note).close()
        assert Witness(note).entry().kind == "run-opened"


def test_what_is_given_out_once_more_is_noted(serve, location, key, note, tmp_path, open_run, answer):
    other = tmp_path / "other.witness"
    with serve() as ledger, Ledger.open(location, key=key, accounting=ToyAccounting(), witness=other) as elsewhere:
        run = open_run(ledger)
        answer(ledger, run, "step")
        request = Request(client="alice", request_id="step", digest=DIGEST)
        assert elsewhere.stored_reply(request, run_id=run.run_id) is not None
        assert Witness(other).entry() == Witness(note).entry() == elsewhere.head()


def test_an_act_that_another_program_wrote_and_this_one_only_saw_is_not_forgotten(serve, snapshot, open_run, location):
    """Attack: a freeze is put back while the curator serves, which had seen it and noted nothing since."""
    with serve() as ledger:
        open_run(ledger)
        put_back = snapshot()
        with serve() as command:
            command.freeze(reason="stop")
        assert ledger.budget_of("alice")[0].epsilon_remaining == 0.0
        put_back()
        if isinstance(location, SqliteFile):  # what its log of writes holds outlives the file under it
            assert ledger.budget_of("alice")[0].epsilon_remaining == 0.0
        else:
            with pytest.raises(LedgerCorrupt, match="older"):
                ledger.budget_of("alice")


def test_neither_is_another_history_of_the_same_length(serve, snapshot, open_run, location, key):
    with serve():
        pass
    put_back = snapshot()
    with serve() as ledger:
        ledger.approve_extractor("1" * 64)
    put_back()
    with Ledger.open(location, key=key, accounting=ToyAccounting()) as forgetful:  # a replica without a note
        forgetful.approve_extractor("2" * 64)
    with pytest.raises(LedgerCorrupt, match="lacks entry 3"):
        serve()


def test_a_loss_that_was_accepted_in_writing_is_served(serve, snapshot, note, open_run, location, key, tmp_path):
    put_back = snapshot()
    with serve() as ledger:
        lost = open_run(ledger)
    put_back()
    with Ledger.open(location, key=key, accounting=ToyAccounting()) as older:
        older.backup(tmp_path / "backup")
    noted = Witness(note).entry()
    assert noted == lost.receipt.entry
    bring_back = {"key": key, "accounting": ToyAccounting(), "receipts": [noted]}
    with pytest.raises(RestoreRefused, match="charges of 1 runs"):
        restore(tmp_path / "backup", location, **bring_back)
    restore(tmp_path / "backup", location, accept_loss=ACCEPTANCE, **bring_back)
    with serve() as ledger:
        assert ledger.status().runs == 0
        assert Witness(note).entry() == ledger.head()


def test_newer_states_are_served(serve, open_run, location, key, note):
    with serve() as ledger:
        open_run(ledger)
    with Ledger.open(location, key=key, accounting=ToyAccounting()) as another:
        another.approve_extractor("1" * 64)
    with serve() as ledger:
        assert Witness(note).entry() == ledger.head()


@pytest.mark.parametrize("content", [None, "", "{}", "\xff"])
def test_without_an_intact_note_a_ledger_with_charges_is_refused_until_somebody_answers_for_it(
    serve, note, content, open_run, location, key
):
    """Attack: a snapshot of a whole home, or a deleted note, brought spent epsilon back without a word."""

    def spoil():
        note.unlink() if content is None else note.write_text(content, encoding="latin-1")

    with serve():
        spoil()
    with serve() as ledger:  # nothing is charged: nothing can be forgotten
        assert Witness(note).entry() == ledger.head()
        open_run(ledger)
    spoil()
    with pytest.raises(LedgerCorrupt, match=r"holds charges.*missing or damaged.*ledger restore --as-it-is"):
        serve()
    with Ledger.open(location, key=key, accounting=ToyAccounting()) as ledger:
        with pytest.raises(InvalidValue, match="at least 30 characters"):
            ledger.accept_state(reason="yes")
        ledger.accept_state(reason=ACCEPTANCE)
        Witness(note).note(ledger.head())
    with serve() as ledger:
        assert ledger.verify().ok
        assert ledger.head().payload == {"reason": ACCEPTANCE, "by": {"operator": "", "credential": None}}


def test_a_client_s_receipt_stops_a_ledger_that_was_put_back_with_its_note(
    serve, snapshot, note, open_run, answer, location, key
):
    """Attack: a snapshot of a home or a machine puts ledger and note back together, and spent epsilon falls."""
    with serve() as ledger:
        run = open_run(ledger)
    original = note.read_bytes()
    put_back = snapshot()
    with serve() as ledger:
        receipt = answer(ledger, run, "step").receipt.entry
    put_back()
    note.write_bytes(original)
    with serve() as ledger:
        open_run(ledger, request_id="more")  # nothing here can know
        with pytest.raises(LedgerCorrupt, match=rf"lacks entry {receipt.seq} of .*incidents.md"):
            ledger.hold_to(receipt)
        for _ in range(2):
            with pytest.raises(LedgerCorrupt, match="lacks entry"):
                open_run(ledger, request_id="another")
    with pytest.raises(LedgerCorrupt, match="lacks entry"):  # neither after a restart
        serve()
    with Ledger.open(location, key=key, accounting=ToyAccounting()) as ledger:
        ledger.accept_state(reason=ACCEPTANCE)
        Witness(note).note(ledger.head())
    with serve() as ledger:
        ledger.hold_to(receipt)  # forgotten, in writing
        open_run(ledger, request_id="another")


def test_a_forged_or_foreign_receipt_changes_nothing(serve, note, open_run, answer):
    with serve() as ledger:
        run = open_run(ledger)
        entry = answer(ledger, run, "step").receipt.entry
        ledger.hold_to(entry)
        statement = entry.statement.replace(b'"seq":%d' % entry.seq, b'"seq":900')
        foreign = Ed25519PrivateKey.generate()
        for signature in (entry.signature, bytes(64), foreign.sign(Signed.ENTRY.over(statement))):
            ledger.hold_to(SignedEntry.parse(statement, signature))
        answer(ledger, run, "another")
        assert Witness(note).entry() == ledger.head()


def test_heads_are_published_elsewhere(location, key, ledger, tmp_path, open_run, answer):
    """A file and a program get what `ledger verify --receipts` reads; one that fails stops nothing."""
    ledger.close()
    seen = tmp_path / "seen"
    heads = Heads(file=tmp_path / "heads", command=("sh", "-c", f"cat >> {seen}; exit 3"))
    with Ledger.open(location, key=key, accounting=ToyAccounting(), heads=heads) as ledger:
        answer(ledger, open_run(ledger), "step")
        last = ledger.head()
    for file in (tmp_path / "heads", seen):
        entries, findings = read_export(file.read_text().splitlines())
        assert not findings
        assert entries[-1] == last


def test_a_note_that_cannot_be_written_stops_nothing(serve, note, open_run, answer):
    with serve() as ledger:
        shutil.rmtree(note.parent)
        answer(ledger, open_run(ledger), "step")
        assert ledger.verify().ok


def test_many_threads_note(serve, note, open_run, answer):
    with serve() as ledger:
        run = open_run(ledger, steps=40)
        workers = [
            threading.Thread(target=lambda n=n: [answer(ledger, run, f"{n}-{step}") for step in range(10)])
            for n in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=60)
        assert ledger.status().steps_used == 40
        assert Witness(note).entry() == ledger.head()
        assert [file.name for file in note.parent.iterdir()] == [note.name]
