"""Where ledgers stand: making, reading and replacing them as a whole, on whichever database."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from dpswd.private_curator.books.place import Place
from dpswd.private_curator.core.ledger.database import Database, Location, Session, by_seq
from dpswd.private_curator.core.ledger.store import Clock
from dpswd.shared.core.ledger.receipts import SignedEntry

_ROWS_AT_A_TIME = 100
"""Of one statement: a round trip for each row would take minutes for a large ledger."""


class Watch(Protocol):
    """Follows, in a thread of its own, what other programs do to a ledger."""

    def require_calm(self, session: Session) -> None:
        """Gives others time to object, who may have seen more of the ledger than this program.

        Raises:
            LedgerUnavailable: the database was started or replaced moments ago.
        """

    def close(self) -> None:
        """Ends it. Idempotent."""


class Watcher(Protocol):
    """What a watch asks about a ledger that it has looked at; see `dpswd.private_curator.books.ledger.Ledger`."""

    def look(self, session: Session) -> SignedEntry | None:
        """Holds the ledger to what was seen of it, here and by others; returns its last entry if that is to be noted.

        Raises:
            LedgerCorrupt: it lacks something.
        """

    def note(self, entry: SignedEntry) -> None:
        """Takes note of an entry that no failover forgets."""


class LedgerLocation(Location, Protocol):
    """Where a ledger stands or shall stand, and everything that is done to it as a whole."""

    def exists(self) -> bool:
        """Whether anything stands there, sound or not."""

    def create(self, fill: Callable[[Session], object], *, lock_timeout_s: float) -> None:
        """Makes a new ledger that exists complete, with what ``fill`` has written, or not at all.

        Raises:
            LedgerUnavailable: something stands there, or it cannot be written.
        """

    def reading(self) -> AbstractContextManager[Session]:
        """A read-only view of the ledger as it is now, whatever state it is in; nobody waits for it.

        Raises:
            LedgerUnavailable, LedgerCorrupt: it cannot be read.
        """

    def defects(self, session: Session) -> list[str]:
        """What is wrong with tables, indexes and triggers, as `reading` shows them; empty for a sound ledger."""

    def place(self, session: Session) -> Place:
        """What tells this ledger, or the one that is being made here, from its copies."""

    def clock(self, of: Database | Session) -> Clock:
        """What dates entries: of a database that several machines share, its own clock and no machine's."""

    def watch(self, watcher: Watcher) -> Watch | None:
        """Follows what others write; None where one process at a time serves.

        Raises:
            LedgerUnavailable: the ledger cannot be looked at now.
        """

    def missing(self, session: Session) -> Sequence[SignedEntry]:
        """What some program has seen and this ledger lacks, as the session's transaction finds it."""

    def report_missing(self, receipt: SignedEntry) -> None:
        """Lets every other program know of an entry that the ledger lacks. Raises nothing: the log says so."""

    def alone(self) -> AbstractContextManager[None]:
        """While the block runs, no process has or gets the right to charge and to compute.

        Raises:
            LedgerUnavailable: one has it now.
        """

    def replace(self, backup: Path, log: Callable[[Session], object]) -> None:
        """Puts a backup in the ledger's place, inside of `alone`; the replaced ledger stays under another name.

        Args:
            backup: a file of SQLite; it is read only.
            log: writes the entry that says so, before the restored ledger can be seen.
        """


def copy_tables(source: Session, target: Session) -> None:
    """Writes every row of one ledger into the empty tables of another, on whichever database either is."""
    for table in ("entries", "runs", "requests", "replies"):  # the order in which rows refer to each other
        rows = by_seq(source, f"SELECT * FROM {table}")  # noqa: S608 constants
        while batch := list(itertools.islice(rows, _ROWS_AT_A_TIME)):
            values = ", ".join(f"({', '.join('?' * len(row))})" for row in batch)
            target.execute(f"INSERT INTO {table} VALUES {values}", [value for row in batch for value in row])  # noqa: S608


def changed(expected: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """The names of what is missing, added or defined otherwise than the ledger made it."""
    return [name for name in sorted(expected.keys() | actual.keys()) if expected.get(name) != actual.get(name)]
