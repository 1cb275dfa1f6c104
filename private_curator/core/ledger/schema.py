"""The ledger's tables, in one text for SQLite and PostgreSQL.

``entries`` is the ledger: append-only, and the only truth. The other tables are derived from it, so that a request
is answered without reading the whole chain; `dpswd.private_curator.books.audit` derives them anew and compares. Two
columns hold bytes of which an entry holds only the digest: ``runs.parameters`` and ``replies.reply``. The first column
of every table is the entry that made the row.
"""

from __future__ import annotations

from dpswd.private_curator.core.ledger.database import Session
from dpswd.shared.core.errors import LedgerCorrupt

VERSION = 1

# "dpsw" in ASCII: lets `file` and SQLite tell a ledger from another database.
APPLICATION_ID = 0x64707377

_TABLES = (
    """
    CREATE TABLE entries (
        seq       {integer} PRIMARY KEY CHECK (seq > 0),
        kind      TEXT NOT NULL,
        statement {bytes} NOT NULL,
        signature {bytes} NOT NULL CHECK (length(signature) = 64)
    ) {strict}
    """,
    # Steps are nearly all entries; what changes budgets and clients is found without reading them.
    """
    CREATE INDEX entries_beside_steps ON entries (seq) WHERE kind NOT IN
        ('step-consumed', 'step-resumed', 'step-answered')
    """,
    # What else is known of a run stands in its entry.
    """
    CREATE TABLE runs (
        seq        {integer} NOT NULL UNIQUE REFERENCES entries (seq),
        run_id     TEXT PRIMARY KEY,
        parameters {bytes} NOT NULL,
        steps      {integer} NOT NULL CHECK (steps > 0),
        steps_used {integer} NOT NULL CHECK (steps_used BETWEEN 0 AND steps),
        pruned     {integer} NOT NULL CHECK (pruned IN (0, 1))
    ) {strict}
    """,
    # Every request id that a client ever used; step 0 is the opening of the run.
    """
    CREATE TABLE requests (
        seq        {integer} NOT NULL UNIQUE REFERENCES entries (seq),
        client     TEXT NOT NULL,
        request_id TEXT NOT NULL,
        digest     TEXT NOT NULL,
        run_id     TEXT NOT NULL REFERENCES runs (run_id),
        step       {integer} NOT NULL CHECK (step >= 0),
        attempts   {integer} NOT NULL CHECK (attempts >= 0),
        PRIMARY KEY (client, request_id),
        UNIQUE (run_id, step)
    ) {strict}
    """,
    # A reply is NULL once the operator has pruned the run's replies.
    """
    CREATE TABLE replies (
        seq    {integer} NOT NULL UNIQUE REFERENCES entries (seq),
        run_id TEXT NOT NULL,
        step   {integer} NOT NULL CHECK (step > 0),
        reply  {bytes},
        audit  TEXT NOT NULL,
        PRIMARY KEY (run_id, step),
        FOREIGN KEY (run_id, step) REFERENCES requests (run_id, step)
    ) {strict}
    """,
)


def make_tables(session: Session, *, integer: str, binary: str, strict: str = "") -> None:
    """Makes the empty tables, inside the caller's transaction, with the database's own words for its types."""
    for statement in _TABLES:
        session.execute(statement.format(integer=integer, bytes=binary, strict=strict))


def check_version(version: int) -> None:
    """Refuses the tables of another program.

    Raises:
        LedgerCorrupt: they are another version's.
    """
    if version != VERSION:
        use = "newer" if version > VERSION else "older"
        raise LedgerCorrupt(f"the ledger has schema {version}, this program knows {VERSION}: use the {use} program")
