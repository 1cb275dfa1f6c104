"""A ledger in PostgreSQL that several replicas share: the one place where the ledger meets psycopg and its errors.

Order: every writing transaction first locks the single row of ``ledger`` and looks at nothing before it has it. So
writers go one after the other, on whatever machine they are, and what a transaction reads is the last committed state.
The primary key of ``entries`` would refuse a second entry at one place of the chain even without the lock.

Durability: ``COMMIT`` returns after the server has synced its log (and after its synchronous standbys have, where it
has any). A server that runs with ``fsync`` off is refused. When somebody cancels the wait for a standby, the server
says COMMIT and warns: such a commit counts as one whose outcome is unknown. Others see what it wrote, and so does
whoever comes after a crash of the server while it waited. So what is read is not released before a later commit was
waited for (`PostgresDatabase.settle`): a standby that has the later commit has the earlier.

Who computes a step: a session-level advisory lock, taken in the transaction that grants the step. The server frees it
when the replica's connection ends, so a replica that dies holds nothing up, and no clock decides anything. A replica
that only seems dead is fenced off: see `RunActs.finish_step`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from dpswd.private_curator.books.location import copy_tables
from dpswd.private_curator.core.ledger import sqlite_tables
from dpswd.private_curator.core.ledger.database import LOCK_TIMEOUT_S, Mark, Session
from dpswd.private_curator.core.ledger.schema import APPLICATION_ID
from dpswd.private_curator.core.ledger.sqlite import sync
from dpswd.shared.core.errors import DpswdError, LedgerCorrupt, LedgerUnavailable
from dpswd.shared.core.ledger.receipts import SignedEntry

Connection = psycopg.Connection[tuple[Any, ...]]

# The key space of the ledger's own advisory locks: (this, hash of the schema) is the right to serve.
LOCK_SPACE = APPLICATION_ID
HUNG = "30s"  # a replica that stops in the middle of a transaction keeps the others waiting no longer than this

# SQLSTATEs (https://www.postgresql.org/docs/current/errcodes-appendix.html) of what passes when its cause does; two
# characters stand for a class.
_TRANSIENT = {
    "08": "the connection is broken",
    "25": "the server takes no writes now",
    "28": "the server does not let this user in",
    "3D": "the server has no such database",
    "40": "another program was faster",
    "42501": "the server does not permit this user to do that",
    "53": "the server has no memory, disk or connection left",
    "53100": "the server's disk is full",
    "55": "another program holds it",
    "57": "the server has stopped or cancelled the operation",
    "58": "the server's disk does not read or write",
}
# What every transaction looks at first. Its server's start and the making of the one row of ``ledger`` tell one
# database from another that was put in its place: a standby, a copy of its disk, a dump.
_BEGUN = """
    SELECT clock_timestamp(), concat_ws(' ', pg_postmaster_start_time(), tableoid, xmin) FROM ledger;
    SELECT statement, signature FROM missing ORDER BY seq
"""
READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;" + _BEGUN
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT version FROM ledger FOR UPDATE;" + _BEGUN  # noqa: S608 constants
_AFTER_NOTHING = {"40001", "40P01"}  # serialization failure, deadlock: at the first lock there is nothing to lose

_log = logging.getLogger(__name__)


def translate(error: psycopg.Error, location: object, *, spent: str = "nothing was spent") -> DpswdError:
    """The ledger's own error for one of PostgreSQL's.

    Args:
        error: from psycopg.
        location: where the ledger stands, for the message.
        spent: what became of the transaction, and what to do, for the message.

    Returns:
        `LedgerUnavailable` for what passes when its cause does, `LedgerCorrupt` for everything else: a constraint
        that fails, a table that is missing, a page that cannot be read.
    """
    state = error.sqlstate
    if state is not None:
        reason = _TRANSIENT.get(state, _TRANSIENT.get(state[:2]))
    else:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        reason = "there is no connection, and the log says why" if lost else None
    if reason is None:
        return LedgerCorrupt(f"the ledger in {location} is damaged: {type(error).__name__}, SQLSTATE {state}")
    # The server's own words may name hosts and users, and a client of the curator would read them.
    _log.warning("PostgreSQL: %s (SQLSTATE %s)", " ".join(str(error).split()), state or "none")
    code = "" if state is None else f" (SQLSTATE {state})"
    return LedgerUnavailable(f"the ledger in {location} cannot be used: {reason}{code}; {spent}")


def commit(connection: Connection, location: object, *, spent: str = "repeat the request with its id") -> None:
    """Ends the connection's transaction so that it may be relied on.

    Args:
        connection: in the middle of it.
        location: where the ledger stands, for messages.
        spent: what to do where the outcome is unknown, for messages.

    Raises:
        LedgerUnavailable: the outcome is unknown, because the connection broke or somebody cancelled the wait for a
            standby; or the server made a rollback.
    """
    warnings: list[str] = []

    def noticed(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            warnings.append(" ".join((notice.message_primary or "").split()))

    connection.add_notice_handler(noticed)
    try:
        outcome = connection.execute("COMMIT").statusmessage
    except psycopg.Error as error:
        raise translate(error, location, spent=spent) from error
    finally:
        connection.remove_notice_handler(noticed)
    if warnings:
        _log.warning("PostgreSQL: a commit was not waited for to its end: %s", "; ".join(warnings))
        raise LedgerUnavailable(
            f"the ledger in {location} cannot be used: the server stopped waiting for its standby; {spent}"
        )
    if outcome != "COMMIT":  # of a transaction in which a statement failed, the server makes a rollback
        raise LedgerUnavailable(f"the ledger in {location} has refused the transaction; nothing was spent")


@dataclass(frozen=True)
class PostgresSession:
    """An open transaction of psycopg as the ledger's statements expect it."""

    connection: Connection

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        """See `dpswd.private_curator.core.ledger.database.Session`; the statements hold no literal question mark."""
        if not parameters:
            return self.connection.execute(sql.encode())
        return self.connection.execute(sql.replace("?", "%s").encode(), parameters)

    def value(self, sql: str, *parameters: Any) -> Any:
        """The one value that a statement gives."""
        return self.execute(sql, parameters).fetchone()[0]


@dataclass(frozen=True)
class BegunSession(PostgresSession):
    """One that `begin` has begun, and what it found then.

    Attributes:
        time: by the server's clock.
        at: seconds of this machine's monotonic clock, then.
        incarnation: of the database; another text where something else was put in its place, or it was started.
        missing: what some program has seen and the ledger lacks.
    """

    time: datetime
    at: float
    incarnation: str
    missing: tuple[SignedEntry, ...]


def settle(connection: Connection, location: object) -> None:
    """Returns when what was seen before is as durable as a commit makes it.

    Takes no lock: a message in the server's log, for nobody, makes a commit to wait for.

    Raises:
        LedgerUnavailable: see `commit`.
    """
    connection.execute("BEGIN READ WRITE; SELECT pg_logical_emit_message(true, 'dpswd', 'settled')")
    commit(connection, location)


def begin(connection: Connection, statements: str = READ) -> BegunSession:
    """A transaction that begins with these; raises LedgerCorrupt: the ledger's tables are there, and empty."""
    cursor, at = connection.execute(statements.encode()), time.monotonic()
    rows = [cursor.fetchall() if cursor.description else []]
    while cursor.nextset():
        rows.append(cursor.fetchall() if cursor.description else [])
    begun, missing = rows[-2:]
    if not begun:
        raise LedgerCorrupt("the schema holds no ledger any more, or not yet: it is being replaced, or was damaged")
    lacking = tuple(SignedEntry.parse(*row) for row in missing)
    return BegunSession(connection, begun[0][0], at, begun[0][1], lacking)


class LedgerSchema(Protocol):
    """What is needed of the schema in which a ledger stands; its text names it in messages."""

    @property
    def schema(self) -> str:
        """Its name."""

    def connect(self, *, lock_timeout_s: float) -> Connection:
        """A connection whose search path it is."""

    def session(self, *, hung: str) -> contextlib.AbstractContextManager[PostgresSession]:
        """The same for a while, without a transaction; `hung` ends one that does nothing."""

    def reading(self) -> contextlib.AbstractContextManager[Session]:
        """A view of the ledger on a connection of its own."""


class PostgresDatabase:
    """One replica's connection to the ledger. A broken one is replaced at the next use.

    Args:
        location: of the ledger.
        lock_timeout_s: how long to wait for another program, in seconds.

    Raises:
        LedgerUnavailable: the server cannot be used now.
    """

    def __init__(self, location: LedgerSchema, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self._location = location
        self._lock_timeout_s = lock_timeout_s
        self._mutex = threading.RLock()
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self._claims = False
        self._closed = False
        self._newest: BegunSession | None = None
        with self._guard():
            self._connected()

    def read(self) -> contextlib.AbstractContextManager[Session]:
        """See `Database.read`."""
        return self._transaction(READ)

    def write(self) -> contextlib.AbstractContextManager[Session]:
        """See `Database.write`."""
        return self._transaction(_WRITE)

    @contextlib.contextmanager
    def _transaction(self, statements: str) -> Iterator[Session]:
        with self._guard():
            try:
                session = self._newest = self._begun(statements)
                yield session
                if statements == _WRITE:
                    commit(session.connection, self._location)
            finally:
                self._end()

    def claim(self) -> None:
        """Any number of replicas serve; a restore waits until there is none, and none begins while it runs."""
        with self._guard():
            if not self._claims:
                self._claim_on(self._connected())
                self._claims = True

    def settle(self) -> None:
        """See `Database.settle`."""
        with self._guard():
            try:
                settle(self._connected(), self._location)
            finally:
                self._end()

    def now(self) -> datetime:
        """What time it is by the server's clock, as the last transaction found it."""
        begun = self._newest
        return datetime.now(UTC) if begun is None else begun.time + timedelta(seconds=time.monotonic() - begun.at)

    def hold(self, session: Session, mark: Mark) -> bool:
        """See `Database.hold`."""
        return bool(session.execute("SELECT pg_try_advisory_lock(?)", (self._step_lock(mark),)).fetchone()[0])

    def release(self, mark: Mark) -> None:
        """See `Database.release`. On a connection that replaced the marked one this changes nothing."""
        with self._mutex:
            if self._connection is None:
                return
            try:
                self._connection.execute("SELECT pg_advisory_unlock(%s)", (self._step_lock(mark),))
            except psycopg.Error as error:
                _log.warning("PostgreSQL: a connection was given up with its locks (%s)", type(error).__name__)
                self._disconnect()

    def backup(self, destination: Path) -> None:
        """See `Database.backup`: one consistent view, copied row by row while others go on."""
        with (
            self._location.reading() as source,
            contextlib.closing(sqlite3.connect(destination, isolation_level=None)) as file,
        ):
            file.execute("BEGIN IMMEDIATE")
            sqlite_tables.make(file)
            copy_tables(source, file)
            file.execute("COMMIT")
        sync(destination)

    def close(self) -> None:
        """See `Database.close`."""
        with self._mutex:
            self._closed, self._claims = True, False
            if self._connection is not None:
                # The server frees locks too, but only once it notices that we left: till then a restore is refused.
                with contextlib.suppress(psycopg.Error):
                    self._connection.execute("SELECT pg_advisory_unlock_all()")
            self._disconnect()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """The mutex, and the translation of psycopg's errors."""
        if os.getpid() != self._pid:
            raise LedgerUnavailable("a forked process must open the ledger itself; nothing was spent")
        with self._mutex:
            try:
                yield
            except psycopg.Error as error:
                self._end()
                raise translate(error, self._location) from error

    def _begun(self, statements: str) -> BegunSession:
        """A transaction after these statements; repeats them when another program or a restart came in between.

        Nothing has been read or written before them, so repeating them loses nothing.
        """
        deadline = time.monotonic() + self._lock_timeout_s
        while True:
            connection = self._connected()
            try:
                return begin(connection, statements)
            except psycopg.Error as error:
                self._end()
                again = error.sqlstate in _AFTER_NOTHING or self._connection is None
                if not again or time.monotonic() >= deadline:
                    raise

    def _connected(self) -> Connection:
        if self._connection is not None:
            return self._connection
        if self._closed:
            raise LedgerUnavailable(f"the ledger in {self._location} was closed; nothing was spent")
        connection = self._location.connect(lock_timeout_s=self._lock_timeout_s)
        try:
            if self._claims:
                self._claim_on(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _claim_on(self, connection: Connection) -> None:
        lock = "SELECT pg_try_advisory_lock_shared(?, hashtext(?))"
        if not PostgresSession(connection).value(lock, LOCK_SPACE, self._location.schema):
            raise LedgerUnavailable(f"the ledger in {self._location} is being restored; nothing was spent")

    def _step_lock(self, mark: Mark) -> int:
        """64 bits for a step: two steps that meet would only wait for each other."""
        text = "\0".join((self._location.schema, *mark)).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=True)

    def _end(self) -> None:
        """Leaves no transaction open, and no connection that is broken."""
        connection = self._connection
        if connection is not None and connection.info.transaction_status is not TransactionStatus.IDLE:
            # What fails here ends the transaction as well; the caller learns of the error that made us roll back.
            try:
                connection.execute("ROLLBACK")
            except psycopg.Error:
                self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
