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

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from dpswd.private_curator.books.derivation import Derivation, inconsistent
from dpswd.private_curator.books.location import LedgerLocation
from dpswd.private_curator.books.register import Register, account_status
from dpswd.private_curator.books.renyi import RENYI
from dpswd.private_curator.books.sqlite_file import as_location
from dpswd.private_curator.core.ledger.accounting import Accounting
from dpswd.private_curator.core.ledger.accounts import DATA_SET
from dpswd.private_curator.core.ledger.database import Session, by_seq
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.private_curator.core.ledger.store import entries_of
from dpswd.private_curator.keys.checking import SignatureCheck, processes_for
from dpswd.shared.books.chain_checks import ChainCheck, Finding, Tampering, finding_at, hold_receipts
from dpswd.shared.core.errors import InvalidValue, LedgerCorrupt
from dpswd.shared.core.ledger.keys import LedgerKeys, PinnedKey
from dpswd.shared.core.ledger.receipts import SignedEntry

# A stored price may differ from one computed anew by the last digits of another machine's library.
PRICE_TOLERANCE = 1e-6
PROGRESS_EACH = 20_000
"""Entries between two calls of a `Progress`."""

Progress = Callable[[int, int], object]
"""Is told how many entries are done, and how many there are."""


def untold(done: int, total: int) -> None:
    """A `Progress` that tells nobody."""


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


class VerificationOptions(TypedDict, total=False):
    """See `verify_file`."""

    receipts: Iterable[SignedEntry]
    every_signature: bool
    progress: Progress


def verify_file(
    where: LedgerLocation | Path,
    *,
    public_key: PinnedKey,
    accounting: Accounting = RENYI,
    receipts: Iterable[SignedEntry] = (),
    every_signature: bool = True,
    progress: Progress = untold,
) -> VerificationReport:
    """Answers the module's five questions for a ledger or a backup that need not be sound enough to open.

    Args:
        where: the ledger's place, or a backup's file.
        public_key: the ledger's raw Ed25519 key, 32 bytes, or its keys, where a backup may be older than the newest.
        accounting: prices the runs anew.
        receipts: signed entries that somebody kept elsewhere.
        every_signature: False for the last entry's alone, which vouches for what the chain of hashes before it states.
        progress: called at the beginning, now and then, and at the end.

    Raises:
        LedgerUnavailable: it cannot be read at all.
    """
    location = as_location(where)
    held = tuple(receipts)
    with location.reading() as connection:
        (total,) = connection.execute("SELECT count(*) FROM entries").fetchone()
        progress(0, total)
        findings = [inconsistent(text) for text in location.defects(connection)]
        keys = LedgerKeys.of(public_key, entries_of(connection, Kind.KEY_CHANGED))
        chain, numbers = ChainCheck(keys, every_signature=False), {receipt.seq for receipt in held}
        books, derivation, hashes = Register(accounting), Derivation(connection), {}
        last, length, count = None, 0, 0
        processes = processes_for(total) if every_signature else 0
        with SignatureCheck(keys, processes=processes) as signatures:
            for seq, entry in _read(connection):
                if isinstance(entry, Finding):
                    findings.append(entry)
                    continue
                last, length, count = entry, max(length, entry.seq), count + 1
                if count % PROGRESS_EACH == 0:
                    progress(count, total)
                findings += chain.follow(entry)
                if every_signature:
                    signatures.take(entry.seq, entry.statement, entry.signature)
                if entry.seq in numbers:
                    hashes[entry.seq] = entry.hash
                try:
                    if entry.kind == Kind.RUN_OPENED:
                        findings += _check_charge(books, entry)
                    for run in entry.payload["runs"] if entry.kind == Kind.COPIES_COUNTED else ():
                        findings += _check_prices(books, entry, run)
                    derivation.apply(seq, entry, books)
                    books.apply(entry)
                except (KeyError, TypeError, LedgerCorrupt) as error:
                    text = f"it is not allowed where it stands: {error}"
                    findings.append(finding_at(Tampering.UNLAWFUL, entry, text))
            if last is not None and not every_signature:
                signatures.take(last.seq, last.statement, last.signature)
            for seq in signatures.wrong():
                text = f"entry {seq}: its signature does not fit its content"
                findings.append(Finding(tampering=Tampering.EDITED, seq=seq, text=text))
        progress(count, total)
        findings += hold_receipts(held, hashes, length, keys)
        findings += derivation.findings()
    if bytes.fromhex(books.public_key) not in (keys.every if isinstance(public_key, LedgerKeys) else (public_key,)):
        text = "its entries do not name the public key that was given"
        findings.append(Finding(tampering=Tampering.FORGED, seq=1, text=text))
    return VerificationReport(
        entries=count,
        head="" if last is None else last.hash,
        epsilon_spent=0.0 if books.data_set is None else account_status(books.data_set, closed=False).epsilon_spent,
        findings=tuple(findings),
    )


def _read(connection: Session) -> Iterator[tuple[int, SignedEntry | Finding]]:
    """Entries with the numbers under which they are filed, and what is wrong with how they are kept, one by one."""
    for seq, kind, statement, signature in by_seq(connection, "SELECT seq, kind, statement, signature FROM entries"):
        try:
            entry = SignedEntry.parse(statement, signature)
        except InvalidValue as error:
            yield seq, Finding(tampering=Tampering.UNREADABLE, seq=seq, text=f"entry {seq}: {error}")
            continue
        if (entry.seq, entry.kind) != (seq, kind):
            text = f"entry {seq} ({kind}) states that it is entry {entry.seq} ({entry.kind})"
            yield seq, Finding(tampering=Tampering.EDITED, seq=seq, text=text)
        yield seq, entry


def _check_charge(books: Register, entry: SignedEntry) -> list[Finding]:
    """What a run is granted and told is what it is charged for."""
    payload, findings = entry.payload, _check_prices(books, entry, entry.payload)
    event = books.accounting.event_from_json(payload["event"])
    if event.steps != payload["steps"]:
        text = f"it grants {payload['steps']} steps and charges {event.steps}"
        findings.append(finding_at(Tampering.UNLAWFUL, entry, text))
    stored = books.account.fixed_filter.alone(books.accounting.price_from_json(payload["prices"][DATA_SET]))
    if abs(payload["epsilon"] - stored) > PRICE_TOLERANCE * stored:
        text = f"it states epsilon {payload['epsilon']:.6g} and charges {stored:.6g}"
        findings.append(finding_at(Tampering.UNLAWFUL, entry, text))
    return findings


def _check_prices(books: Register, entry: SignedEntry, run: Mapping[str, Any]) -> list[Finding]:
    """A charge is never less than what its event costs."""
    event, findings = books.accounting.event_from_json(run["event"]), []
    for scope, account in books.accounts(run["client"]).items():
        filter_ = account.fixed_filter
        stored = filter_.alone(books.accounting.price_from_json(run["prices"][scope]))
        anew = filter_.alone(books.accounting.price(filter_, event))
        if stored < anew * (1 - PRICE_TOLERANCE):
            text = f"it charges the {scope} epsilon {stored:.6g} for a run that costs {anew:.6g}"
            findings.append(finding_at(Tampering.UNLAWFUL, entry, text))
    return findings
