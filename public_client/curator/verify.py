"""The client's own audit: its receipts by themselves, and against what the operator shows of the ledger.

Receipts are signed by the ledger's key and hold their places in its chain, so they accuse on their own: two different
receipts for one place prove a rollback, a step beyond the charged ones proves an unlawful answer. Held against a view
(`dpswd.shared.books.view`) or a whole export they find every edit, deletion, reordering, truncation and rollback that
touches an entry at or before the last receipt, or, with an earlier view, at or before the end of that one.

The order of lines in a receipt file means nothing, nor do repeated lines: each receipt carries its place.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpswd.public_client.curator.receipts import LEDGER_KEY_FILE, RECEIPTS_FILE, read_pinned
from dpswd.shared.books import view as ledger_view
from dpswd.shared.books.chain_checks import Finding, Tampering, check_chain, finding_at, hold_receipts, read_export
from dpswd.shared.books.view import STEP_CONSUMED, LedgerView
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.core.ledger.keys import KEY_CHANGED, LedgerKeys, PinnedKey
from dpswd.shared.core.ledger.receipts import RUN_OPENED, STEP_ANSWERED, Receipt, SignedEntry
from dpswd.shared.core.privacy.budget import Price
from dpswd.shared.protocol.publications import Publication

_OWN = (RUN_OPENED, STEP_CONSUMED, STEP_ANSWERED)

_ANOTHERS = (
    "your receipts are signed by the key that you gave and no entry of the ledger's file is: it is another curator's "
    "ledger, or forged as a whole; ask the operator who issued these receipts for `dpswd-curator ledger export`"
)


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        receipts: different receipts that were read.
        runs: runs among them.
        steps: answered steps among them.
        last: place of the last receipt in the chain; 0 without any.
        entries: length of the ledger that they were held against; None without one.
        findings: everything that is wrong; empty when all is well.
    """

    receipts: int
    runs: int
    steps: int
    last: int
    entries: int | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify(
    receipts: Sequence[SignedEntry],
    *,
    public_key: PinnedKey,
    ledger: Sequence[str] | None = None,
    earlier: Sequence[Sequence[str]] = (),
    complete: bool = True,
) -> VerifyReport:
    """Checks receipts by themselves and against a ledger.

    Args:
        receipts: the client's own, from all its runs, in any order.
        public_key: the ledger's raw Ed25519 key, 32 bytes, as the client pinned it, or its keys.
        ledger: lines of a view or of a whole export; None to check the receipts alone.
        earlier: lines of views that the client kept from before.
        complete: whether `receipts` are all that this client ever got; then an answer without a receipt is a finding.

    Raises:
        InvalidValue: the key is none, a view has no header, or the lines are no ledger at all.
    """
    own = list({entry.statement + entry.signature: entry for entry in receipts}.values())
    own.sort(key=lambda entry: entry.seq)
    changes = (line for lines in (ledger or (), *earlier) for line in lines if KEY_CHANGED in line)
    public_key = LedgerKeys.of(public_key, read_export(changes)[0])
    findings = _against_each_other(own, public_key)
    names = {entry.payload.get("client") for entry in own if entry.signed_by(public_key)}
    length: int | None = None
    if ledger is not None:
        view, problems = _read_ledger(ledger, public_key, own, client=str(min(names, default="", key=str)))
        if names and view.shown and not any(entry.signed_by(public_key) for entry in view.shown.values()):
            # One cause, and one finding: all that follows from it says nothing more.
            return _report(own, [*findings, Finding(tampering=Tampering.FORGED, seq=0, text=_ANOTHERS)], view.entries)
        findings += problems
        findings += hold_receipts(own, view.hashes, view.entries, public_key)
        if names and view.client not in names:
            text = f"the view was made for {view.client!r}, the receipts are those of {sorted(map(str, names))}"
            findings.append(Finding(tampering=Tampering.INCONSISTENT, seq=0, text=text))
        shown = [entry for _, entry in sorted(view.shown.items()) if entry.payload.get("client") == view.client]
        findings += _lawful([entry for entry in shown if entry.kind in _OWN], whole=True)
        if complete:
            findings += _unreceipted(shown, own)
        for lines in earlier:
            before, problems = ledger_view.read_view(lines, public_key)
            findings += problems
            findings += ledger_view.hold_earlier(view, before)
        length = view.entries
    elif complete:
        findings += _gaps(own)
    return _report(own, findings, length)


def _report(own: Sequence[SignedEntry], findings: Sequence[Finding], length: int | None) -> VerifyReport:
    return VerifyReport(
        receipts=len(own), runs=sum(entry.kind == RUN_OPENED for entry in own),
        steps=sum(entry.kind == STEP_ANSWERED for entry in own), last=own[-1].seq if own else 0, entries=length,
        findings=tuple(dict.fromkeys(findings)),
    )  # fmt: skip


def _against_each_other(receipts: Sequence[SignedEntry], public_key: LedgerKeys) -> list[Finding]:
    """What different receipts, in the order of their places, say against themselves and each other."""
    checked = [(entry, entry.signed_by(public_key)) for entry in receipts]
    sound = [entry for entry, signed in checked if signed]
    text = "the receipt is not signed by the ledger's key"
    findings = [finding_at(Tampering.FORGED, entry, text) for entry, signed in checked if not signed]
    for before, after in itertools.pairwise(sound):
        if before.seq == after.seq:
            text = "two different signed receipts for one place: the ledger was rolled back or rewritten between them"
            findings.append(finding_at(Tampering.REWRITTEN, after, text))
        elif before.seq + 1 == after.seq and after.previous != before.hash:
            findings.append(finding_at(Tampering.RELINKED, after, "it does not name the receipt before it"))
    return findings + _lawful(sound, whole=False)


def read_receipts(paths: Iterable[Path]) -> tuple[list[SignedEntry], list[Finding]]:
    """Reads receipt files; for a directory, every ``receipts.jsonl`` in it and below.

    Returns:
        The receipts, and a finding for each line that is none.

    Raises:
        SettingsError: a path does not exist, or holds no receipts.
    """
    entries: list[SignedEntry] = []
    findings: list[Finding] = []
    for path in paths:
        for file in receipt_files(path):
            with file.open(encoding="ascii", errors="replace") as lines:
                read, wrong = read_export(lines)
            for entry in read:
                try:
                    Receipt.of(entry)
                except InvalidValue as error:
                    wrong.append(finding_at(Tampering.UNREADABLE, entry, str(error)))
                else:
                    entries.append(entry)
            findings += [Finding(tampering=flaw.tampering, seq=flaw.seq, text=f"{file}: {flaw.text}") for flaw in wrong]
    return entries, findings


def read_release(path: Path, public_key: PinnedKey) -> tuple[list[SignedEntry], list[Finding]]:
    """The receipts of a published release, and a finding for all that does not hold together.

    Args:
        path: of the file.
        public_key: see `verify`.

    Raises:
        DataInvalid: the file cannot be read, or is no publication at all.
    """
    read = Publication.read(path)
    wrong = read.problems(public_key)
    return read.entries(), [Finding(tampering=Tampering.FORGED, seq=0, text=f"{path}: {text}") for text in wrong]


def receipt_files(path: Path) -> list[Path]:
    """The receipt files that a path means.

    Raises:
        SettingsError: there are none.
    """
    if path.is_file():
        return [path]
    files = sorted(path.rglob(RECEIPTS_FILE)) if path.is_dir() else []
    if not files:
        raise SettingsError(f"{path} holds no {RECEIPTS_FILE}; give the run directories, or receipt files")
    return files


def pinned_key(*, given: Path | None, credentials: Path | None, receipts: Iterable[Path]) -> LedgerKeys:
    """The ledger's key as the client pinned it; all the places that hold one must agree.

    Args:
        given: a file that the user names.
        credentials: the credentials directory; its ledger.pub comes from the operator.
        receipts: receipt files or run directories; a ledger.pub stands beside each file.

    Raises:
        SettingsError: no key is pinned anywhere, or two differ.
    """
    places = [] if credentials is None else [credentials / LEDGER_KEY_FILE]
    places += [file.with_name(LEDGER_KEY_FILE) for path in receipts for file in receipt_files(path)]
    places = ([] if given is None else [given]) + [place for place in places if place.is_file()]
    if not places:
        raise SettingsError(
            f"no ledger key is pinned: no {LEDGER_KEY_FILE} beside the receipts or in the credentials; give --key FILE "
            "with the 64 hexadecimal digits that the operator told"
        )
    pinned = {place: read_pinned(place) for place in places}
    keys = LedgerKeys.of(next(iter(pinned.values())), [change for each in pinned.values() for change in each.changes])
    if any(each.pinned not in keys.every for each in pinned.values()):
        raise SettingsError(
            f"different ledger keys are pinned in {', '.join(map(str, pinned))}; verify each curator's receipts alone"
        )
    return keys


def _read_ledger(
    lines: Sequence[str], public_key: LedgerKeys, own: Sequence[SignedEntry], *, client: str
) -> tuple[LedgerView, list[Finding]]:
    """A view, also where the operator handed out the whole chain."""
    if next((ledger_view.is_view(line) for line in lines if line.strip()), True):
        return ledger_view.read_view(lines, public_key)
    entries, findings = read_export(lines)
    if {entry.hash for entry in entries} <= {entry.hash for entry in own}:
        held = "nothing but your own receipts" if entries else "no entry of a ledger"
        raise InvalidValue(
            f"the ledger's file holds {held}; give what the operator wrote with `dpswd-curator ledger export`"
        )
    findings += check_chain(entries, public_key)
    last = entries[-1] if entries else None
    view = LedgerView(
        client=client, entries=0 if last is None else max(entry.seq for entry in entries),
        head="" if last is None else last.hash, time="" if last is None else last.time,
        hashes={entry.seq: entry.hash for entry in entries}, shown={entry.seq: entry for entry in entries},
    )  # fmt: skip
    return view, findings


def _lawful(entries: Sequence[SignedEntry], *, whole: bool) -> list[Finding]:
    """Whether a client's entries, in order, are what the ledger's rules allow.

    Args:
        entries: signed ones, sorted by place.
        whole: whether none of the client's own is missing, as in a view.
    """
    books = _OwnBooks(whole=whole)
    return [finding_at(Tampering.UNLAWFUL, entry, text) for entry in entries for text in books.problems(entry)]


class _OwnBooks:
    """What one client's entries have charged, begun and answered so far.

    Args:
        whole: whether none of them is missing.
    """

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._client: object = None
        self._runs: dict[str, int] = {}  # run -> charged steps
        self._requests: dict[str, tuple[str, str]] = {}  # request id -> digest, run
        self._consumed: dict[str, int] = defaultdict(int)  # run -> last begun step
        self._answered: set[tuple[str, int]] = set()

    def problems(self, entry: SignedEntry) -> list[str]:
        """Takes one entry, and says which rules it breaks."""
        payload = entry.payload
        client, run, digest = payload.get("client"), str(payload.get("run")), str(payload.get("digest"))
        self._client = self._client or client
        broken = []
        if client != self._client:
            broken.append(f"it belongs to {client!r}, the others to {self._client!r}")
        if self._requests.setdefault(str(payload.get("request_id")), (digest, run)) != (digest, run):
            broken.append("its request id stands for another request")
        if entry.kind == RUN_OPENED:
            return broken + self._opened(run, payload)
        step = payload.get("step")
        if type(step) is not int or step < 1:
            return [*broken, "steps are counted from 1"]
        return broken + self._charged(run, step) + self._in_order(entry.kind, run, step)

    def _opened(self, run: str, payload: Mapping[str, object]) -> list[str]:
        broken = ["its run was charged before"] if run in self._runs else []
        steps, prices = payload.get("steps"), payload.get("prices")
        if type(steps) is not int or steps < 1:
            return [*broken, "a run has at least one step"]
        self._runs[run] = steps
        for scope, price in prices.items() if isinstance(prices, Mapping) else ():
            if price is not None and not _grows(price):
                broken.append(f"its price for the {scope} is negative or unreadable: spending never shrinks")
        return broken

    def _charged(self, run: str, step: int) -> list[str]:
        steps = self._runs.get(run)
        if steps is None:
            return ["its run was never charged"] if self._whole else []
        return [f"it is step {step} of a run with {steps} charged steps"] if step > steps else []

    def _in_order(self, kind: str, run: str, step: int) -> list[str]:
        last = self._consumed[run]
        if kind == STEP_CONSUMED:
            self._consumed[run] = step
            return [] if step == last + 1 else [f"step {last + 1} comes next in its run, not {step}"]
        if (run, step) in self._answered:
            return [f"step {step} of its run was answered before"]
        self._answered.add((run, step))
        return [f"step {step} was answered and never begun"] if self._whole and step > last else []


def _grows(text: object) -> bool:
    try:
        Price.from_json(str(text))
    except InvalidValue:
        return False
    return True


def _unreceipted(shown: Sequence[SignedEntry], receipts: Sequence[SignedEntry]) -> list[Finding]:
    have = {entry.statement for entry in receipts}
    text = "the ledger states it and no receipt is there: a receipt was lost, or somebody else used this identity"
    return [
        finding_at(Tampering.UNRECEIPTED, entry, text)
        for entry in shown
        if entry.kind in (RUN_OPENED, STEP_ANSWERED) and entry.statement not in have
    ]


def _gaps(receipts: Sequence[SignedEntry]) -> list[Finding]:
    """Steps that must have been answered or given up, judged by the later ones; a view would tell which."""
    steps: dict[str, set[int]] = defaultdict(set)
    opened = {str(entry.payload.get("run")) for entry in receipts if entry.kind == RUN_OPENED}
    last: dict[str, SignedEntry] = {}
    for entry in receipts:
        run, step = str(entry.payload.get("run")), entry.payload.get("step")
        if entry.kind == STEP_ANSWERED and type(step) is int:  # one that was tampered with may lack its fields
            steps[run].add(step)
            last[run] = entry
    findings = []
    for run, have in steps.items():
        missing = sorted(set(range(1, max(have) + 1)) - have)
        if missing:
            text = f"no receipts for steps {missing[:10]} of its run; hold the receipts against a view of the ledger"
            findings.append(finding_at(Tampering.UNRECEIPTED, last[run], text))
        if run not in opened:
            findings.append(finding_at(Tampering.UNRECEIPTED, last[run], "no receipt for the charge of its run"))
    return findings
