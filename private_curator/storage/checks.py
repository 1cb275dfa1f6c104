"""When the ledger was last verified and last backed up: a note for the operator, which nothing rests on."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dpswd.shared.files import write_private


@dataclass(frozen=True, kw_only=True)
class Check:
    """One look after the ledger.

    Attributes:
        time: UTC, ISO 8601.
        ok: how it ended.
        entries: how long the ledger was.
        by: who did it.
        text: the first finding, or where the copy went.
    """

    time: str
    ok: bool
    entries: int
    by: str
    text: str


class CheckNotes:
    """The last check of each kind, in a file.

    Args:
        path: the file; made with the first note.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, kind: str, *, ok: bool, entries: int, by: str, text: str = "") -> None:
        """Keeps a check in the place of the last one of its kind; a home that cannot be written to keeps none."""
        time = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        notes = self.all() | {kind: Check(time=time, ok=ok, entries=entries, by=by, text=text)}
        with contextlib.suppress(OSError):
            write_private(self._path, json.dumps({name: asdict(check) for name, check in notes.items()}).encode())

    def all(self) -> dict[str, Check]:
        """The last check of each kind; none where the file is missing or damaged."""
        try:
            checks = json.loads(self._path.read_text(encoding="utf-8"))
            return {kind: Check(**check) for kind, check in checks.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
