"""The ledger's tables and their migrations.

``entries`` is the ledger: append-only, and the only truth. The other tables are derived from it, so that a request
is answered without reading the whole chain; `private_curator.ledger.audit` derives them anew and compares. Two
columns hold bytes of which an entry holds only the digest: ``runs.parameters`` and ``replies.reply``.

A migration never touches ``entries``, and never changes once it was released: a new layout is a new migration.
"""

from __future__ import annotations

import sqlite3

from private_curator.ledger.database import Session
from shared.errors import LedgerCorrupt

# "dpsw" in ASCII: lets `file` and SQLite tell a ledger from another database.
APPLICATION_ID = 0x64707377

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE entries (
        seq       INTEGER PRIMARY KEY CHECK (seq > 0),
        kind      TEXT NOT NULL,
        statement BLOB NOT NULL,
        signature BLOB NOT NULL CHECK (length(signature) = 64)
    ) STRICT;

    -- Steps are nearly all entries; what changes budgets and clients is found without reading them.
    CREATE INDEX entries_beside_steps ON entries (seq) WHERE kind NOT IN
        ('step-consumed', 'step-resumed', 'step-answered');

    CREATE TRIGGER entries_follow_each_other BEFORE INSERT ON entries
    WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM entries)
    BEGIN SELECT RAISE(ABORT, 'an entry follows the last one'); END;

    CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END;

    CREATE TRIGGER entries_are_never_deleted BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END;

    CREATE TABLE runs (
        run_id     TEXT PRIMARY KEY,
        client     TEXT NOT NULL,
        request_id TEXT NOT NULL,
        digest     TEXT NOT NULL,
        event      TEXT NOT NULL,
        parameters BLOB NOT NULL,
        steps      INTEGER NOT NULL CHECK (steps > 0),
        steps_used INTEGER NOT NULL CHECK (steps_used BETWEEN 0 AND steps),
        pruned     INTEGER NOT NULL CHECK (pruned IN (0, 1)),
        seq        INTEGER NOT NULL UNIQUE REFERENCES entries (seq)
    ) STRICT;

    -- Every request id that a client ever used; step 0 is the opening of the run.
    CREATE TABLE requests (
        client     TEXT NOT NULL,
        request_id TEXT NOT NULL,
        digest     TEXT NOT NULL,
        run_id     TEXT NOT NULL REFERENCES runs (run_id),
        step       INTEGER NOT NULL CHECK (step >= 0),
        attempts   INTEGER NOT NULL CHECK (attempts >= 0),
        seq        INTEGER NOT NULL UNIQUE REFERENCES entries (seq),
        PRIMARY KEY (client, request_id),
        UNIQUE (run_id, step)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE replies (
        run_id TEXT NOT NULL,
        step   INTEGER NOT NULL CHECK (step > 0),
        seq    INTEGER NOT NULL UNIQUE REFERENCES entries (seq),
        reply  BLOB,  -- NULL once the operator has pruned the run's replies
        audit  TEXT NOT NULL,
        PRIMARY KEY (run_id, step),
        FOREIGN KEY (run_id, step) REFERENCES requests (run_id, step)
    ) STRICT;
    """,
)


def needs_migration(connection: Session) -> bool:
    """Whether the file has an older schema, or none yet.

    Raises:
        LedgerCorrupt: the file is no ledger, or was written by a newer program.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if version > len(MIGRATIONS):
        raise LedgerCorrupt(
            f"the ledger has schema {version}, this program knows up to {len(MIGRATIONS)}: use the newer program"
        )
    if version and application != APPLICATION_ID:
        raise LedgerCorrupt("the file is a database, but not a ledger")
    return bool(version < len(MIGRATIONS))


def migrate(connection: Session) -> None:
    """Brings the schema to the newest version, all or nothing, inside the caller's transaction."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for migration in MIGRATIONS[version:]:
        for statement in _statements(migration):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def layout(connection: Session) -> dict[str, str]:
    """The text of every table, index and trigger: an audit compares it with a fresh ledger's."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: " ".join(sql.split()) for name, sql in rows}


def _statements(script: str) -> list[str]:
    """Single statements of a script: ``executescript`` would commit the caller's transaction."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return [statement for statement in statements if statement.strip()]
