"""Entries in, entries out: the signed chain over the database, and the books that follow it.

Everything that the ledger does is a transaction in which entries are appended and the tables derived from them are
brought along. The books in memory are never changed by hand: they are brought up to date from committed entries at
the beginning of each transaction, so another process may write as well, and a rollback leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, Self, TypedDict, TypeVar, Unpack

from dpswd.private_curator.core.ledger.budget import Books
from dpswd.private_curator.core.ledger.database import LOCK_TIMEOUT_S, Location, Session, by_seq
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.shared.core.errors import InvalidValue, LedgerCorrupt, LedgerUnavailable
from dpswd.shared.core.ledger.keys import SigningKey, is_key_change
from dpswd.shared.core.ledger.receipts import GENESIS, SignedEntry

B_co = TypeVar("B_co", bound=Books, covariant=True)
Clock = Callable[[], datetime]
Checkpoint = Callable[[str], None]

PAGE = 1000  # entries that are in memory at a time while the chain is read

_BESIDE_STEPS = "kind NOT IN ('step-consumed', 'step-resumed', 'step-answered')"  # schema.py's index, word by word


def utc_now() -> datetime:
    """The wall clock. The ledger writes it down and decides nothing by it."""
    return datetime.now(UTC)


def no_checkpoint(_: str) -> None:
    """Does nothing: the default of the hook with which tests kill the process at a named point."""


class Heads(Protocol):
    """Whoever is told the last entry besides the database."""

    def tell(self, entry: SignedEntry) -> None:
        """Lets an entry be told soon; returns at once."""

    def close(self) -> None:
        """Waits until all was told. Idempotent."""


class Witness(Protocol):
    """Notes the last entry seen elsewhere than in the ledger: one that lacks it was put back to an older state."""

    def check(self, session: Session, location: object) -> None:
        """Raises LedgerCorrupt unless the ledger holds what was noted."""

    def note(self, entry: SignedEntry) -> None:
        """Keeps a newer entry instead."""

    def keep(self, receipt: SignedEntry) -> None:
        """Notes what the ledger lacks, for good: it is not opened again."""


class LedgerOptions(TypedDict, total=False):
    """What a ledger is opened with, beside its place, its key, its books and its witness.

    Attributes:
        clock: tells the time that entries state.
        checkpoint: called at named points; tests kill the process there.
        lock_timeout_s: how long to wait for another program, in seconds.
        heads: is told the last entry after each charge and each answer.
        by: whoever acts with it; each act of an operator states it.
        listener: is called with the last entry of each transaction, once it is durable.
        find_key: finds a key by its public half, hexadecimal, when another program has changed the ledger's.
        followed: whether the chain is followed at once; not by a caller that verifies it before anything is trusted.
    """

    clock: Clock
    checkpoint: Checkpoint
    lock_timeout_s: float
    heads: Heads | None
    by: Any
    listener: Callable[[SignedEntry], object]
    find_key: Callable[[str], SigningKey]
    followed: bool


@dataclass
class Transaction(Generic[B_co]):
    """One open transaction on the ledger.

    Attributes:
        connection: inside of `Database.write`.
        books: as of the last committed entry.
        key: signs the entries.
        clock: tells the time that entries state.
        appended: called with the kind of each entry.
        last: the last entry that was appended here.
    """

    connection: Session
    books: B_co
    key: SigningKey
    clock: Clock
    appended: Checkpoint
    last: SignedEntry | None = None

    def append(self, kind: Kind, payload: Mapping[str, Any]) -> SignedEntry:
        """Signs and appends an entry; it exists once the transaction is committed.

        Raises:
            InvalidValue: the payload is not JSON.
        """
        self.last = append_entry(self.connection, kind, payload, key=self.key, clock=self.clock)
        self.appended(kind.value)
        return self.last


class Store(Generic[B_co]):
    """The part of the ledger that every operation shares. Use `dpswd.private_curator.books.ledger.Ledger`."""

    def __init__(
        self,
        location: Location,
        *,
        key: SigningKey,
        books: B_co,
        witness: Witness | None,
        **options: Unpack[LedgerOptions],
    ) -> None:
        self.location = location
        self._witness = witness
        self._heads = options.get("heads")
        self.accounting = books.accounting
        self._key, self._find_key = key, options.get("find_key")
        self._clock = options.get("clock", utc_now)
        self._checkpoint = options.get("checkpoint", no_checkpoint)
        self._books = books
        self._seen: SignedEntry | None = None
        self._by = options.get("by")
        self.listener = options.get("listener")
        self._stopped = ""
        self._database = location.open(lock_timeout_s=options.get("lock_timeout_s", LOCK_TIMEOUT_S))
        try:
            with self._database.read() as connection:
                last = self._follow_the_chain(connection) if options.get("followed", True) else self._end(connection)
                if self._witness is not None:
                    self._witness.check(connection, location)
                    self._witness.note(last)
                self._refresh(connection)
        except BaseException:
            self._database.close()
            raise

    @property
    def public_key(self) -> bytes:
        """The raw Ed25519 key, 32 bytes, that checks this ledger's newest entries and receipts."""
        named = self._books.public_key
        return bytes.fromhex(named) if named else self._key.public_key().public_bytes_raw()

    def close(self) -> None:
        """Releases the file. Idempotent."""
        self._database.close()
        if self._heads is not None:
            self._heads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self, operation: str) -> Iterator[Transaction[B_co]]:
        """Everything in the block becomes durable together, or nothing of it happens."""

        def reached(point: str) -> None:
            self._checkpoint(f"{operation}:{point}")

        with self._database.write() as connection:
            reached("begun")
            self._refresh(connection)
            self._hold_key()
            transaction = Transaction(connection, self._books, self._key, self._clock, reached)
            yield transaction
            reached("written")
            seen = transaction.last or self._seen  # what was found may be given out as well
        if self._witness is not None and seen is not None:
            self._witness.note(seen)
        if self._heads is not None and transaction.last is not None and transaction.last.kind != Kind.STEP_CONSUMED:
            self._heads.tell(transaction.last)
        if self.listener is not None and transaction.last is not None:
            self.listener(transaction.last)
        reached("durable")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Session]:
        """A consistent view with books to match."""
        with self._database.read() as connection:
            self._refresh(connection)
            yield connection

    def _settle(self) -> None:
        """Returns when no failover forgets what was read, and takes note of it."""
        seen = self._seen
        self._database.settle()
        if self._witness is not None and seen is not None:
            self._witness.note(seen)

    def _refresh(self, connection: Session) -> None:
        """Brings the books up to the last committed entry."""
        if self._stopped:
            raise LedgerCorrupt(self._stopped)
        seen = self._seen
        row = connection.execute(
            "SELECT kind, statement, signature, (SELECT signature FROM entries WHERE seq = ?) FROM entries "
            "ORDER BY seq DESC LIMIT 1",
            (0 if seen is None else seen.seq,),
        ).fetchone()
        if seen is not None and (row is None or row[3] != seen.signature):
            raise LedgerCorrupt(f"{self.location} lacks entry {seen.seq}, which this process has seen: it is older")
        if seen is not None and row[2] == seen.signature:
            return
        for entry in entries_beside_steps(connection, after=self._books.seq):
            self._books.apply(entry)
        self._seen = parsed_entry(*row[:3])

    def _hold_key(self) -> None:
        """Signs with no other key than the ledger's own of now."""
        newest = self._books.public_key
        if self._key.public_key().public_bytes_raw().hex() != newest:
            if self._find_key is None:
                raise LedgerUnavailable(f"{self.location}: its key was changed to {newest}; open it with that one")
            self._key = self._find_key(newest)

    def _follow_the_chain(self, connection: Session) -> SignedEntry:
        """The last entry, after every link by hash: a curator does not start on a damaged ledger.

        Checking every signature is `verify`'s; a forged entry before the last would also need a forged link.
        """
        expected, previous = 1, GENESIS
        for entry in read_entries(connection):
            if entry.seq != expected or entry.previous != previous:
                raise LedgerCorrupt(f"{self.location}: entry {entry.seq} does not follow entry {expected - 1}")
            expected, previous = expected + 1, entry.hash
        return self._end(connection)

    def _end(self, connection: Session) -> SignedEntry:
        """The last entry, signed by the ledger's key."""
        last, key = head(connection), self.public_key
        changed = last is not None and is_key_change(last) and last.payload["public_key"] == key.hex()
        if last is None or not (changed or last.signed_by(key)):
            raise LedgerCorrupt(
                f"{self.location}: the last of {0 if last is None else last.seq} entries is not signed by the given "
                "key: use the ledger's own key, and look at `dpswd-curator ledger verify`"
            )
        return last


def append_entry(
    connection: Session, kind: Kind, payload: Mapping[str, Any], *, key: SigningKey, clock: Clock
) -> SignedEntry:
    """Signs an entry and writes it behind the last one.

    Raises:
        InvalidValue: the payload is not JSON.
    """
    time = clock().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    entry = SignedEntry.following(head(connection), kind=kind.value, payload=payload, time=time, sign=key.sign)
    connection.execute(
        "INSERT INTO entries (seq, kind, statement, signature) VALUES (?, ?, ?, ?)",
        (entry.seq, entry.kind, entry.statement, entry.signature),
    )
    return entry


def read_entries(connection: Session, *, after: int = 0, limit: int | None = None) -> Iterator[SignedEntry]:
    """Entries in order of the chain, fetched page by page.

    Raises:
        LedgerCorrupt: one is not readable.
    """
    rows = by_seq(connection, "SELECT seq, kind, statement, signature FROM entries", after=after, page=PAGE)
    for _, kind, statement, signature in itertools.islice(rows, limit):
        yield parsed_entry(kind, statement, signature)


def entries_of(connection: Session, kind: Kind) -> Iterator[SignedEntry]:
    """What an index finds: the entries of one kind that is none of a step."""
    rows = connection.execute(
        f"SELECT kind, statement, signature FROM entries WHERE kind = ? AND {_BESIDE_STEPS} ORDER BY seq",  # noqa: S608 a constant
        (kind.value,),
    )
    return (parsed_entry(*row) for row in rows)


def entries_beside_steps(connection: Session, *, after: int = 0) -> Iterator[SignedEntry]:
    """What changes budgets, clients and approvals, in order; the steps, nearly all entries, are not read."""
    rows = connection.execute(
        f"SELECT kind, statement, signature FROM entries WHERE seq > ? AND {_BESIDE_STEPS} ORDER BY seq",  # noqa: S608 a constant
        (after,),
    )
    return (parsed_entry(*row) for row in rows)


def entry_row(connection: Session, seq: int) -> tuple[str, bytes, bytes]:
    """Kind, statement and signature at one place of the chain.

    Raises:
        LedgerCorrupt: there is none.
    """
    row = connection.execute("SELECT kind, statement, signature FROM entries WHERE seq = ?", (seq,)).fetchone()
    if row is None:
        raise LedgerCorrupt(f"entry {seq} is missing")
    kind, statement, signature = row
    return kind, bytes(statement), bytes(signature)


def head(connection: Session) -> SignedEntry | None:
    """The last entry; None in a file that is being created."""
    row = connection.execute("SELECT kind, statement, signature FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
    return None if row is None else parsed_entry(*row)


def parsed_entry(kind: str, statement: bytes, signature: bytes) -> SignedEntry:
    """The entry of a row.

    Raises:
        LedgerCorrupt: it is not readable, or filed under another kind.
    """
    try:
        entry = SignedEntry.parse(statement, signature)
    except InvalidValue as error:
        raise LedgerCorrupt(f"an entry of kind {kind!r} is not readable: {error}") from error
    if entry.kind != kind:
        raise LedgerCorrupt(f"entry {entry.seq} states {entry.kind!r} but is filed as {kind!r}")
    return entry
