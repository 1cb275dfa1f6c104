"""What the ledger needs of a database, and nothing more.

Two implementations: a file of SQLite (`dpswd.private_curator.core.ledger.sqlite`) and a schema of PostgreSQL
(`dpswd.private_curator.postgres.database`). The statements of the ledger are one text for both: parameters are written
``?``, and what the two call differently (types, triggers, locks, errors) stands in the two modules and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

# A transaction takes milliseconds; a lock held for longer means that somebody else works on the ledger.
LOCK_TIMEOUT_S = 10.0

# Lower than every number of an entry, also in a ledger that somebody has tampered with.
_BEFORE_ALL = -(2**62)

# (client, request id): what a step that is being computed is known by.
Mark = tuple[str, str]


class Session(Protocol):
    """An open transaction."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        """Executes one statement; ``?`` stands for a parameter. Returns the driver's cursor (PEP 249)."""


class Database(Protocol):
    """One program's use of one ledger. Safe for threads; a forked process is refused.

    Everything raises `LedgerUnavailable` for what passes when its cause does, and `LedgerCorrupt` for damage.
    """

    def read(self) -> AbstractContextManager[Session]:
        """A consistent view of the tables. Works while the disk is full."""

    def write(self) -> AbstractContextManager[Session]:
        """A transaction: durable when the block has ended, without trace when it raised.

        All writers of one ledger, on whatever machine, go through such blocks one after the other.
        """

    def claim(self) -> None:
        """Claims the right to charge and to compute, until `close`. Idempotent.

        Raises:
            LedgerUnavailable: another process has it (SQLite), or the ledger is being restored (PostgreSQL).
        """

    def hold(self, session: Session, mark: Mark) -> bool:
        """Marks a step as computed by this process, inside of `write`; the mark dies with the process.

        Returns:
            Whether it could be: False when another living process computes it.
        """

    def release(self, mark: Mark) -> None:
        """Takes the mark away. Raises nothing: a mark that cannot be taken away goes with the connection."""

    def settle(self) -> None:
        """Returns when whatever was read before is as durable as a commit makes it.

        Raises:
            LedgerUnavailable: it may not be, yet.
        """

    def backup(self, destination: Path) -> None:
        """Copies the committed state into the existing, empty file ``destination``, in SQLite's format; durable."""

    def close(self) -> None:
        """Ends the use, and with it the claim and all marks. Idempotent."""


class Location(Protocol):
    """Where a ledger stands. Its text names it in messages and holds no secret."""

    def open(self, *, lock_timeout_s: float) -> Database:
        """The ledger's database.

        Raises:
            LedgerUnavailable: it is not there, or cannot be used now.
            LedgerCorrupt: what stands there is no ledger.
        """


def by_seq(session: Session, select: str, *, after: int = _BEFORE_ALL, page: int = 200) -> Iterator[Any]:
    """Rows in order of their entry, page by page: a table may be larger than memory.

    Args:
        session: sees the table.
        select: a SELECT without WHERE whose first column is ``seq``.
        after: rows up to this entry are left out.
        page: how many rows are in memory at a time.
    """
    while True:
        rows = session.execute(f"{select} WHERE seq > ? ORDER BY seq LIMIT ?", (after, page)).fetchall()
        yield from rows
        if len(rows) < page:
            return
        after = rows[-1][0]
