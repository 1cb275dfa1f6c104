"""The ledger's tables in a file of SQLite, and how an audit sees that they are as the ledger made them."""

from __future__ import annotations

from dpswd.private_curator.core.ledger import schema
from dpswd.private_curator.core.ledger.database import Session
from dpswd.shared.core.errors import LedgerCorrupt

_TRIGGERS = (
    """
    CREATE TRIGGER entries_follow_each_other BEFORE INSERT ON entries
    WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM entries)
    BEGIN SELECT RAISE(ABORT, 'an entry follows the last one'); END
    """,
    """
    CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END
    """,
    """
    CREATE TRIGGER entries_are_never_deleted BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END
    """,
)


def make(session: Session) -> None:
    """Makes the empty tables in an empty file, inside the caller's transaction."""
    schema.make_tables(session, integer="INTEGER", binary="BLOB", strict="STRICT")
    for trigger in _TRIGGERS:
        session.execute(trigger)
    session.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    session.execute(f"PRAGMA user_version = {schema.VERSION}")


def check(session: Session) -> None:
    """Looks whether the file holds a ledger of this program's version.

    Raises:
        LedgerCorrupt: it does not.
    """
    (application,) = session.execute("PRAGMA application_id").fetchone()
    if application != schema.APPLICATION_ID:
        raise LedgerCorrupt("the file is a database, but not a ledger")
    (version,) = session.execute("PRAGMA user_version").fetchone()
    schema.check_version(version)


def layout(session: Session) -> dict[str, str]:
    """The text of every table, index and trigger: an audit compares it with a fresh ledger's."""
    rows = session.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {f"{kind} {name}": " ".join(sql.split()) for kind, name, sql in rows}
