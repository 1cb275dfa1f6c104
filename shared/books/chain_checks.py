"""Whether signed entries are one unbroken chain, and whether a client's receipts stand in it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.keys import LedgerKeys, PinnedKey
from dpswd.shared.core.ledger.receipts import GENESIS, SignedEntry

CLOCKS_DIFFER_BY = timedelta(minutes=5)
"""Replicas write one ledger by several clocks, and a clock is set right by small steps."""


class Tampering(enum.Enum):
    """What a check found."""

    UNREADABLE = "unreadable"  # not a statement at all
    EDITED = "edited"  # the signature does not fit the statement
    MISSING = "missing"  # entries were deleted: a gap in seq
    REORDERED = "reordered"  # an entry stands behind one with a higher or equal seq
    RELINKED = "relinked"  # the entry names another predecessor than the one that stands there
    TRUNCATED = "truncated"  # a receipt names an entry behind the end: truncation or rollback
    REWRITTEN = "rewritten"  # a receipt and the ledger have different entries at one position
    FORGED = "forged"  # a receipt that the ledger's key did not sign
    UNLAWFUL = "unlawful"  # an entry that the ledger's rules do not allow at its position
    UNRECEIPTED = "unreceipted"  # the ledger charges or answers what no receipt of the client's is there for
    MISDATED = "misdated"  # an entry is dated before the one before it
    INCONSISTENT = "inconsistent"  # tables, stored bytes or the file do not agree with the entries


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, and where.

    Attributes:
        tampering: the kind of damage.
        seq: the position in the chain, or the line number for an unreadable line.
        text: one sentence for the reader.
    """

    tampering: Tampering
    seq: int
    text: str


def read_export(lines: Iterable[str]) -> tuple[list[SignedEntry], list[Finding]]:
    """Reads an export or a receipt file, one `SignedEntry.to_json` per line; empty lines are skipped.

    Returns:
        The entries in the order of the file, and a finding for each line that is none.
    """
    entries: list[SignedEntry] = []
    findings: list[Finding] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entries.append(SignedEntry.from_json(line))
        except InvalidValue as error:
            findings.append(Finding(tampering=Tampering.UNREADABLE, seq=number, text=f"line {number}: {error}"))
    return entries, findings


class ChainCheck:
    """Follows a chain entry by entry.

    Args:
        public_key: the ledger's raw Ed25519 key, 32 bytes, or its keys.
        every_signature: whether each is checked. Each entry names the one before by its hash, so the last one's
            signature vouches for what all of them state; it is the caller's to look at (`SignedEntry.signed_by`).
    """

    def __init__(self, public_key: PinnedKey, *, every_signature: bool = True) -> None:
        self._public_key = public_key
        self._every_signature = every_signature
        self._expected, self._previous = 1, GENESIS
        self._before: datetime | None = None

    def follow(self, entry: SignedEntry) -> list[Finding]:
        """What is wrong with the next entry, by itself and where it stands."""
        findings: list[Finding] = []
        dated = _dated(entry)
        if self._before and dated and dated < self._before - CLOCKS_DIFFER_BY:
            text = (
                f"it is dated {entry.time}, before the entry before it ({self._before.isoformat()}): a clock was wrong"
            )
            findings.append(finding_at(Tampering.MISDATED, entry, text))
        self._before = dated or self._before
        if self._every_signature and not entry.signed_by(self._public_key):
            findings.append(finding_at(Tampering.EDITED, entry, "its signature does not fit its content"))
        expected = self._expected
        if entry.seq > expected:
            findings.append(finding_at(Tampering.MISSING, entry, f"entries {expected} to {entry.seq - 1} are missing"))
        elif entry.seq < expected:
            findings.append(finding_at(Tampering.REORDERED, entry, f"it stands where entry {expected} belongs"))
        elif entry.previous != self._previous:
            findings.append(finding_at(Tampering.RELINKED, entry, "it does not name the entry before it"))
        self._expected, self._previous = max(expected, entry.seq) + 1, entry.hash
        return findings


def check_chain(entries: Sequence[SignedEntry], public_key: PinnedKey) -> list[Finding]:
    """Every signature, and that the entries are 1, 2, 3, ... each naming the one before.

    A truncated tail leaves a valid chain: only receipts, or a head noted elsewhere, can show it.
    """
    check = ChainCheck(LedgerKeys.of(public_key, entries))
    return [finding for entry in entries for finding in check.follow(entry)]


def _dated(entry: SignedEntry) -> datetime | None:
    """When the entry says that it was written; None where it says something else, which its signature then shows."""
    try:
        moment = datetime.fromisoformat(entry.time)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def hold_receipts(
    receipts: Iterable[SignedEntry], hashes: Mapping[int, str], length: int, public_key: PinnedKey
) -> list[Finding]:
    """Holds receipts against a ledger: each must be the entry that stands at its place.

    Args:
        receipts: in any order.
        hashes: of the ledger's entries, by place.
        length: of the ledger.
        public_key: the ledger's raw Ed25519 key, 32 bytes, as the client pinned it, or its keys.
    """
    findings: list[Finding] = []
    for receipt in receipts:
        if not receipt.signed_by(public_key):
            findings.append(finding_at(Tampering.FORGED, receipt, "the receipt is not signed by the ledger's key"))
        elif receipt.seq > length:
            text = f"the ledger ends at entry {length}: it was truncated or rolled back behind this receipt"
            findings.append(finding_at(Tampering.TRUNCATED, receipt, text))
        elif (stated := hashes.get(receipt.seq)) is None:
            findings.append(finding_at(Tampering.MISSING, receipt, "the entry of this receipt is missing"))
        elif stated != receipt.hash:
            text = "the ledger now states something else than this signed receipt: its history was rewritten"
            findings.append(finding_at(Tampering.REWRITTEN, receipt, text))
    return findings


def finding_at(tampering: Tampering, entry: SignedEntry, text: str) -> Finding:
    """What is wrong with one entry."""
    return Finding(tampering=tampering, seq=entry.seq, text=f"entry {entry.seq} ({entry.kind}): {text}")
