"""Restoring a backup without forgetting what was spent.

A ledger that is older than its data set's last charge would allow the same budget to be spent again: that is the one
way in which a careful operator can break the promise by accident. So a restore compares the backup with everything it
can find, the present file and any receipts, and refuses when an entry would be forgotten, or when nobody can tell,
unless the operator accepts the loss in writing. The text becomes an entry of the restored ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpswd.private_curator.books.audit import verify_file
from dpswd.private_curator.books.figures import MIN_ACCEPTANCE_LENGTH
from dpswd.private_curator.books.location import LedgerLocation
from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.books.renyi import RENYI
from dpswd.private_curator.books.sqlite_file import SqliteFile, as_location, new_file, remove
from dpswd.private_curator.core.ledger.accounting import Accounting
from dpswd.private_curator.core.ledger.database import LOCK_TIMEOUT_S, Database, Session
from dpswd.private_curator.core.ledger.sqlite import sync
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.private_curator.core.ledger.store import Clock, append_entry, read_entries
from dpswd.shared.books.chain_checks import check_chain
from dpswd.shared.core.errors import InvalidValue, LedgerCorrupt, LedgerError, LedgerUnavailable, RestoreRefused
from dpswd.shared.core.ledger.keys import LedgerKeys, SigningKey
from dpswd.shared.core.ledger.receipts import SignedEntry

_LISTED = 1000  # forgotten entries that the acceptance lists one by one; beyond, their number says enough


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a restore would forget.

    Attributes:
        runs: ids of runs whose charge would be forgotten, as far as anybody knows.
        entries: hashes of forgotten entries, as far as anybody knows.
        unknown: why nobody can tell what else is forgotten; empty when the list is complete.
    """

    runs: tuple[str, ...]
    entries: tuple[str, ...]
    unknown: str

    def __str__(self) -> str:
        """One sentence for the operator."""
        text = f"{len(self.entries)} entries would be forgotten, among them the charges of {len(self.runs)} runs"
        return text + (f"; more may be: {self.unknown}" if self.unknown else "")


def restore(
    backup: Path,
    into: LedgerLocation | Path,
    *,
    key: SigningKey,
    accounting: Accounting = RENYI,
    receipts: Iterable[SignedEntry] = (),
    accept_loss: str | None = None,
    clock: Clock | None = None,
    by: Operator | None = None,
) -> Loss | None:
    """Puts a backup in the place of a ledger. The replaced ledger stays beside it, under another name.

    Args:
        backup: made by `Ledger.backup`; it is read only.
        into: the ledger's place, with or without a ledger; need not be of the kind that the backup was made from.
        key: the ledger's own key.
        accounting: prices the runs anew while the backup is verified.
        receipts: signed entries that clients or the operator kept.
        accept_loss: a sentence that accepts what is forgotten; at least `MIN_ACCEPTANCE_LENGTH` characters.
        clock: tells the time that the new entry states; by default as `LedgerLocation.clock`.
        by: whoever acts; held to the operators of the ledger that stands there, where it can be read.

    Returns:
        What was forgotten; None when nothing was.

    Raises:
        RestoreRefused: something would be forgotten and ``accept_loss`` is missing.
        LedgerCorrupt: the backup does not verify.
        LedgerUnavailable: a curator serves the ledger now, or the disk does not allow it.
        InvalidValue: the acceptance is too short to be one.
    """
    source, target, public_key = SqliteFile(Path(backup)), as_location(into), key.public_key().public_bytes_raw()
    if accept_loss is not None and len(accept_loss.strip()) < MIN_ACCEPTANCE_LENGTH:
        raise InvalidValue(f"accepting a loss takes a sentence of at least {MIN_ACCEPTANCE_LENGTH} characters")
    with target.alone():
        _must_verify(source, public_key, accounting)
        loss = compare(source, target, receipts=receipts, public_key=public_key)
        if loss is not None and accept_loss is None:
            raise RestoreRefused(f"restoring {source} is refused: {loss}; stop, or accept the loss in writing")
        payload = restored(loss, accept_loss)
        target.replace(source.path, lambda new: _append(new, target, payload, by=by, key=key, clock=clock))
    return loss


def move(
    source: SqliteFile,
    into: LedgerLocation,
    *,
    key: SigningKey,
    accounting: Accounting = RENYI,
    clock: Clock | None = None,
    by: Operator | None = None,
    reason: str | None = None,
) -> Path:
    """Moves a ledger from a file into another place. Nothing can be forgotten: nobody charges either one meanwhile.

    Args:
        source: the ledger's file.
        into: a place in which nothing stands.
        key: the ledger's own key.
        accounting: prices the runs anew while the file is verified.
        clock: tells the time that the new entry states; by default as `LedgerLocation.clock`.
        by: whoever acts; held to the operators of the ledger that stands there, where it can be read.
        reason: stands in the entry.

    Returns:
        The file's new name. Two ledgers of one data set would let its budget be spent twice.

    Raises:
        LedgerCorrupt: the file does not verify.
        LedgerUnavailable: a curator serves the ledger now, or something stands in the new place.
    """
    with source.alone(), into.alone():
        if into.exists():
            raise LedgerUnavailable(f"{into} exists already: a ledger is moved to an empty place only")
        _must_verify(source, key.public_key().public_bytes_raw(), accounting)
        whole, moved = (source.path.with_name(f"{source.path.name}.{suffix}") for suffix in ("moving", "moved"))
        if moved.exists():
            raise LedgerUnavailable(f"{moved} exists already; keep it elsewhere first")
        database = source.open(lock_timeout_s=LOCK_TIMEOUT_S)
        try:
            write_backup(database, whole)
        finally:
            database.close()
        try:
            payload = restored(None, None, reason)
            into.replace(whole, lambda new: _append(new, into, payload, by=by, key=key, clock=clock))
        finally:
            remove(whole)
        source.path.rename(moved)
        sync(moved.parent)
        return moved


def compare(
    backup: LedgerLocation, present: LedgerLocation, *, receipts: Iterable[SignedEntry], public_key: bytes
) -> Loss | None:
    """What putting ``backup`` in the place of ``present`` would forget; None when nothing.

    Raises:
        LedgerCorrupt, LedgerUnavailable: the backup cannot be read.
    """
    before, witnesses = _entries(backup), list(receipts)
    statements = {entry.statement for entry in before}
    forgotten: dict[bytes, SignedEntry] = {}
    unknown = ""
    if present.exists():
        try:
            standing = _entries(present)
            witnesses += standing
            damage = check_chain(standing, LedgerKeys.of(public_key, before))
            if damage:
                unknown = f"the present ledger does not verify ({damage[0].text})"
        except LedgerError as error:
            unknown = f"the present ledger cannot be read ({error})"
    else:
        unknown = "there is no present ledger to compare with"
    keys = LedgerKeys.of(public_key, [*before, *witnesses])
    for entry in witnesses:
        if entry.statement not in statements and entry.signed_by(keys):
            forgotten[entry.statement] = entry
    if not forgotten and not unknown:
        return None
    return Loss(
        runs=tuple(entry.payload["run"] for entry in forgotten.values() if entry.kind == Kind.RUN_OPENED),
        entries=tuple(entry.hash for entry in forgotten.values()),
        unknown=unknown,
    )


def write_backup(database: Database, destination: Path) -> None:
    """Copies a live ledger to a new file, complete or not at all.

    Raises:
        LedgerUnavailable: the file exists, or cannot be written.
    """
    with new_file(destination) as draft:
        database.backup(draft)


def _must_verify(location: LedgerLocation, public_key: bytes, accounting: Accounting) -> None:
    report = verify_file(location, public_key=public_key, accounting=accounting)
    if not report.ok:
        raise LedgerCorrupt(f"{location} does not verify: {report.findings[0].text}")


def _entries(location: LedgerLocation) -> list[SignedEntry]:
    with location.reading() as session:
        return list(read_entries(session))


def _append(
    new: Session,
    into: LedgerLocation,
    payload: dict[str, Any],
    *,
    by: Operator | None,
    key: SigningKey,
    clock: Clock | None,
) -> SignedEntry:
    acted = (by or Operator("")).acting(new, Kind.RESTORED, {**payload, "place": into.place(new)}, None)
    return append_entry(new, Kind.RESTORED, acted, key=key, clock=clock or into.clock(new))


def restored(loss: Loss | None, accept_loss: str | None, reason: str | None = None) -> dict[str, Any]:
    """What an entry states of a ledger that was put into its place, beside the place."""
    return {
        "accepted": None if loss is None or accept_loss is None else accept_loss.strip(),
        "forgotten_entries": 0 if loss is None else len(loss.entries),
        "forgotten": [] if loss is None else list(loss.entries[:_LISTED]),
        "forgotten_runs": [] if loss is None else list(loss.runs[:_LISTED]),
        "unknown": "" if loss is None else loss.unknown,
        "reason": reason,
    }
