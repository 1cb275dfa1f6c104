"""From what an operator writes to where a ledger stands."""

from __future__ import annotations

from pathlib import Path

from private_curator.ledger.database import Place
from private_curator.ledger.sqlite_file import SqliteFile


def as_place(where: Place | Path | str) -> Place:
    """A path is a file of SQLite."""
    if isinstance(where, str | Path):
        return SqliteFile(Path(where))
    return where
