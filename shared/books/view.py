"""What one client may see of the ledger, signed by the curator: its own entries, and hashes of all others.

An operator hands a *view* to a client that wants to hold its receipts against the ledger. The first line is a header
that the ledger's key signs; each further line stands for one entry, in order: the whole signed entry where it is the
client's own, else its position and hash. The header binds the operator to the list: two views that contradict each
other are proof, and every later view must continue every earlier one.

What a view cannot show by itself: that an entry of another client's names its predecessor, since its content is not
there. What is hidden is pinned all the same: each entry of the client's own names the hash before it, which contains
the hash before that, and so on to the first. Somebody with the whole export can hold it against the view.

What must never change: the meaning of ``dpswd-ledger-view-1``. Everything here is a pure function of bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpswd.shared.books.chain_checks import Finding, Tampering
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger import receipts as chain
from dpswd.shared.core.ledger.keys import KEY_CHANGED, LedgerKeys, PinnedKey

FORMAT = "dpswd-ledger-view-1"
STEP_CONSUMED = "step-consumed"
STEP_RESUMED = "step-resumed"

# Entries that name their client and hold nothing that an operator wrote for the log alone.
_OWN_KINDS = frozenset(
    {"client-added", "client-certified", "certificate-added", chain.RUN_OPENED, STEP_CONSUMED, chain.STEP_ANSWERED}
)
# The size of the data set, its first budget and its keys: `Describe` tells them to every client.
_PUBLIC_KINDS = frozenset({"data-set-opened", KEY_CHANGED})

_HEX_256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class LedgerView:
    """A view as its header states it.

    Attributes:
        client: for whom it was made.
        entries: length of the chain when it was made.
        head: hash of the last entry.
        time: UTC by the curator's clock; information only.
        hashes: hash of each entry by its position, as far as the lines could be read.
        shown: the entries that are there in full, by position.
    """

    client: str
    entries: int
    head: str
    time: str
    hashes: Mapping[int, str]
    shown: Mapping[int, chain.SignedEntry]


def write_view(
    entries: Iterable[chain.SignedEntry], *, client: str, time: str, sign: Callable[[bytes], bytes]
) -> Sequence[str]:
    """Makes the view of one client.

    Args:
        entries: the whole chain.
        client: the client's name.
        time: UTC, ISO 8601.
        sign: signs bytes with the ledger's key.

    Returns:
        The lines, header first.
    """
    lines: list[str] = []
    runs: set[str] = set()
    count, head = 0, chain.GENESIS
    for entry in entries:
        if _is_for(entry, client, runs):
            lines.append(entry.to_json())
            if entry.kind == chain.RUN_OPENED:
                runs.add(entry.payload["run"])
        else:
            lines.append(chain.canonical_json({"hash": entry.hash, "seq": entry.seq}).decode("ascii"))
        count, head = entry.seq, entry.hash
    statement = chain.canonical_json(
        {"client": client, "entries": count, "format": FORMAT, "head": head, "lines": _digest(lines), "time": time}
    )
    return [chain.signed_line(statement, sign(chain.Signed.VIEW.over(statement)), field="view"), *lines]


def is_view(first_line: str) -> bool:
    """Whether a file that begins with this line is a view, and not an export of the whole chain."""
    try:
        value = json.loads(first_line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "view" in value


def read_view(lines: Iterable[str], public_key: PinnedKey) -> tuple[LedgerView, list[Finding]]:
    """Reads and checks a view by itself.

    Args:
        lines: of the file; empty ones are skipped.
        public_key: the ledger's raw Ed25519 key, 32 bytes, as the client pinned it, or its keys.

    Returns:
        The view, and what is wrong with it: header, order, signatures, and links of the entries that are shown.

    Raises:
        InvalidValue: there is no header that says what the file is.
    """
    body = [line.strip() for line in lines if line.strip()]
    if not body:
        raise InvalidValue("the file is empty; it must hold a view of the ledger, as the operator exports it")
    hashes, shown, findings = _read_lines(body[1:])
    keys = LedgerKeys.of(public_key, shown)
    header, signed = _read_header(body[0], keys)
    if not signed:
        findings.append(_finding(Tampering.FORGED, 0, "the view's header is not signed by the ledger's key"))
    if header["lines"] != _digest(body[1:]):
        findings.append(_finding(Tampering.EDITED, 0, "the lines are not those that the view's header was signed for"))
    findings += _check_order([seq for seq, _ in hashes], header["entries"])
    stated = {key: header[key] for key in ("client", "entries", "head", "time")}
    view = LedgerView(**stated, hashes=dict(hashes), shown={entry.seq: entry for entry in shown})
    findings += _check_links(view, keys)
    return view, findings


def hold_earlier(view: LedgerView, earlier: LedgerView) -> list[Finding]:
    """Holds a view against one that was signed before: it must continue it, entry by entry."""
    findings = []
    if earlier.entries > view.entries:
        text = f"the ledger ended at entry {earlier.entries} when {earlier.time} was signed, and now ends before"
        findings.append(_finding(Tampering.TRUNCATED, earlier.entries, text))
    for seq in sorted(earlier.hashes.keys() & view.hashes.keys()):
        if earlier.hashes[seq] != view.hashes[seq]:
            text = f"it is another entry than in the view of {earlier.time}: the history was rewritten from here on"
            findings.append(_finding(Tampering.REWRITTEN, seq, text))
            break
    return findings


def _is_for(entry: chain.SignedEntry, client: str, runs: set[str]) -> bool:
    if entry.kind in _PUBLIC_KINDS:
        return True
    if entry.kind in _OWN_KINDS:
        return bool(entry.payload["client"] == client)
    return entry.kind == STEP_RESUMED and entry.payload["run"] in runs


def _digest(lines: Sequence[str]) -> str:
    return chain.sha256("\n".join(lines).encode("ascii", errors="replace"))


def _read_header(line: str, keys: LedgerKeys) -> tuple[dict[str, Any], bool]:
    """The header's fields, and whether the ledger's key signed them."""
    try:
        statement, signature = chain.read_signed_line(line, field="view")
        header = json.loads(statement)
        typed = (
            set(header) == {"client", "entries", "format", "head", "lines", "time"}
            and header["format"] == FORMAT
            and type(header["entries"]) is int
            and all(isinstance(header[key], str) for key in ("client", "head", "lines", "time"))
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidValue(
            "the file is no view of a ledger; get one with `dpswd-curator ledger export --client NAME`"
        ) from error
    if not typed:
        raise InvalidValue(f"the file is no view of format {FORMAT}; another program wrote it")
    return header, chain.is_signed(chain.Signed.VIEW, statement, signature, keys.at(header["entries"] + 1))


def _read_lines(lines: Sequence[str]) -> tuple[list[tuple[int, str]], list[chain.SignedEntry], list[Finding]]:
    hashes: list[tuple[int, str]] = []
    shown: list[chain.SignedEntry] = []
    findings: list[Finding] = []
    for number, line in enumerate(lines, start=2):
        try:
            value = json.loads(line)
            if isinstance(value, dict) and set(value) == {"hash", "seq"}:
                if type(value["seq"]) is not int or not _HEX_256.fullmatch(str(value["hash"])):
                    raise InvalidValue("a hidden entry is a position and a SHA-256")
                hashes.append((value["seq"], value["hash"]))
                continue
            entry = chain.SignedEntry.from_json(line)
        except (ValueError, RecursionError) as error:
            findings.append(_finding(Tampering.UNREADABLE, number, f"line {number}: {error}"))
            continue
        hashes.append((entry.seq, entry.hash))
        shown.append(entry)
    return hashes, shown, findings


def _check_order(positions: Sequence[int], entries: int) -> list[Finding]:
    findings = []
    expected = 1
    for seq in positions:
        if seq > expected:
            findings.append(_finding(Tampering.MISSING, seq, f"entries {expected} to {seq - 1} are missing"))
        elif seq < expected:
            findings.append(_finding(Tampering.REORDERED, seq, f"it stands where entry {expected} belongs"))
        expected = max(expected, seq) + 1
    if expected - 1 != entries:
        text = f"the header speaks of {entries} entries, the lines end at {expected - 1}"
        findings.append(_finding(Tampering.TRUNCATED, expected - 1, text))
    return findings


def _check_links(view: LedgerView, keys: LedgerKeys) -> list[Finding]:
    findings = []
    for seq, entry in sorted(view.shown.items()):
        if not entry.signed_by(keys):
            findings.append(_finding(Tampering.EDITED, seq, "its signature does not fit its content"))
        before = chain.GENESIS if seq == 1 else view.hashes.get(seq - 1)
        if before is not None and entry.previous != before:
            findings.append(_finding(Tampering.RELINKED, seq, "it does not name the entry before it"))
    if view.hashes.get(view.entries, view.head) != view.head:
        findings.append(_finding(Tampering.RELINKED, view.entries, "it is not the head that the header states"))
    return findings


def _finding(tampering: Tampering, seq: int, text: str) -> Finding:
    return Finding(tampering=tampering, seq=seq, text=f"entry {seq}: {text}" if seq else text)
