"""Signatures of many entries, checked in processes of their own: one takes longer than all else that is checked of it.

``python -m dpswd.private_curator.keys.checking`` is such a process. It reads entries from its standard input, each
as its number, its key, the lengths of statement and signature, and their bytes, and prints the numbers of those that
their key has not signed. Pipes and nothing else: it works where a container has neither a place for temporary files nor
shared memory.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from typing import BinaryIO

from dpswd.shared.core.errors import LedgerUnavailable
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.ledger.receipts import Signed, is_signed

ENTRIES_FOR_A_PROCESS = 20_000
"""A process takes as long to start as to check some thousand signatures."""
_HEAD = struct.Struct(">q32sII")
_PART = 500  # entries that go to a process at a time


class SignatureCheck:
    """Checks each signature. A context manager.

    Args:
        keys: the ledger's.
        processes: that share the work; with fewer than two it is done here.
    """

    def __init__(self, keys: LedgerKeys, *, processes: int) -> None:
        self._keys = keys
        self._wrong: list[int] = []
        self._taken = 0
        # The same code as here, whatever lies in the directory from which an operator verifies.
        program = [sys.executable, "-P", "-m", "dpswd.private_curator.keys.checking"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._processes = [
            subprocess.Popen(  # noqa: S603 our own program
                program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            for _ in range(processes if processes > 1 else 0)
        ]

    def take(self, seq: int, statement: bytes, signature: bytes) -> None:
        """Lets an entry's signature be checked.

        Raises:
            LedgerUnavailable: a process that checks them has ended.
        """
        key = self._keys.at(seq)
        if not self._processes:
            if not is_signed(Signed.ENTRY, statement, signature, key):
                self._wrong.append(seq)
            return
        process = self._processes[self._taken // _PART % len(self._processes)]
        self._taken += 1
        assert process.stdin is not None
        try:
            process.stdin.write(_HEAD.pack(seq, key, len(statement), len(signature)) + statement + signature)
        except BrokenPipeError as error:
            raise _ended() from error

    def wrong(self) -> list[int]:
        """The numbers of the entries that the key has not signed.

        Raises:
            LedgerUnavailable: a process that checks them has ended.
        """
        outputs = [process.communicate()[0] for process in self._processes]
        if any(process.returncode for process in self._processes):
            raise _ended()
        return sorted([*self._wrong, *(int(number) for numbers in outputs for number in numbers.split())])

    def __enter__(self) -> SignatureCheck:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def processes_for(entries: int) -> int:
    """How many processes check so many signatures on this machine."""
    return min(len(os.sched_getaffinity(0)), entries // ENTRIES_FOR_A_PROCESS)


def check_stream(stream: BinaryIO) -> list[int]:
    """What such a process does until its input ends."""
    wrong = []
    while head := stream.read(_HEAD.size):
        seq, key, statement_bytes, signature_bytes = _HEAD.unpack(head)
        statement, signature = stream.read(statement_bytes), stream.read(signature_bytes)
        if not is_signed(Signed.ENTRY, statement, signature, key):
            wrong.append(seq)
    return wrong


def _ended() -> LedgerUnavailable:
    return LedgerUnavailable("a process that checks the ledger's signatures has ended; verify again")


if __name__ == "__main__":
    sys.stdout.write("\n".join(map(str, check_stream(sys.stdin.buffer))))
