"""The ledger's tables in PostgreSQL, and how an audit sees that they are as the ledger made them.

The same tables as in a file (`private_curator.ledger.schema` explains each), and one of a single row: ``ledger``,
whose lock every writer takes before it looks at anything else, and which tells the version.
"""

from __future__ import annotations

from private_curator.ledger.database import Session
from shared.errors import LedgerCorrupt

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE ledger (
        singleton BOOLEAN PRIMARY KEY CHECK (singleton),
        version   INTEGER NOT NULL
    );

    CREATE TABLE entries (
        seq       BIGINT PRIMARY KEY CHECK (seq > 0),
        kind      TEXT NOT NULL,
        statement BYTEA NOT NULL,
        signature BYTEA NOT NULL CHECK (octet_length(signature) = 64)
    );

    CREATE INDEX entries_beside_steps ON entries (seq) WHERE kind NOT IN
        ('step-consumed', 'step-resumed', 'step-answered');

    CREATE FUNCTION follow_the_last_entry() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE last BIGINT;
    BEGIN
        EXECUTE format('SELECT coalesce(max(seq), 0) FROM %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME) INTO last;
        IF NEW.seq <> last + 1 THEN RAISE EXCEPTION 'an entry follows the last one'; END IF;
        RETURN NEW;
    END $$;

    CREATE FUNCTION refuse_to_change_entries() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'entries are append-only'; END $$;

    CREATE TRIGGER entries_follow_each_other BEFORE INSERT ON entries
    FOR EACH ROW EXECUTE FUNCTION follow_the_last_entry();

    CREATE TRIGGER entries_are_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_change_entries();

    CREATE TABLE runs (
        run_id     TEXT PRIMARY KEY,
        client     TEXT NOT NULL,
        request_id TEXT NOT NULL,
        digest     TEXT NOT NULL,
        event      TEXT NOT NULL,
        parameters BYTEA NOT NULL,
        steps      BIGINT NOT NULL CHECK (steps > 0),
        steps_used BIGINT NOT NULL CHECK (steps_used BETWEEN 0 AND steps),
        pruned     INTEGER NOT NULL CHECK (pruned IN (0, 1)),
        seq        BIGINT NOT NULL UNIQUE REFERENCES entries (seq)
    );

    CREATE TABLE requests (
        client     TEXT NOT NULL,
        request_id TEXT NOT NULL,
        digest     TEXT NOT NULL,
        run_id     TEXT NOT NULL REFERENCES runs (run_id),
        step       BIGINT NOT NULL CHECK (step >= 0),
        attempts   BIGINT NOT NULL CHECK (attempts >= 0),
        seq        BIGINT NOT NULL UNIQUE REFERENCES entries (seq),
        PRIMARY KEY (client, request_id),
        UNIQUE (run_id, step)
    );

    CREATE TABLE replies (
        run_id TEXT NOT NULL,
        step   BIGINT NOT NULL CHECK (step > 0),
        seq    BIGINT NOT NULL UNIQUE REFERENCES entries (seq),
        reply  BYTEA,
        audit  TEXT NOT NULL,
        PRIMARY KEY (run_id, step),
        FOREIGN KEY (run_id, step) REFERENCES requests (run_id, step)
    );
    """,
)

# What the catalogue says of everything in one schema: (what it is, its definition). A trigger that is switched off
# and a table that is not logged are other tables than the ledger's.
_LAYOUT = """
    WITH things AS (SELECT oid AS thing, relname, relkind, relpersistence, relrowsecurity, relhasrules, relhassubclass
                      FROM pg_class WHERE relnamespace = to_regnamespace(?))
    SELECT 'relation ' || relname,
           concat_ws(' ', relkind, relpersistence, relrowsecurity, relhasrules, relhassubclass)
      FROM things
    UNION ALL
    SELECT 'column ' || relname || '.' || attname,
           concat_ws(' ', format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid))
      FROM pg_attribute JOIN things ON thing = attrelid
      LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
     WHERE attnum > 0 AND NOT attisdropped AND relkind <> 'i'
    UNION ALL
    SELECT 'constraint ' || conname, concat_ws(' ', pg_get_constraintdef(pg_constraint.oid), convalidated)
      FROM pg_constraint JOIN things ON thing = conrelid
    UNION ALL
    SELECT 'index ' || relname, concat_ws(' ', pg_get_indexdef(indexrelid), indisvalid, indisunique)
      FROM pg_index JOIN things ON thing = indexrelid
    UNION ALL
    SELECT 'trigger ' || tgname, concat_ws(' ', pg_get_triggerdef(pg_trigger.oid), tgenabled)
      FROM pg_trigger JOIN things ON thing = tgrelid WHERE NOT tgisinternal
    UNION ALL
    SELECT 'references of ' || relname, string_agg(tgenabled::text, '' ORDER BY tgenabled)
      FROM pg_trigger JOIN things ON thing = tgrelid WHERE tgisinternal GROUP BY relname
    UNION ALL
    SELECT 'function ' || proname, prosrc FROM pg_proc WHERE pronamespace = to_regnamespace(?)
"""


def migrate(session: Session, *, empty: bool = False) -> None:
    """Brings the tables of the session's schema to the newest version, inside the caller's transaction.

    Args:
        session: its search path is the schema.
        empty: whether the schema holds nothing yet.
    """
    version = 0 if empty else version_of(session)
    for migration in MIGRATIONS[version:]:
        session.execute(migration)
    if version < len(MIGRATIONS):
        session.execute("DELETE FROM ledger")
        session.execute("INSERT INTO ledger (singleton, version) VALUES (true, ?)", (len(MIGRATIONS),))


def version_of(session: Session) -> int:
    """The version of the tables in the session's schema.

    Raises:
        LedgerCorrupt: they are no ledger's, or a newer program's.
    """
    (table,) = session.execute("SELECT to_regclass('ledger')").fetchone()
    row = None if table is None else session.execute("SELECT version FROM ledger").fetchone()
    if row is None:
        raise LedgerCorrupt("the schema holds tables, but no ledger: choose another schema, or restore a backup")
    if row[0] > len(MIGRATIONS):
        raise LedgerCorrupt(
            f"the ledger has schema {row[0]}, this program knows up to {len(MIGRATIONS)}: use the newer program"
        )
    return int(row[0])


def layout(session: Session, schema: str) -> dict[str, str]:
    """The definition of everything in a schema, by name, without the schema's own name."""
    rows = session.execute(_LAYOUT, (schema, schema)).fetchall()
    return {name: " ".join(definition.replace(f"{schema}.", "").split()) for name, definition in rows}
