"""A ledger seen without its key: nothing is written, and nobody waits.

What is read is what stands there. Whether it was tampered with is `dpswd.private_curator.books.audit`'s question.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpswd.private_curator.books.figures import LedgerStatus
from dpswd.private_curator.books.location import LedgerLocation
from dpswd.private_curator.books.register import Register, account_status, share_status
from dpswd.private_curator.books.renyi import RENYI
from dpswd.private_curator.core.ledger.accounting import Accounting
from dpswd.private_curator.core.ledger.database import Session
from dpswd.private_curator.core.ledger.requests import load_run
from dpswd.private_curator.core.ledger.statements import Kind, Run
from dpswd.private_curator.core.ledger.store import entries_beside_steps, entries_of, head, read_entries
from dpswd.shared.core.errors import LedgerCorrupt
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.ledger.receipts import SignedEntry

_NO_OPENING = "the ledger does not begin with the opening of a data set"


@dataclass(frozen=True, eq=False)
class LedgerReading:
    """A ledger at one moment.

    Attributes:
        books: what its entries add up to.
        entries: all but those of steps, in order.
        runs: in the order in which they were charged.
        status: its figures.
        head: the last entry.
    """

    books: Register
    entries: tuple[SignedEntry, ...]
    runs: tuple[Run, ...]
    status: LedgerStatus
    head: SignedEntry


def read_ledger(location: LedgerLocation, *, accounting: Accounting = RENYI) -> LedgerReading:
    """Reads a ledger as it is now; needs no key and writes nothing, so it may stand on a read-only disk.

    Raises:
        LedgerUnavailable: it is not there, or cannot be read now.
        LedgerCorrupt: it is no ledger, or its entries cannot stand where they stand.
    """
    books = Register(accounting)
    with location.reading() as session:
        entries = tuple(entries_beside_steps(session))
        for entry in entries:
            books.apply(entry)
        last = head(session)
        if last is None:
            raise LedgerCorrupt(_NO_OPENING)
        ids = session.execute("SELECT run_id FROM runs ORDER BY seq").fetchall()
        runs = tuple(load_run(session, accounting, run_id) for (run_id,) in ids)
        return LedgerReading(books, entries, runs, status_of(session, books), last)


def read_keys(location: LedgerLocation) -> LedgerKeys:
    """The keys that sign a ledger, out of the few entries that say so; raises what `read_ledger` does."""
    with location.reading() as session:
        opening = next(read_entries(session, limit=1), None)
        if opening is None:
            raise LedgerCorrupt(_NO_OPENING)
        keys = LedgerKeys.of(bytes.fromhex(opening.payload["public_key"]), entries_of(session, Kind.KEY_CHANGED))
        return LedgerKeys(keys.newest, keys.changes)


def first_reply(session: Session, run_id: str) -> bytes | None:
    """What a run's first step released, as it left; None where there is none, or none any more."""
    row = session.execute("SELECT reply FROM replies WHERE run_id = ? AND step = 1", (run_id,)).fetchone()
    return None if row is None or row[0] is None else bytes(row[0])


def status_of(session: Session, books: Register) -> LedgerStatus:
    """The figures of a ledger.

    Args:
        session: sees the tables.
        books: as of the session's last entry.
    """
    last = head(session)
    assert last is not None  # the books have read it
    runs, charged, used = session.execute(
        "SELECT count(*), CAST(coalesce(sum(steps), 0) AS BIGINT), "
        "CAST(coalesce(sum(steps_used), 0) AS BIGINT) FROM runs"
    ).fetchone()
    (repeated,) = session.execute(
        "SELECT CAST(coalesce(sum(attempts - 1), 0) AS BIGINT) FROM requests WHERE attempts > 1"
    ).fetchone()
    closed = books.closed
    return LedgerStatus(
        ledger_id=books.ledger_id, records=books.records, state=books.state,
        records_per_person=books.records_per_person,
        data_set=account_status(books.account, closed=closed),
        clients=tuple(
            (client, share_status(books.shares.get(name), closed=closed or client.revoked or client.paused))
            for name, client in books.clients.items()
        ),
        runs=runs, steps_charged=charged, steps_used=used, steps_repeated=repeated,
        entries=last.seq, head=last.hash,
    )  # fmt: skip
