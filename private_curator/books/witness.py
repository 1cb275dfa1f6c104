"""What a curator remembers of its ledger outside of it: the last entry that it has seen.

Whoever puts a database back to an older state, from its own backups and past `restore`, makes the ledger forget
charges, and nothing inside the ledger can show that. A receipt can: so a curator keeps one, in a file of its own, best
on another volume, and does not serve a ledger that lacks it, or one with charges whose note is gone. A snapshot of both
together shows in the receipts of the clients, who present their newest when they connect, and in the heads that were
told elsewhere (`heads.py`).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
import threading
from pathlib import Path

from dpswd.private_curator.core.ledger.database import Session, by_seq
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.shared.core.errors import InvalidValue, LedgerCorrupt
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.files import create_private

_log = logging.getLogger(__name__)


class Witness:
    """A file with one signed entry.

    Args:
        path: the file; made with the first entry. It need not survive a loss of power: an older entry is a receipt too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        self._newest = 0
        self._before = self.entry()  # what is noted while the ledger is read, that view of it need not hold
        self.noted: SignedEntry | None = None
        """The newest entry that this process has noted, whether the file took it or not."""

    def note(self, entry: SignedEntry) -> None:
        """Keeps a newer entry instead; a disk that does not take it does not stop the ledger."""
        draft = self.path.with_name(f"{self.path.name}.draft-{secrets.token_hex(4)}")
        with self._mutex:
            if entry.seq <= self._newest:
                return  # another thread was faster
            self.noted = entry
            try:
                with create_private(draft) as file:
                    file.write(entry.to_json().encode("ascii"))
                draft.replace(self.path)
                self._newest = entry.seq
            except OSError as error:
                _log.warning("the last entry could not be noted in %s: %s", self.path, error.strerror)
                with contextlib.suppress(OSError):
                    draft.unlink(missing_ok=True)

    def entry(self) -> SignedEntry | None:
        """What was noted; None where nothing was, or a loss of power left the file in pieces."""
        try:
            return SignedEntry.from_json(self.path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        except (OSError, InvalidValue, UnicodeDecodeError) as error:
            _log.warning("%s cannot be read and is not used: %s", self.path, type(error).__name__)
            return None

    def check(self, session: Session, location: object) -> None:
        """Holds the ledger to what was noted.

        Raises:
            LedgerCorrupt: it lacks the noted entry, or holds charges while nothing intact is noted, and the operator
                has not accepted that in writing.
        """
        noted, now = self._before, self.entry()
        if now is not None and now != noted:  # another program on this ledger has noted what it wrote meanwhile
            self.noted, self._newest = now, now.seq
        if noted is None:
            if session.execute(_CHARGED, (Kind.RUN_OPENED.value,)).fetchone() is not None:
                raise LedgerCorrupt(
                    f"{location} holds charges, but {self.path}, where its last entry was noted, is missing or "
                    "damaged: a snapshot of an older state would look like this, and what was spent since then would "
                    f"be spent again. {_REMEDY}"
                )
            return
        if lacks(session, noted):
            raise LedgerCorrupt(
                f"{location} lacks entry {noted.seq}, which {self.path} proves: the database was put back to an older "
                f"state, and what was spent since then would be spent again. {_REMEDY}"
            )

    def keep(self, receipt: SignedEntry) -> None:
        """Notes a receipt of somebody else's that the ledger lacks, for good: the ledger is not opened again."""
        self._newest = 0
        self.note(receipt)
        self._newest = sys.maxsize


_REMEDY = (
    "Restore a newer backup with `dpswd-curator ledger restore`; where there is none, ask the clients for their "
    "receipts (receipts.jsonl), and accept this state in writing with "
    "`dpswd-curator ledger restore --as-it-is --reason ...`"
)


def lacks(session: Session, receipt: SignedEntry) -> bool:
    """Whether an entry that this ledger's key signed is missing, and was not accepted as forgotten.

    Whoever accepted a state in writing accepted that all is forgotten which was written before and is not there.
    """
    row = session.execute("SELECT statement FROM entries WHERE seq = ?", (receipt.seq,)).fetchone()
    if row is not None and row[0] == receipt.statement:
        return False
    for _, statement, signature in by_seq(session, _ACCEPTED):
        entry = SignedEntry.parse(statement, signature)
        if entry.kind == Kind.COPIES_COUNTED:  # charged, and no more than these
            if receipt.hash in entry.payload["receipts"]:
                return False
            continue
        if entry.kind == Kind.RESTORED:
            if receipt.hash in entry.payload["forgotten"]:
                return False
            if entry.payload["accepted"] is None:  # nothing was known to be lost
                continue
        if receipt.time <= entry.time:
            return False
    return True


_CHARGED = "SELECT 1 FROM entries WHERE kind = ? LIMIT 1"
_ACCEPTED = (
    "SELECT seq, statement, signature FROM (SELECT * FROM entries WHERE kind IN "  # noqa: S608 constants
    f"('{Kind.RESTORED}', '{Kind.STATE_ACCEPTED}', '{Kind.COPIES_COUNTED}')) AS accepted"
)
