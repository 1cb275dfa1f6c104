"""Where a ledger in a file stands: making it, reading it in whatever state, putting a backup in its place."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpswd.private_curator.books.location import LedgerLocation, Watcher, changed
from dpswd.private_curator.books.place import Place, place_of
from dpswd.private_curator.core.ledger import sqlite_tables
from dpswd.private_curator.core.ledger.database import LOCK_TIMEOUT_S, Database, Session
from dpswd.private_curator.core.ledger.sqlite import (
    SqliteDatabase,
    file_lock,
    serving_lock,
    sync,
    translate,
    write_lock,
)
from dpswd.private_curator.core.ledger.store import Clock, utc_now
from dpswd.shared.core.errors import LedgerError, LedgerUnavailable
from dpswd.shared.core.ledger.receipts import SignedEntry

_COMPANIONS = ("", "-wal", "-shm", ".lock")


@dataclass(frozen=True)
class SqliteFile:
    """A `dpswd.private_curator.books.location.LedgerLocation`.

    Attributes:
        path: the file.
        vfs: the name of a registered SQLite file system layer; tests record writes with one.
    """

    path: Path
    vfs: str | None = None

    def __str__(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        """Whether a file stands there."""
        return self.path.exists()

    def open(self, *, lock_timeout_s: float) -> SqliteDatabase:
        """See `LedgerLocation.open`."""
        if not self.path.is_file():
            raise LedgerUnavailable(f"there is no ledger at {self.path}; `dpswd-curator init` makes one")
        return SqliteDatabase(self.path, lock_timeout_s=lock_timeout_s, vfs=self.vfs)

    def create(self, fill: Callable[[Session], object], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """See `LedgerLocation.create`."""
        try:
            with new_file(self.path) as draft:
                with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                    connection.execute("BEGIN")
                    sqlite_tables.make(connection)
                    connection.execute("COMMIT")
                _write(draft, fill, lock_timeout_s=lock_timeout_s)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """See `LedgerLocation.reading`."""
        if not self.path.is_file():
            raise LedgerUnavailable(f"there is no ledger at {self.path}")
        try:
            with contextlib.closing(self._read_only()) as connection:
                yield connection
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def defects(self, session: Session) -> list[str]:
        """See `LedgerLocation.defects`."""
        texts = [f"SQLite: {text}" for (text,) in session.execute("PRAGMA integrity_check") if text != "ok"]
        texts += [f"SQLite: a row of {row[0]} refers to nothing" for row in session.execute("PRAGMA foreign_key_check")]
        with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
            sqlite_tables.make(fresh)
            expected = sqlite_tables.layout(fresh)
        names = changed(expected, sqlite_tables.layout(session))
        return texts + [f"the {name} is not as the ledger made it" for name in names]

    def place(self, session: Session) -> Place:
        """See `LedgerLocation.place`. A draft keeps its inode when it gets the ledger's name."""
        (file,) = session.execute("SELECT file FROM pragma_database_list WHERE name = 'main'").fetchone()
        return place_of(Path(file), named=self.path)

    def clock(self, of: Database | Session) -> Clock:  # noqa: ARG002
        """See `LedgerLocation.clock`."""
        return utc_now

    def watch(self, watcher: Watcher) -> None:
        """See `LedgerLocation.watch`."""

    def missing(self, session: Session) -> Sequence[SignedEntry]:  # noqa: ARG002
        """See `LedgerLocation.missing`: the home's other programs have the same note."""
        return ()

    def report_missing(self, receipt: SignedEntry) -> None:
        """See `LedgerLocation.report_missing`."""

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """See `LedgerLocation.alone`."""
        held_by = "a curator serves this ledger, stop it first: it"
        with file_lock(serving_lock(self.path), timeout_s=0.0, held_by=held_by):
            yield

    def replace(self, backup: Path, log: Callable[[Session], object]) -> None:
        """See `LedgerLocation.replace`. Whatever happens in between, a complete ledger stands at the path or none."""
        into = self.path
        draft = into.with_name(f"{into.name}.restoring-{os.getpid()}")
        try:
            shutil.copyfile(backup, draft)
            draft.chmod(0o600)
            _write(draft, log, lock_timeout_s=LOCK_TIMEOUT_S)
            if into.exists():
                _keep(into)
            draft.replace(into)
            sync(into.parent)
        except OSError as error:
            raise LedgerUnavailable(f"the backup could not be restored: {error}") from error
        finally:
            remove(draft)

    def _read_only(self) -> sqlite3.Connection:
        uri = f"{self.path.resolve().as_uri()}?mode=ro"
        if not os.access(self.path.parent, os.W_OK):
            # SQLite cannot make its index of the log there; while a curator writes through another mount, it is there.
            written = self.path.with_name(self.path.name + "-wal")
            whole = not written.exists() or written.stat().st_size == 0
            return sqlite3.connect(uri + ("&immutable=1" if whole else ""), uri=True, isolation_level=None)
        with file_lock(write_lock(self.path), timeout_s=LOCK_TIMEOUT_S, held_by="another program"):
            connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            try:
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first read begins the view
            except BaseException:
                connection.close()
                raise
        return connection


def _write(path: Path, act: Callable[[Session], object], *, lock_timeout_s: float) -> None:
    """Does one transaction on a file that nobody else knows of, and makes the file complete by itself."""
    database = SqliteDatabase(path, lock_timeout_s=lock_timeout_s)
    try:
        with database.write() as session:
            act(session)
    finally:
        database.close()
    sync(path)


def _keep(into: Path) -> None:
    """Gives the present ledger a second name."""
    # Folds the log into the file, so that it is whole by itself; what cannot be opened is kept byte for byte.
    with contextlib.suppress(LedgerError):
        SqliteDatabase(into).close()
    number = 1
    while (replaced := into.with_name(f"{into.name}.replaced-{number}")).exists():
        number += 1
    os.link(into, replaced)
    for suffix in ("-wal", "-shm"):
        rest = into.with_name(into.name + suffix)
        if rest.exists():
            rest.rename(replaced.with_name(replaced.name + suffix))


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A draft that stands at ``path`` when the block has ended, durable and complete, or not at all.

    Raises:
        LedgerUnavailable: something stands there, or it cannot be written.
    """
    draft = path.with_name(f"{path.name}.draft-{secrets.token_hex(4)}")
    try:
        # The database of a hospital: readable by its owner alone. SQLite gives its log the same mode.
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            yield draft
            os.link(draft, path)  # fails where a rename would replace an existing file
            sync(path.parent)
        finally:
            remove(draft)
    except FileExistsError as error:
        raise LedgerUnavailable(f"{path} exists already, and is never replaced; choose another place") from error
    except OSError as error:
        raise LedgerUnavailable(f"{path} cannot be written: {error.strerror}") from error


def remove(draft: Path) -> None:
    """Deletes a ledger's file that was never one, and what SQLite and the locks left beside it."""
    for suffix in _COMPANIONS:
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def as_location(where: LedgerLocation | Path) -> LedgerLocation:
    """A path is the location of a ledger in a file."""
    return SqliteFile(where) if isinstance(where, Path) else where
