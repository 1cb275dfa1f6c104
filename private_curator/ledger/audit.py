"""Verification: the ledger derived anew from its entries alone, and compared with what the file says.

Five questions, each answered from the entries and the curator's public key:

1. Is the chain whole: every signature, every link, no gap?
2. Was every entry allowed where it stands: no step answered that was not consumed, none consumed that was not
   charged, no charge that the filters did not admit, each price at least what the event costs?
3. Do the tables say what the entries say?
4. Are the stored replies, parameters and audit records those whose digests the entries hold?
5. Do a client's receipts, or heads noted elsewhere, stand in the chain?

Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from private_curator.ledger.accounting import RENYI, Accounting
from private_curator.ledger.accounts import DATA_SET
from private_curator.ledger.budget import Books, require
from private_curator.ledger.database import LedgerLocation, Session, by_seq
from private_curator.ledger.sqlite_file import as_location
from private_curator.ledger.statements import DataSetState, Kind
from shared.errors import InvalidValue, LedgerCorrupt
from shared.ledger.chain_checks import Finding, Tampering, finding_at, verify_receipts
from shared.ledger.receipts import SignedEntry, sha256

# A stored price may differ from one computed anew by the last digits of another machine's library.
PRICE_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class VerificationReport:
    """The result of a verification.

    Attributes:
        entries: how many entries were read.
        head: hash of the last one, hexadecimal; empty when there is none.
        epsilon_spent: of the data set's account, recomputed.
        findings: everything that is wrong; empty for a sound ledger.
    """

    entries: int
    head: str
    epsilon_spent: float
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


@dataclass
class Derivation:
    """The tables as the entries imply them.

    Rows are in the order of the columns of `private_curator.ledger.schema`, without the stored bytes.
    """

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    steps: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    replies: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def apply(self, entry: SignedEntry, books: Books) -> None:
        """Takes one entry; the books are as of the one before.

        Raises:
            LedgerCorrupt, KeyError: the entry is not allowed where it stands.
        """
        payload = entry.payload
        if entry.kind in (Kind.STEP_CONSUMED, Kind.STEP_RESUMED):
            open_ = books.state is DataSetState.OPEN
            require(open_, "nothing is released while the data set is frozen or ended")
            holder, _ = self.steps[payload["run"], 0]
            require(not books.clients[holder].paused, "nothing is released to a paused client")
        match entry.kind:
            case Kind.RUN_OPENED:
                require(payload["run"] not in self.runs, "the run was opened before")
                self.runs[payload["run"]] = {
                    "seq": entry.seq,
                    "parameters": payload["parameters"],
                    "steps": payload["steps"],
                    "steps_used": 0,
                    "pruned": 0,
                }
                self._request(entry, step=0, attempts=0)
            case Kind.STEP_CONSUMED:
                run = self._live_run(payload)
                run["steps_used"] += 1
                require(payload["step"] == run["steps_used"] <= run["steps"], "only charged steps are used, one by one")
                require(payload["client"] == holder, "a run belongs to one client")
                self._request(entry, step=payload["step"], attempts=1)
            case Kind.STEP_RESUMED:
                self._live_run(payload)
                run_step = payload["run"], payload["step"]
                request = self.requests[self.steps[run_step]]
                request["attempts"] += 1
                require(run_step not in self.replies, "an answered step is not computed again")
                require(payload["attempt"] == request["attempts"], "attempts are counted")
            case Kind.STEP_ANSWERED:
                run_step = payload["run"], payload["step"]
                require(run_step not in self.replies, "a step is answered once")
                require(payload["step"] > 0, "steps are counted from 1")
                known = self.requests[self.steps[run_step]]
                require(self.steps[run_step] == (payload["client"], payload["request_id"]), "another request's step")
                require(known["digest"] == payload["digest"], "another request's content")
                self.replies[run_step] = {"seq": entry.seq, "reply": payload["reply"], "audit": payload["audit"]}
            case Kind.REPLIES_PRUNED:
                self.runs[payload["run"]]["pruned"] = 1
            case _:
                pass  # the books take everything else

    def _request(self, entry: SignedEntry, *, step: int, attempts: int) -> None:
        payload = entry.payload
        key, run_step = (payload["client"], payload["request_id"]), (payload["run"], step)
        require(key not in self.requests, "a request id is used once")
        require(run_step not in self.steps, "a step belongs to one request")
        self.steps[run_step] = key
        self.requests[key] = {
            "digest": payload["digest"],
            "run_id": payload["run"],
            "step": step,
            "attempts": attempts,
            "seq": entry.seq,
        }

    def _live_run(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        run = self.runs[payload["run"]]
        require(not run["pruned"], "a closed run releases nothing")
        return run


def verify_file(
    where: LedgerLocation | Path,
    *,
    public_key: bytes,
    accounting: Accounting = RENYI,
    receipts: Iterable[SignedEntry] = (),
) -> VerificationReport:
    """Answers the module's five questions for a ledger or a backup that need not be sound enough to open.

    Args:
        where: the ledger's place, or a backup's file.
        public_key: the ledger's raw Ed25519 key, 32 bytes.
        accounting: prices the runs anew.
        receipts: signed entries that somebody kept elsewhere.

    Raises:
        LedgerUnavailable: it cannot be read at all.
    """
    location = as_location(where)
    with location.reading() as connection:
        findings = [_inconsistent(text) for text in location.defects(connection)]
        entries, unreadable = _read(connection)
        findings += unreadable
        findings += verify_receipts(entries, receipts, public_key)
        books, derivation = Books(accounting), Derivation()
        for entry in entries:
            try:
                if entry.kind == Kind.RUN_OPENED:
                    findings += _check_price(books, entry)
                derivation.apply(entry, books)
                books.apply(entry)
            except (KeyError, TypeError, LedgerCorrupt) as error:
                findings.append(finding_at(Tampering.UNLAWFUL, entry, f"it is not allowed where it stands: {error}"))
        findings += _compare(connection, derivation)
    if books.public_key != public_key.hex():
        text = "the first entry does not name the public key that was given"
        findings.append(Finding(tampering=Tampering.FORGED, seq=1, text=text))
    return VerificationReport(
        entries=len(entries),
        head=entries[-1].hash if entries else "",
        epsilon_spent=0.0 if books.data_set is None else books.data_set.status(closed=False).epsilon_spent,
        findings=tuple(findings),
    )


def _read(connection: Session) -> tuple[list[SignedEntry], list[Finding]]:
    entries, findings = [], []
    for seq, kind, statement, signature in by_seq(connection, "SELECT seq, kind, statement, signature FROM entries"):
        try:
            entry = SignedEntry.parse(statement, signature)
        except InvalidValue as error:
            findings.append(Finding(tampering=Tampering.UNREADABLE, seq=seq, text=f"entry {seq}: {error}"))
            continue
        if (entry.seq, entry.kind) != (seq, kind):
            text = f"entry {seq} ({kind}) states that it is entry {entry.seq} ({entry.kind})"
            findings.append(Finding(tampering=Tampering.EDITED, seq=seq, text=text))
        entries.append(entry)
    return entries, findings


def _check_price(books: Books, entry: SignedEntry) -> list[Finding]:
    """A charge is never less than what its event costs."""
    event = books.accounting.event_from_json(entry.payload["event"])
    prices = entry.payload["prices"]
    findings = []
    if event.steps != entry.payload["steps"]:
        text = f"it grants {entry.payload['steps']} steps and charges {event.steps}"
        findings.append(finding_at(Tampering.UNLAWFUL, entry, text))
    for scope, account in books.accounts(entry.payload["client"]).items():
        filter_ = account.fixed_filter
        stored = filter_.alone(books.accounting.price_from_json(prices[scope]))
        anew = filter_.alone(filter_.price(event))
        if stored < anew * (1 - PRICE_TOLERANCE):
            text = f"it charges the {scope} epsilon {stored:.6g} for a run that costs {anew:.6g}"
            findings.append(finding_at(Tampering.UNLAWFUL, entry, text))
        if scope == DATA_SET and abs(entry.payload["epsilon"] - stored) > PRICE_TOLERANCE * stored:
            text = f"it states epsilon {entry.payload['epsilon']:.6g} and charges {stored:.6g}"
            findings.append(finding_at(Tampering.UNLAWFUL, entry, text))
    return findings


def _compare(connection: Session, derivation: Derivation) -> list[Finding]:
    """Questions 3 and 4: every table row for row, and the bytes by their digests."""
    run_columns = ("seq", "parameters", "steps", "steps_used", "pruned")
    runs = {
        row[0]: dict(zip(run_columns, row[1:], strict=True))
        for row in connection.execute(f"SELECT run_id, {', '.join(run_columns)} FROM runs")  # noqa: S608 constants
    }
    for row in runs.values():
        row["parameters"] = sha256(row["parameters"])
    request_columns = ("digest", "run_id", "step", "attempts", "seq")
    requests = {
        (row[0], row[1]): dict(zip(request_columns, row[2:], strict=True))
        for row in connection.execute(f"SELECT client, request_id, {', '.join(request_columns)} FROM requests")  # noqa: S608
    }
    replies = {}
    findings = []
    for seq, run_id, step, reply, audit in by_seq(connection, "SELECT seq, run_id, step, reply, audit FROM replies"):
        pruned = bool(derivation.runs.get(run_id, {}).get("pruned"))
        implied = derivation.replies.get((run_id, step), {}).get("reply")
        if pruned == (reply is not None):
            findings.append(
                _inconsistent(f"the reply of step {step} of run {run_id} is kept or gone against the entries")
            )
        # Pruned bytes cannot be compared any more.
        digest = implied if reply is None else sha256(reply)
        replies[run_id, step] = {"seq": seq, "reply": digest, "audit": sha256(audit.encode())}
    tables: tuple[tuple[str, Mapping[Any, Any], Mapping[Any, Any]], ...] = (
        ("runs", derivation.runs, runs),
        ("requests", derivation.requests, requests),
        ("replies", derivation.replies, replies),
    )
    for name, implied_rows, stored_rows in tables:
        findings += [
            _inconsistent(f"the row {key!r} of {name} is not what the entries say")
            for key in implied_rows.keys() | stored_rows.keys()
            if implied_rows.get(key) != stored_rows.get(key)
        ]
    return findings


def _inconsistent(text: str) -> Finding:
    return Finding(tampering=Tampering.INCONSISTENT, seq=0, text=text)
