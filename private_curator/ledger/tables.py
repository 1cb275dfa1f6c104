"""A ledger's rows from one database to another: how PostgreSQL is backed up, and how a backup comes into it."""

from __future__ import annotations

from private_curator.ledger.database import Session, by_seq

# In the order in which rows refer to each other; the first column is the row's entry.
COLUMNS: dict[str, tuple[str, ...]] = {
    "entries": ("seq", "kind", "statement", "signature"),
    "runs": (
        "seq",
        "run_id",
        "client",
        "request_id",
        "digest",
        "event",
        "parameters",
        "steps",
        "steps_used",
        "pruned",
    ),
    "requests": ("seq", "client", "request_id", "digest", "run_id", "step", "attempts"),
    "replies": ("seq", "run_id", "step", "reply", "audit"),
}


def copy_tables(source: Session, target: Session) -> None:
    """Writes every row of one ledger into the empty tables of another."""
    for table, columns in COLUMNS.items():
        names, marks = ", ".join(columns), ", ".join("?" for _ in columns)
        for row in by_seq(source, f"SELECT {names} FROM {table}"):  # noqa: S608 constants
            target.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)  # noqa: S608 constants
