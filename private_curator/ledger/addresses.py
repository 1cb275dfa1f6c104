"""From what an operator writes to where a ledger stands."""

from __future__ import annotations

from pathlib import Path

from private_curator.ledger.database import Place
from private_curator.ledger.sqlite_file import SqliteFile

POSTGRES_SCHEMES = ("postgresql://", "postgres://")


def as_place(where: Place | Path | str) -> Place:
    """A path is a file of SQLite; a text that begins with ``postgresql://`` is a schema of PostgreSQL.

    Raises:
        SettingsError: the URL is malformed, or psycopg is not installed.
    """
    if isinstance(where, str) and where.startswith(POSTGRES_SCHEMES):
        from private_curator.ledger.postgres_schema import PostgresSchema  # who keeps a file needs no psycopg

        return PostgresSchema(where)
    if isinstance(where, str | Path):
        return SqliteFile(Path(where))
    return where
