"""Where the ledger's last entry is told besides the curator's own note: a file, a program.

Each is a receipt that `ledger verify --receipts` and `ledger restore --receipts` hold the ledger against. A place that
cannot be told stops nothing; the log says so.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpswd.shared.core.ledger.receipts import SignedEntry

_COMMAND_S = 30.0  # that a program may take for one entry
_log = logging.getLogger(__name__)


@dataclass
class Heads:
    """Tells heads in a thread of its own; of several that wait, the newest counts.

    Attributes:
        file: to append a line to.
        command: a program and its arguments.
    """

    file: Path | None = None
    command: Sequence[str] | None = None
    _newest: SignedEntry | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def tell(self, entry: SignedEntry) -> None:
        """Lets an entry be told soon; returns at once."""
        if self.file is None and not self.command:
            return
        with self._changed:
            self._newest = entry
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heads", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Waits until what was let be told has been told. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._closed)
                entry, self._newest = self._newest, None
            if entry is None:
                return
            for publish in (self._append, self._run_command):
                try:
                    publish(entry.to_json())
                except (OSError, subprocess.SubprocessError) as error:
                    _log.warning("entry %d of the ledger could not be told: %s", entry.seq, type(error).__qualname__)

    def _append(self, line: str) -> None:
        if self.file is None:
            return
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "a", encoding="ascii") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    def _run_command(self, line: str) -> None:
        if self.command:
            data = f"{line}\n".encode("ascii")
            # The operator's own program.
            subprocess.run(self.command, input=data, check=True, timeout=_COMMAND_S, stdout=subprocess.DEVNULL)  # noqa: S603
