"""What clients asked and were refused, and when they were last seen: aggregated, so that nobody can fill the disk.

A refusal costs a client nothing, so it may ask for ever. One row stands for all refusals of one client for one reason
on one day: how many, the first, the last, and what was asked last. At most `MOST_ROWS` rows are made in a day (beyond
that they are counted as one), and rows older than `KEPT_DAYS` go. It is a record for the operator, beside the signed
ledger: a refusal spends nothing, and what is spent is in the ledger alone.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

MOST_ROWS = 1000
"""Rows of one day; a row has at most about a kilobyte."""
RETENTION_DAYS = 400
"""A little more than a year: the report of a year has all of them."""
WRITTEN_EVERY_S = 1.0
"""Seconds between two writings."""
OTHERS = "(others)"
"""Stands for the client where a day has too many rows."""

_BUSY_S = 1.0
_TABLES = """
CREATE TABLE IF NOT EXISTS refusals (
    day TEXT, client TEXT, fingerprint TEXT, operation TEXT, reason TEXT, dry INTEGER,
    count INTEGER, first TEXT, last TEXT, peer TEXT, mechanism TEXT, epsilon REAL, purpose TEXT,
    PRIMARY KEY (day, client, fingerprint, operation, reason, dry)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (
    fingerprint TEXT PRIMARY KEY, client TEXT, peer TEXT, first TEXT, last TEXT
) WITHOUT ROWID;
"""
_REFUSED = """
INSERT INTO refusals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET count = count + excluded.count, last = excluded.last, peer = excluded.peer,
    mechanism = excluded.mechanism, epsilon = excluded.epsilon, purpose = excluded.purpose
"""
_SEEN = """
INSERT INTO seen VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET client = excluded.client, peer = excluded.peer, last = excluded.last
"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of a client and how it ended; of public values alone.

    Attributes:
        time: UTC.
        operation: the RPC.
        client: the name in the client's certificate; of an unknown certificate too.
        outcome: OK, or the reason of the refusal.
        fingerprint: SHA-256 of the certificate, hexadecimal; empty where there was none to read.
        peer: the address that it came from, without the port.
        dry_run: whether a run was only to be priced.
        run: the run's id, where there is one.
        mechanism: what the run releases.
        epsilon: what the run costs alone; None where no price was found.
        purpose: why, in the client's words.
    """

    time: dt.datetime
    operation: str
    client: str
    outcome: str
    fingerprint: str = ""
    peer: str = ""
    dry_run: bool = False
    run: str = ""
    mechanism: str = ""
    epsilon: float | None = None
    purpose: str = ""


@dataclass(frozen=True, kw_only=True)
class Refusals:
    """All refusals of one client for one reason on one day.

    Attributes:
        day: UTC.
        client: as in `Ask`; `OTHERS` where the day had too many rows.
        fingerprint: as in `Ask`.
        operation: the RPC.
        reason: of the refusal.
        dry: whether runs were only to be priced.
        count: how many.
        first: UTC, ISO 8601.
        last: the same.
        peer: where the last one came from.
        mechanism: what the last one wanted.
        epsilon: what it would have cost.
        purpose: what for.
    """

    day: str
    client: str
    fingerprint: str
    operation: str
    reason: str
    dry: bool
    count: int
    first: str
    last: str
    peer: str
    mechanism: str
    epsilon: float | None
    purpose: str


@dataclass(frozen=True, kw_only=True)
class LastUse:
    """When a certificate was last used.

    Attributes:
        fingerprint: of the certificate.
        client: its name.
        peer: where it came from last.
        first: UTC, ISO 8601.
        last: the same.
    """

    fingerprint: str
    client: str
    peer: str
    first: str
    last: str


class AskBook:
    """Keeps refusals and sightings in a file of SQLite, beside the ledger.

    What is recorded is counted in memory and written by a thread of its own, every `WRITTEN_EVERY_S`: a flood of
    refusals waits for no disk. A curator that dies may lose the counts of the last moment.

    Args:
        path: the file; made with the first ask.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._refused: dict[_Key, tuple[Any, ...]] = {}  # what follows the key in a row
        self._seen: dict[str, Ask] = {}
        self._day = ""

    def record(self, ask: Ask) -> None:
        """Counts a refusal, or notes that the client was seen; returns at once."""
        with self._lock:
            if ask.outcome != "OK":
                key = (_stamp(ask.time)[:10], ask.client, ask.fingerprint, ask.operation, ask.outcome, int(ask.dry_run))
                if key not in self._refused and len(self._refused) >= MOST_ROWS:
                    key = _anybody(key)
                stamp = _stamp(ask.time)
                count, first = self._refused.get(key, (0, stamp))[:2]
                self._refused[key] = (count + 1, first, stamp, ask.peer, ask.mechanism, ask.epsilon, ask.purpose)
            elif ask.fingerprint:
                self._seen[ask.fingerprint] = ask
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="asks", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Writes what is counted. Idempotent."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.write()

    def write(self) -> None:
        """Writes what is counted now; a disk that does not take it stops nothing."""
        with self._lock:
            refused, self._refused = self._refused, {}
            seen, self._seen = self._seen, {}
        if not refused and not seen:
            return
        try:
            with self._writing() as connection:
                self._forget(connection)
                for key, rest in refused.items():
                    _add(connection, key, rest)
                for fingerprint, ask in seen.items():
                    stamp = _stamp(ask.time)
                    connection.execute(_SEEN, (fingerprint, ask.client, ask.peer, stamp, stamp))
        except (sqlite3.Error, OSError) as error:
            _log.warning("requests could not be noted in %s: %s", self._path.name, type(error).__qualname__)

    def refusals(self) -> list[Refusals]:
        """All that are written, the oldest first; reads a read-only file too."""
        rows = self._read("refusals", Refusals)
        return [Refusals(**row | {"dry": bool(row["dry"])}) for row in rows]

    def seen(self) -> dict[str, LastUse]:
        """The last use of each certificate that is written, by its fingerprint."""
        return {row["fingerprint"]: LastUse(**row) for row in self._read("seen", LastUse)}

    def _run(self) -> None:
        while not self._closing.wait(WRITTEN_EVERY_S):
            self.write()

    def _forget(self, connection: sqlite3.Connection) -> None:
        """Drops what is too old, once a day."""
        today = dt.datetime.now(dt.UTC).date()
        if self._day != today.isoformat():
            oldest = (today - dt.timedelta(days=RETENTION_DAYS)).isoformat()
            connection.execute("DELETE FROM refusals WHERE day < ?", (oldest,))
            connection.execute("DELETE FROM seen WHERE last < ?", (oldest,))
            self._day = today.isoformat()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; several curators of one home may write."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as connection:
            connection.executescript(_TABLES)
            with connection:
                yield connection

    def _read(self, table: str, kind: type[Refusals | LastUse]) -> list[dict[str, Any]]:
        """The rows of a table by the names of their columns, in the order in which they began."""
        if not self._path.is_file():
            return []
        names = [column.name for column in fields(kind)]
        try:
            uri = f"{self._path.resolve().as_uri()}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as connection:
                rows = connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY first, client")  # noqa: S608 constants
                return [dict(zip(names, row, strict=True)) for row in rows]
        except sqlite3.Error as error:
            _log.warning("%s cannot be read: %s", self._path.name, type(error).__qualname__)
            return []


_Key = tuple[str, str, str, str, str, int]


def _anybody(key: _Key) -> _Key:
    day, _, _, operation, reason, dry = key
    return day, OTHERS, "", operation, reason, dry


def _add(connection: sqlite3.Connection, key: _Key, rest: tuple[Any, ...]) -> None:
    previous = connection.execute(f"SELECT 1 FROM refusals WHERE {_KEY}", key).fetchone()  # noqa: S608 a constant
    (rows,) = connection.execute("SELECT count(*) FROM refusals WHERE day = ?", key[:1]).fetchone()
    if previous is None and rows >= MOST_ROWS:
        key = _anybody(key)
    connection.execute(_REFUSED, (*key, *rest))


_KEY = "day = ? AND client = ? AND fingerprint = ? AND operation = ? AND reason = ? AND dry = ?"


def _stamp(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
