"""Receipts on the client's disk: one signed ledger entry a line, as the curator issued them.

A receipt is the client's proof, offline, of what was charged and answered. Each is checked against the request and the
reply when it arrives; `dpswd.public_client.curator.verify` holds the files against an export of the ledger later.

A directory with receipts also holds ``ledger.pub``, the curator's ledger key as it was pinned: the key that came with
the credentials, or the one that the curator told first. Another key later is refused.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from dpswd.shared.books.chain_checks import read_export
from dpswd.shared.core.errors import InvalidValue, ProtocolError, SettingsError
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.files import write_public
from dpswd.shared.protocol.receipts import decode_receipt, receipt_problems

RECEIPTS_FILE = "receipts.jsonl"
LEDGER_KEY_FILE = "ledger.pub"


def checked_receipt(message: pb.Receipt, *, run_id: str, request_id: str, step: int, **stated: Any) -> SignedEntry:
    """The signed entry that came with a reply, once it is proved to speak of that reply to that request.

    Args:
        message: the receipt as it came.
        run_id: of the request.
        request_id: of the request.
        step: number of the step; 0 for the run's opening.
        **stated: the rest of what `Receipt.problems` holds a receipt against.

    Raises:
        ProtocolError: it is signed by another key, or states another run, request, step or reply. One that came with
            another request is unpacked with this one's ids, so that it shows as one that the key did not sign.
    """
    try:
        receipt = decode_receipt(message, run_id=run_id, request_id=request_id)
    except ValueError as error:
        raise ProtocolError(f"the curator's answer carries no receipt: {error}; tell the operator") from error
    if problems := receipt_problems(receipt, run_id=run_id, request_id=request_id, step=step, **stated):
        what = f"step {step}" if step else "the run's opening"
        raise ProtocolError(
            f"the receipt of {what} does not hold: {'; '.join(problems)}; keep the receipts and tell the operator"
        )
    return receipt.entry


class ReceiptFile:
    """Receipts of one run directory, appended and never rewritten. Safe for the threads of one process.

    Args:
        path: the file; made, with its directory, at the first receipt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._lines: set[str] | None = None

    def append(self, entry: SignedEntry) -> None:
        """Stores a receipt durably; one that is there already (a repeated request) is left out."""
        line = entry.to_json()
        with self._lock:
            if self._lines is None:
                self._lines = set(_lines(self.path))
            if line in self._lines:
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="ascii") as file:
                # A line that a crash cut short must not swallow this one.
                file.write(line + "\n" if _ends_a_line(self.path) else "\n" + line + "\n")
                file.flush()
                os.fsync(file.fileno())
            self._lines.add(line)

    def newest(self) -> SignedEntry | None:
        """The last of the ledger's entries that is proved here; None if there is none. Damaged lines are left out."""
        entries, _ = read_export(_lines(self.path))
        return max(entries, key=lambda entry: entry.seq, default=None)

    def pin(self, keys: LedgerKeys) -> None:
        """Notes the ledger's key beside the receipts, or holds it against the one that stands there.

        Raises:
            ProtocolError: another key is pinned.
        """
        path = self.path.with_name(LEDGER_KEY_FILE)
        if path.exists():
            check_pinned(path, keys)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(keys.to_text(), encoding="ascii")


def read_pinned(path: Path) -> LedgerKeys:
    """A pinned ledger key: 64 hexadecimal digits in a file, and the changes of it that were seen since.

    Raises:
        SettingsError: the file is missing or holds no key.
    """
    try:
        return LedgerKeys.from_text(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}); it must hold the ledger's public key") from error
    except InvalidValue as error:
        raise SettingsError(
            f"{path} holds no ledger key ({error}); it must hold 64 hexadecimal digits, as the operator gave them"
        ) from error


def check_pinned(path: Path, keys: LedgerKeys) -> None:
    """Holds the key that a curator tells against a pinned one; notes beside it the changes that lead there.

    Raises:
        ProtocolError: they differ: this is another curator, or its ledger was made anew.
    """
    pinned = read_pinned(path)
    joined = pinned.joined(keys.changes)
    if joined.newest == keys.newest:
        if joined != pinned:
            write_public(path, joined.to_text().encode("ascii"))
    else:
        raise ProtocolError(
            f"the curator signs its ledger with another key ({keys.newest.hex()}) than the one pinned in {path}; if "
            "the operator confirms a new ledger, take another run directory and new credentials"
        )


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="ascii", errors="replace").splitlines() if path.exists() else []


def _ends_a_line(path: Path) -> bool:
    if not path.stat().st_size:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
