"""Receipts on the client's disk: one signed ledger entry a line, as the curator issued them.

A receipt is the client's proof, offline, of what was charged and answered. `shared.receipts.read_export` reads the
file and `verify_receipts` holds it against an export of the ledger.
"""

from __future__ import annotations

import os
from pathlib import Path

from shared.errors import ProtocolError
from shared.protocol.v1 import curator_pb2 as pb
from shared.receipts import Receipt, SignedEntry


def checked_receipt(
    message: pb.Receipt, *, public_key: bytes, run_id: str, request_id: str, reply: bytes, step: int
) -> SignedEntry:
    """The signed entry that came with a reply, once it is proved to speak of that reply.

    Raises:
        ProtocolError: it is signed by another key, or states another run, request, step or reply.
    """
    receipt = Receipt.parse(message.statement, message.signature)
    problems = receipt.problems(public_key=public_key, run_id=run_id, request_id=request_id, reply=reply, step=step)
    if problems:
        raise ProtocolError(
            f"the receipt of step {step} does not hold: {'; '.join(problems)}; keep the receipts and tell the operator"
        )
    return receipt.entry


class ReceiptFile:
    """Receipts of one run directory, appended and never rewritten.

    Args:
        path: the file; made, with its directory, at the first receipt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: str | None = None

    def append(self, entry: SignedEntry) -> None:
        """Stores a receipt durably; a repeat of the last one (a resumed step) is left out."""
        line = entry.to_json()
        if self._last is None and self.path.exists():
            self._last = _last_line(self.path)
        if line == self._last:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="ascii") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._last = line


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="ascii").splitlines()
    return lines[-1] if lines else ""
