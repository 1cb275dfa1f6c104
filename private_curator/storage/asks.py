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
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

MOST_ROWS = 1000
"""Rows of one day; a row has at most about a kilobyte."""
KEPT_DAYS = 400
"""A little more than a year: the report of a year has all of them."""
SEEN_EVERY = dt.timedelta(minutes=1)
"""A client that is seen again sooner is not noted again."""
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
INSERT INTO refusals VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET count = count + 1, last = excluded.last, peer = excluded.peer,
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
class Seen:
    """When a certificate was last used.

    Attributes:
        fingerprint: of the certificate.
        client: its name.
        peer: where it came from last.
        first: UTC, ISO 8601.
        last: the same, to within `SEEN_EVERY`.
    """

    fingerprint: str
    client: str
    peer: str
    first: str
    last: str


class AskBook:
    """Keeps refusals and sightings in a file of SQLite, beside the ledger.

    Args:
        path: the file; made with the first ask.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._noted: dict[str, tuple[str, dt.datetime]] = {}
        self._day = ""
        self._made = False

    def record(self, ask: Ask) -> None:
        """Counts a refusal, or notes that the client was seen; a disk that does not take it stops nothing."""
        try:
            with self._lock:
                if ask.outcome != "OK":
                    self._refused(ask)
                elif ask.fingerprint:
                    self._seen(ask)
        except sqlite3.Error as error:
            _log.warning("a request could not be noted in %s: %s", self._path.name, type(error).__qualname__)

    def refusals(self) -> list[Refusals]:
        """All of them, the oldest first; reads a read-only file too."""
        rows = self._read("refusals", Refusals)
        return [Refusals(**row | {"dry": bool(row["dry"])}) for row in rows]

    def seen(self) -> dict[str, Seen]:
        """The last use of each certificate, by its fingerprint."""
        return {row["fingerprint"]: Seen(**row) for row in self._read("seen", Seen)}

    def _refused(self, ask: Ask) -> None:
        stamp = _stamp(ask.time)
        day = stamp[:10]
        with self._writing() as connection:
            if day != self._day:
                oldest = (ask.time - dt.timedelta(days=KEPT_DAYS)).date().isoformat()
                connection.execute("DELETE FROM refusals WHERE day < ?", (oldest,))
                connection.execute("DELETE FROM seen WHERE last < ?", (oldest,))
                self._day = day
            key = (day, ask.client, ask.fingerprint, ask.operation, ask.outcome, int(ask.dry_run))
            known = connection.execute(f"SELECT 1 FROM refusals WHERE {_KEY}", key).fetchone()  # noqa: S608 a constant
            (rows,) = connection.execute("SELECT count(*) FROM refusals WHERE day = ?", (day,)).fetchone()
            if known is None and rows >= MOST_ROWS:
                ask = replace(ask, purpose="", mechanism="", peer="")
                key = (day, OTHERS, "", ask.operation, ask.outcome, int(ask.dry_run))
            connection.execute(_REFUSED, (*key, stamp, stamp, ask.peer, ask.mechanism, ask.epsilon, ask.purpose))

    def _seen(self, ask: Ask) -> None:
        peer, last = self._noted.get(ask.fingerprint, ("", dt.datetime.min.replace(tzinfo=dt.UTC)))
        if peer == ask.peer and ask.time - last < SEEN_EVERY:
            return
        stamp = _stamp(ask.time)
        with self._writing() as connection:
            connection.execute(_SEEN, (ask.fingerprint, ask.client, ask.peer, stamp, stamp))
        self._noted[ask.fingerprint] = ask.peer, ask.time

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; several curators of one home may write."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as connection, connection:
            if not self._made:
                self._path.chmod(0o600)
                connection.executescript(_TABLES)
                self._made = True
            connection.execute("PRAGMA synchronous = NORMAL")
            yield connection

    def _read(self, table: str, kind: type[Refusals | Seen]) -> list[dict[str, Any]]:
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


_KEY = "day = ? AND client = ? AND fingerprint = ? AND operation = ? AND reason = ? AND dry = ?"


def _stamp(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
