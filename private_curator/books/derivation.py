"""The tables derived anew from the entries, and held against the tables that stand there, both in one pass.

Every row of a table names the entry that made it, so entries and rows are read side by side in the order of the chain,
and what is remembered does not grow with the steps that were answered: of each request 16 bytes, by which its id is
known, of each run a few numbers, and the steps that were begun and not answered yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpswd.private_curator.core.ledger.budget import Books, require
from dpswd.private_curator.core.ledger.database import Session, by_seq
from dpswd.private_curator.core.ledger.statements import DataSetState, Kind
from dpswd.shared.books.chain_checks import Finding, Tampering
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.receipts import SignedEntry, sha256


@dataclass(slots=True)
class _Step:
    """A step that was begun and not answered yet: its request, its attempts by the entries and by its row."""

    client: str
    request_id: str
    digest: str
    attempts: int
    stored: int


@dataclass(slots=True)
class _Run:
    """What the entries say of a run, and its row's own figures, which later entries change."""

    client: str
    steps: int
    seq: int
    used: int = 0
    pruned: bool = False
    stored: tuple[int, int] | None = None  # steps_used, pruned
    begun: dict[int, _Step] = field(default_factory=dict)


class _Rows:
    """The rows of one table, each asked for by the entry that made it, in the order of the chain."""

    def __init__(self, session: Session, table: str, columns: str) -> None:
        self.findings: list[Finding] = []
        self._session, self._table = session, table
        self._rows = by_seq(session, f"SELECT seq, {columns} FROM {table}")  # noqa: S608 constants
        self._next = next(self._rows, None)
        self._seen = 0

    def of(self, seq: int) -> tuple[Any, ...]:
        """The row of an entry, without its number; empty where there is none. Rows before it belong to no entry."""
        while self._next is not None and self._next[0] < seq:
            self.disagrees(self._next[0])
            self._advance()
        if self._next is None or self._next[0] != seq:
            return ()
        row: tuple[Any, ...] = self._next[1:]
        self._advance()
        return row

    def disagrees(self, seq: int) -> None:
        """The row of an entry is missing, surplus, or another one."""
        self.findings.append(inconsistent(f"the row of entry {seq} in {self._table} is not what the entries say"))

    def end(self) -> None:
        """No entry follows."""
        while self._next is not None:
            self.disagrees(self._next[0])
            self._advance()
        (count,) = self._session.execute(f"SELECT count(*) FROM {self._table}").fetchone()  # noqa: S608 a constant
        if count != self._seen:
            text = f"{self._table} holds {count} rows, and {self._seen} of them by the number of an entry"
            self.findings.append(inconsistent(text))

    def _advance(self) -> None:
        self._seen += 1
        self._next = next(self._rows, None)


class Derivation:
    """Takes entry by entry.

    Args:
        session: sees the tables.
    """

    def __init__(self, session: Session) -> None:
        self._findings: list[Finding] = []
        self._runs: dict[str, _Run] = {}
        self._used_ids: set[bytes] = set()
        self._run_rows = _Rows(session, "runs", "run_id, parameters, steps, steps_used, pruned")
        self._request_rows = _Rows(session, "requests", "client, request_id, digest, run_id, step, attempts")
        self._reply_rows = _Rows(session, "replies", "run_id, step, reply, audit")
        self._closed_in_the_end = _closed_runs(session)

    def apply(self, seq: int, entry: SignedEntry, books: Books) -> None:
        """Takes one entry.

        Args:
            seq: the number under which it is filed, larger than those before.
            entry: what it states.
            books: as of the entry before.

        Raises:
            LedgerCorrupt, KeyError, TypeError: the entry is not allowed where it stands.
        """
        payload = entry.payload
        match entry.kind:
            case Kind.RUN_OPENED:
                self._opened(seq, payload)
            case Kind.STEP_CONSUMED:
                run = self._releasing(payload, books)
                run.used += 1
                require(payload["step"] == run.used <= run.steps, "only charged steps are used, one by one")
                require(payload["client"] == run.client, "a run belongs to one client")
                attempts = self._request(seq, payload, step=run.used)
                asked = (payload["client"], payload["request_id"], payload["digest"])
                run.begun[run.used] = _Step(*asked, attempts=1, stored=attempts)
            case Kind.STEP_RESUMED:
                step = self._begun(self._releasing(payload, books), payload)
                step.attempts += 1
                require(payload["attempt"] == step.attempts, "attempts are counted")
            case Kind.STEP_ANSWERED:
                self._answered(seq, payload)
            case Kind.REPLIES_PRUNED:
                self._runs[payload["run"]].pruned = True
            case _:
                pass  # the books take everything else

    def findings(self) -> list[Finding]:
        """What is wrong with the tables, once every entry was taken."""
        for name, run in self._runs.items():
            if run.stored is not None and run.stored != (run.used, int(run.pruned)):
                self._findings.append(inconsistent(f"the row of run {name} is not what the entries say"))
            for number, step in run.begun.items():
                self._count(name, number, step)
        tables = (self._run_rows, self._request_rows, self._reply_rows)
        for rows in tables:
            rows.end()
        return [*self._findings, *(finding for rows in tables for finding in rows.findings)]

    def _opened(self, seq: int, payload: Mapping[str, Any]) -> None:
        name = payload["run"]
        require(name not in self._runs, "the run was opened before")
        run = self._runs[name] = _Run(payload["client"], payload["steps"], seq)
        self._request(seq, payload, step=0)
        row = self._run_rows.of(seq)
        if row and (row[0], sha256(row[1]), row[2]) == (name, payload["parameters"], run.steps):
            run.stored = row[3], row[4]
        else:
            self._run_rows.disagrees(seq)

    def _answered(self, seq: int, payload: Mapping[str, Any]) -> None:
        name, number = payload["run"], payload["step"]
        run = self._runs[name]
        require(not run.pruned, "a closed run releases nothing")
        step = self._begun(run, payload)
        require((step.client, step.request_id) == (payload["client"], payload["request_id"]), "another request's step")
        require(step.digest == payload["digest"], "another request's content")
        self._count(name, number, run.begun.pop(number))
        row = self._reply_rows.of(seq)
        if not row or row[:2] != (name, number) or sha256(row[3].encode()) != payload["audit"]:
            self._reply_rows.disagrees(seq)
        elif (row[2] is None) != (name in self._closed_in_the_end):
            text = f"the reply of step {number} of run {name} is kept or gone against the entries"
            self._findings.append(inconsistent(text))
        elif row[2] is not None and sha256(row[2]) != payload["reply"]:  # discarded bytes cannot be compared any more
            self._reply_rows.disagrees(seq)

    def _request(self, seq: int, payload: Mapping[str, Any], *, step: int) -> int:
        """Takes a request's id; returns the attempts that its row states."""
        mark = payload["client"], payload["request_id"]
        digest = hashlib.blake2b(repr(mark).encode(), digest_size=16).digest()
        require(digest not in self._used_ids, "a request id is used once")
        self._used_ids.add(digest)
        row = self._request_rows.of(seq)
        if not row or row[:5] != (*mark, payload["digest"], payload["run"], step) or (step == 0 and row[5] != 0):
            self._request_rows.disagrees(seq)
            return min(step, 1)  # said once
        attempts: int = row[5]
        return attempts

    def _releasing(self, payload: Mapping[str, Any], books: Books) -> _Run:
        run = self._runs[payload["run"]]
        require(books.state is DataSetState.OPEN, "nothing is released while the data set is frozen or ended")
        require(not books.clients[run.client].paused, "nothing is released to a paused client")
        require(not run.pruned and run.seq > books.updated, "a closed run, or of earlier records, releases nothing")
        return run

    def _begun(self, run: _Run, payload: Mapping[str, Any]) -> _Step:
        step = payload["step"]
        require(step in run.begun, "a step is begun before it is resumed or answered, and answered once")
        return run.begun[step]

    def _count(self, name: str, number: int, step: _Step) -> None:
        if step.attempts != step.stored:
            text = f"step {number} of run {name} was begun {step.attempts} times, and its row states {step.stored}"
            self._findings.append(inconsistent(text))


def _closed_runs(session: Session) -> set[str]:
    """The runs whose replies the operator has discarded by the end of the chain."""
    statements = session.execute("SELECT statement FROM entries WHERE kind = ?", (Kind.REPLIES_PRUNED.value,))
    closed = set()
    for (statement,) in statements.fetchall():
        try:
            closed.add(SignedEntry.parse(statement, b"").payload["run"])
        except (InvalidValue, KeyError):
            continue  # found where the entries are read in order
    return closed


def inconsistent(text: str) -> Finding:
    """Something does not agree with the entries."""
    return Finding(tampering=Tampering.INCONSISTENT, seq=0, text=text)
