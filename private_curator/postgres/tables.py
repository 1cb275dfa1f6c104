"""The ledger's tables in PostgreSQL, and how an audit sees that they are as the ledger made them.

The same tables as in a file (`dpswd.private_curator.core.ledger.schema` explains each), one of a single row,
``ledger``, whose lock every writer takes before it looks at anything else, and which tells the version; and
``missing``: entries that some program has seen and that are not there. Each new entry is notified to whoever listens
to the schema's name.
"""

from __future__ import annotations

from dpswd.private_curator.core.ledger import schema
from dpswd.private_curator.core.ledger.database import Session
from dpswd.shared.core.errors import LedgerCorrupt

_BESIDE_THE_TABLES = """
    CREATE TABLE ledger (
        singleton BOOLEAN PRIMARY KEY CHECK (singleton),
        version   INTEGER NOT NULL
    );

    CREATE TABLE missing (
        seq       BIGINT NOT NULL,
        statement BYTEA NOT NULL,
        signature BYTEA PRIMARY KEY
    );

    CREATE FUNCTION follow_the_last_entry() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE last BIGINT;
    BEGIN
        EXECUTE format('SELECT coalesce(max(seq), 0) FROM %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME) INTO last;
        IF NEW.seq <> last + 1 THEN RAISE EXCEPTION 'an entry follows the last one'; END IF;
        PERFORM pg_notify(TG_TABLE_SCHEMA, '');
        RETURN NEW;
    END $$;

    CREATE FUNCTION refuse_to_change_entries() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'entries are append-only'; END $$;

    CREATE TRIGGER entries_follow_each_other BEFORE INSERT ON entries
    FOR EACH ROW EXECUTE FUNCTION follow_the_last_entry();

    CREATE TRIGGER entries_are_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_change_entries();
"""

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


def make(session: Session) -> None:
    """Makes the empty tables in the session's schema, inside the caller's transaction."""
    schema.make_tables(session, integer="BIGINT", binary="BYTEA")
    session.execute(_BESIDE_THE_TABLES)
    session.execute("INSERT INTO ledger (singleton, version) VALUES (true, ?)", (schema.VERSION,))


def check(session: Session) -> None:
    """Looks whether the session's schema holds a ledger of this program's version.

    Raises:
        LedgerCorrupt: it does not.
    """
    (table,) = session.execute("SELECT to_regclass('ledger')").fetchone()
    row = None if table is None else session.execute("SELECT version FROM ledger").fetchone()
    if row is None:
        raise LedgerCorrupt("the schema holds tables, but no ledger: choose another schema, or restore a backup")
    schema.check_version(row[0])


def layout(session: Session, name: str) -> dict[str, str]:
    """The definition of everything in a schema, by name, without the schema's own name."""
    rows = session.execute(_LAYOUT, (name, name)).fetchall()
    return {what: " ".join(definition.replace(f"{name}.", "").split()) for what, definition in rows}
