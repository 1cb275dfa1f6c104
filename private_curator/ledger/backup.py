"""Restoring a backup without forgetting what was spent.

A ledger that is older than its data set's last charge would allow the same budget to be spent again: that is the one
way in which a careful operator can break the promise by accident. So a restore compares the backup with everything it
can find, the present file and any receipts, and refuses when an entry would be forgotten, or when nobody can tell,
unless the operator accepts the loss in writing. The text becomes an entry of the restored ledger.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from private_curator.ledger.accounting import Accounting
from private_curator.ledger.audit import reading, verify_file
from private_curator.ledger.budget import Books
from private_curator.ledger.database import Database, file_lock, serving_lock, sync
from private_curator.ledger.kinds import Kind
from private_curator.ledger.store import Transaction, no_checkpoint, read_entries, utc_now
from shared.errors import InvalidValue, LedgerCorrupt, LedgerError, LedgerUnavailable, RestoreRefused
from shared.receipts import SignedEntry, check_chain

# Short enough for a sentence, too long for a "yes".
MIN_ACCEPTANCE_LENGTH = 30
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
        known = f"{len(self.entries)} entries would be forgotten, among them the charges of {len(self.runs)} runs"
        return known + (f"; more may be: {self.unknown}" if self.unknown else "")


def restore(
    backup: Path,
    into: Path,
    *,
    key: Ed25519PrivateKey,
    accounting: Accounting,
    receipts: Iterable[SignedEntry] = (),
    accept_loss: str | None = None,
    clock: Callable[[], datetime] = utc_now,
) -> Loss | None:
    """Puts a backup in the place of a ledger. The replaced file stays beside it, under another name.

    Args:
        backup: made by `Ledger.backup`; it is read only.
        into: the ledger's path, with or without a ledger.
        key: the ledger's own key.
        accounting: prices the runs anew while the backup is verified.
        receipts: signed entries that clients or the operator kept.
        accept_loss: a sentence that accepts what is forgotten; at least `MIN_ACCEPTANCE_LENGTH` characters.
        clock: tells the time that the new entry states.

    Returns:
        What was forgotten; None when nothing was.

    Raises:
        RestoreRefused: something would be forgotten and ``accept_loss`` is missing.
        LedgerCorrupt: the backup does not verify.
        LedgerUnavailable: a curator serves the ledger now, or the disk does not allow it.
        InvalidValue: the acceptance is too short to be one.
    """
    backup, into = Path(backup), Path(into)
    if accept_loss is not None and len(accept_loss.strip()) < MIN_ACCEPTANCE_LENGTH:
        raise InvalidValue(f"accepting a loss takes a sentence of at least {MIN_ACCEPTANCE_LENGTH} characters")
    try:
        with file_lock(serving_lock(into), timeout_s=0.0, held_by="a curator serves this ledger, stop it first: it"):
            report = verify_file(backup, public_key=key.public_key().public_bytes_raw(), accounting=accounting)
            if not report.ok:
                raise LedgerCorrupt(f"the backup {backup} does not verify: {report.findings[0].text}")
            loss = compare(backup, into, receipts=receipts, public_key=key.public_key().public_bytes_raw())
            if loss is not None and accept_loss is None:
                raise RestoreRefused(f"restoring {backup} is refused: {loss}; stop, or accept the loss in writing")
            draft = into.with_name(f"{into.name}.restoring-{os.getpid()}")
            try:
                shutil.copyfile(backup, draft)
                draft.chmod(0o600)
                _log(draft, loss, accept_loss, key=key, accounting=accounting, clock=clock)
                _replace(draft, into)
            finally:
                for suffix in ("", "-wal", "-shm", ".lock"):
                    draft.with_name(draft.name + suffix).unlink(missing_ok=True)
            return loss
    except OSError as error:
        raise LedgerUnavailable(f"the backup could not be restored: {error}") from error


def compare(backup: Path, present: Path, *, receipts: Iterable[SignedEntry], public_key: bytes) -> Loss | None:
    """What putting ``backup`` in the place of ``present`` would forget; None when nothing.

    Raises:
        LedgerCorrupt, LedgerUnavailable: the backup cannot be read.
    """
    statements = {entry.statement for entry in _entries(backup)}
    witnesses = list(receipts)
    forgotten: dict[bytes, SignedEntry] = {}
    unknown = ""
    if present.exists():
        try:
            standing = _entries(present)
            witnesses += standing
            damage = check_chain(standing, public_key)
            if damage:
                unknown = f"the present ledger does not verify ({damage[0].text})"
        except LedgerError as error:
            unknown = f"the present ledger cannot be read ({error})"
    else:
        unknown = "there is no present ledger to compare with"
    for entry in witnesses:
        if entry.statement not in statements and entry.signed_by(public_key):
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
    draft = destination.with_name(f"{destination.name}.draft-{os.getpid()}")
    try:
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            database.backup(draft)
            os.link(draft, destination)
            sync(destination.parent)
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError as error:
        raise LedgerUnavailable(f"{destination} exists already; a backup never replaces a file") from error
    except OSError as error:
        raise LedgerUnavailable(f"the backup {destination} cannot be written: {error.strerror}") from error


def _entries(path: Path) -> list[SignedEntry]:
    with reading(path) as connection:
        return list(read_entries(connection))


def _log(
    draft: Path,
    loss: Loss | None,
    accept_loss: str | None,
    *,
    key: Ed25519PrivateKey,
    accounting: Accounting,
    clock: Callable[[], datetime],
) -> None:
    """The restored ledger's first new entry says that it was restored, and what that forgot."""
    payload = {
        "accepted": None if loss is None or accept_loss is None else accept_loss.strip(),
        "forgotten_entries": 0 if loss is None else len(loss.entries),
        "forgotten": [] if loss is None else list(loss.entries[:_LISTED]),
        "forgotten_runs": [] if loss is None else list(loss.runs[:_LISTED]),
        "unknown": "" if loss is None else loss.unknown,
    }
    database = Database(draft)
    try:
        with database.write() as connection:
            Transaction(
                connection, Books(accounting), key=key, clock=clock, checkpoint=no_checkpoint, operation="restore"
            ).append(Kind.RESTORED, payload)
    finally:
        database.close()
    sync(draft)


def _replace(draft: Path, into: Path) -> None:
    """Swaps the files; whatever happens in between, a complete ledger stands at ``into`` or none."""
    if into.exists():
        # Folds the log into the file, so that it is whole by itself; what cannot be opened is kept byte for byte.
        with contextlib.suppress(LedgerError):
            Database(into).close()
        number = 1
        while (replaced := into.with_name(f"{into.name}.replaced-{number}")).exists():
            number += 1
        os.link(into, replaced)
        for suffix in ("-wal", "-shm"):
            rest = into.with_name(into.name + suffix)
            if rest.exists():
                rest.rename(replaced.with_name(replaced.name + suffix))
    draft.replace(into)
    sync(into.parent)
