"""A ledger in a file: the one place where the ledger meets SQLite, files and their errors.

Durability: ``journal_mode=WAL`` with ``synchronous=FULL`` syncs the log at every commit, so a committed
transaction survives the loss of power. Before its first write each connection copies the log into the database and
syncs that: after a failed sync the kernel may hold pages that it calls clean but that never reached the disk, and
only writing them again helps.

Locks: all writing of one process goes through one connection under a mutex. Between processes a file lock stands
around every transaction, opening and closing, because SQLite before 3.51.3 can corrupt a database in WAL mode when
one connection commits while another one checkpoints (https://sqlite.org/wal.html, "The WAL-Reset Bug").
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from dpswd.private_curator.core.ledger import sqlite_tables
from dpswd.private_curator.core.ledger.database import LOCK_TIMEOUT_S, Mark, Session
from dpswd.shared.core.errors import DpswdError, LedgerCorrupt, LedgerUnavailable

_POLL_S = 0.002

# SQLite's primary result codes (https://sqlite.org/rescode.html) of what passes when its cause does.
_TRANSIENT = {
    sqlite3.SQLITE_BUSY: "another program holds it",
    sqlite3.SQLITE_LOCKED: "another program holds it",
    sqlite3.SQLITE_PROTOCOL: "another program holds it",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the disk or the file is read-only",
    sqlite3.SQLITE_IOERR: "the disk does not read or write",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_PERM: "access to the file is not permitted",
    sqlite3.SQLITE_AUTH: "access to the file is not permitted",
    sqlite3.SQLITE_NOMEM: "memory is exhausted",
    sqlite3.SQLITE_INTERRUPT: "the operation was interrupted",
}
# After these the connection's view of the files is not to be trusted; the next use opens them anew.
_RECONNECT = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}


def translate(error: sqlite3.Error, path: Path, *, asked: bool = False) -> DpswdError:
    """The ledger's own error for one of SQLite's.

    Args:
        error: SQLite's.
        path: of the ledger.
        asked: whether a request may have been under way, and not an opening or a reading.

    Returns:
        `LedgerUnavailable` for what passes when its cause does, `LedgerCorrupt` for everything else: a constraint
        that fails, a file that is no database, a table that is missing.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return LedgerUnavailable(f"the ledger {path} is closed: {error}")
    reason = _TRANSIENT.get(code & 0xFF)
    if reason is not None:
        # A write that fails on the disk may still have reached it: only the repeat of the request can tell.
        spent = "repeat the request with its id" if asked and code & 0xFF in _RECONNECT else "nothing was spent"
        return LedgerUnavailable(f"the ledger {path} cannot be used: {reason} ({error}); {spent}")
    return LedgerCorrupt(f"the ledger {path} is damaged: {error} ({error.sqlite_errorname})")


@contextlib.contextmanager
def file_lock(path: Path, *, timeout_s: float, held_by: str) -> Iterator[None]:
    """Holds an exclusive lock on ``path``, which is created; the kernel frees it when the process ends.

    Args:
        path: the lock file; it stays, empty.
        timeout_s: how long to wait, in seconds; 0 tries once.
        held_by: who else may hold it, for the message.

    Raises:
        LedgerUnavailable: somebody else holds the lock, or the file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # A read-only disk still has the lock file of better days; without one there is nothing to write either.
        raise LedgerUnavailable(f"the lock {path} cannot be opened: {error.strerror}; nothing was spent") from error
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise LedgerUnavailable(f"{held_by} holds {path}; nothing was spent") from error
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def write_lock(path: Path) -> Path:
    """The file that is locked around every transaction on the ledger at ``path``."""
    return path.with_name(path.name + ".lock")


def serving_lock(path: Path) -> Path:
    """The file that the one process locks which computes steps for the ledger at ``path``."""
    return path.with_name(path.name + ".serving")


class SqliteDatabase:
    """One connection to a ledger's file, its locks and its transactions.

    Args:
        path: an existing ledger file.
        lock_timeout_s: how long to wait for another program, in seconds.
        vfs: the name of a registered SQLite file system layer; tests record writes with one.

    Raises:
        LedgerUnavailable: the file cannot be opened for writing now.
        LedgerCorrupt: the file is no ledger.
    """

    def __init__(self, path: Path, *, lock_timeout_s: float = LOCK_TIMEOUT_S, vfs: str | None = None) -> None:
        self.path = path
        self._lock_timeout_s = lock_timeout_s
        self._vfs = vfs
        self._mutex = threading.RLock()
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._opened = (0, 0)
        self._settled = False
        self._closed = False
        self._claimed = contextlib.ExitStack()
        self._claims = False
        self._in_use = False
        with self._guard(), self._files():
            self._connected()
        self._in_use = True

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A consistent view of the tables. Works while the disk is full."""
        with self._guard():
            connection = self._connected() if self._connection else self._reconnected()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                self._rollback(connection)

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: durable when the block has ended, without trace when it raised."""
        with self._guard(), self._files():
            connection = self._connected()
            self._settle(connection)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                self._rollback(connection)
                raise

    def claim(self) -> None:
        """One process at a time, until it closes the ledger or dies: see `RunActs.serve`."""
        with self._mutex:
            if not self._claims:
                held_by = "another curator serves this ledger: it"
                self._claimed.enter_context(file_lock(serving_lock(self.path), timeout_s=0.0, held_by=held_by))
                self._claims = True

    def settle(self) -> None:
        """See `Database.settle`: nobody sees a commit before its bytes are synced."""

    def hold(self, session: Session, mark: Mark) -> bool:  # noqa: ARG002
        """One process computes, so no other one can hold the step."""
        return True

    def release(self, mark: Mark) -> None:
        """Nothing was marked."""

    def backup(self, destination: Path) -> None:
        """Copies the committed state to a new file while others go on reading and writing; durable on return."""
        with self._guard(), self._files():
            target = sqlite3.connect(destination, isolation_level=None)
            try:
                self._connected().backup(target)
                # One file, complete by itself, that can be opened from a read-only medium.
                target.execute("PRAGMA journal_mode = DELETE")
            finally:
                target.close()
            sync(destination)

    def close(self) -> None:
        """Copies the log into the database and releases the file. Idempotent."""
        with self._mutex:
            self._closed, self._claims = True, False
            self._claimed.close()
            if self._connection is None:
                return
            with self._guard(), self._files():
                self._disconnect()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """The mutex, and the translation of SQLite's errors."""
        if os.getpid() != self._pid:
            raise LedgerUnavailable("a forked process must open the ledger itself; nothing was spent")
        with self._mutex:
            try:
                yield
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code in _RECONNECT:
                    self._disconnect()
                raise translate(error, self.path, asked=self._in_use) from error

    def _files(self) -> contextlib.AbstractContextManager[None]:
        return file_lock(write_lock(self.path), timeout_s=self._lock_timeout_s, held_by="another program")

    def _reconnected(self) -> sqlite3.Connection:
        with self._files():
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None:
            if self._identity() != self._opened:
                # Closing here would delete the log of the file that stands there now, so the connection stays.
                raise LedgerUnavailable(f"{self.path} was replaced while it was open; restart this program")
            return self._connection
        if self._closed:
            raise LedgerUnavailable(f"the ledger {self.path} was closed; nothing was spent")
        uri = f"{self.path.resolve().as_uri()}?mode=rw" + (f"&vfs={self._vfs}" if self._vfs else "")
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, timeout=self._lock_timeout_s
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._opened = connection, self._identity()
        return connection

    def _identity(self) -> tuple[int, int]:
        """Which file stands at the path: a restored backup is another one."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise LedgerUnavailable(f"the ledger {self.path} is not there: {error.strerror}") from error
        return status.st_dev, status.st_ino

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise LedgerUnavailable(f"the file system of {self.path} does not support SQLite's log (mode {mode!r})")
        for pragma in ("synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {pragma}")
        sqlite_tables.check(connection)

    def _settle(self, connection: sqlite3.Connection) -> None:
        """Once for a connection: what its predecessor left in the log becomes part of the database, synced."""
        if not self._settled:
            (_, frames, copied) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._settled = frames == copied  # less while somebody reads an old view: the next write tries again

    def _disconnect(self) -> None:
        connection, self._connection, self._settled = self._connection, None, False
        if connection is not None:
            connection.close()

    def _rollback(self, connection: sqlite3.Connection) -> None:
        if not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Closing rolls back as well. The caller learns of the error that made us roll back.
            self._disconnect()


def sync(path: Path) -> None:
    """Makes a file's content, or a directory's list of names, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
