"""What a curator remembers of its ledger outside of it: the last entry that it has seen.

Whoever puts a database back to an older state, from its own backups and past `restore`, makes the ledger forget
charges, and nothing inside the ledger can show that. A receipt can: so a curator keeps one, in a file of its own,
and does not serve a ledger that lacks it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from pathlib import Path

from private_curator.ledger.database import Session, by_seq
from private_curator.ledger.statements import Kind
from shared.errors import InvalidValue, LedgerCorrupt
from shared.ledger.receipts import SignedEntry

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
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

    def note(self, entry: SignedEntry) -> None:
        """Keeps a newer entry instead; a disk that does not take it does not stop the ledger."""
        draft = self.path.with_name(f"{self.path.name}.draft-{secrets.token_hex(4)}")
        with self._mutex:
            if entry.seq <= self._newest:
                return  # another thread was faster
            try:
                descriptor = os.open(draft, _NEW, 0o600)
                with os.fdopen(descriptor, "wb") as file:
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
            LedgerCorrupt: it lacks the noted entry, and no restore has said in writing that it is forgotten.
        """
        noted = self.entry()
        if noted is None:
            return
        row = session.execute("SELECT statement FROM entries WHERE seq = ?", (noted.seq,)).fetchone()
        if row is not None and row[0] == noted.statement:
            return
        for _, statement, signature in by_seq(session, _RESTORED):
            if noted.hash in SignedEntry.parse(statement, signature).payload["forgotten"]:
                return
        raise LedgerCorrupt(
            f"{location} lacks entry {noted.seq}, which {self.path} proves: the database was put back to an older "
            "state, and what was spent since then would be spent again. Restore a newer backup with `dpswd-curator "
            "ledger restore`; where there is none, back this state up and restore it, with the loss accepted in writing"
        )


_RESTORED = f"SELECT seq, statement, signature FROM (SELECT * FROM entries WHERE kind = '{Kind.RESTORED}') AS restored"  # noqa: S608
