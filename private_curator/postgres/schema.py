"""Where a ledger in PostgreSQL stands: one schema of one database, how to reach it, its tables, and restoring it.

The tables are those of a file (`dpswd.private_curator.core.ledger.schema` explains each), one of a single row,
``ledger``, whose lock every writer takes before it looks at anything else, and which tells the version; and
``missing``: entries that some program has seen and that are not there. Each new entry is notified to whoever listens
to the schema's name. An audit compares what the catalogue says of them with what the ledger made.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dpswd.private_curator.books.location import Watcher, changed, copy_tables
from dpswd.private_curator.books.place import Place
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger import schema
from dpswd.private_curator.core.ledger.database import LOCK_TIMEOUT_S, Database, Session
from dpswd.private_curator.core.ledger.store import Clock
from dpswd.private_curator.postgres.database import (
    HUNG,
    LOCK_SPACE,
    BegunSession,
    Connection,
    PostgresDatabase,
    PostgresSession,
    commit,
    translate,
)
from dpswd.private_curator.postgres.watch import PostgresWatch
from dpswd.shared.core.errors import DpswdError, LedgerCorrupt, LedgerUnavailable, SettingsError
from dpswd.shared.core.ledger.receipts import SignedEntry

OLDEST_SERVER = 14
_URL_SCHEMES = ("postgresql://", "postgres://")
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,39}")

# How soon either side notices that the other one's machine is gone; the URL may say otherwise.
_CONNECTION: dict[str, object] = {
    "application_name": "dpswd-curator",
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # ms
    "target_session_attrs": "read-write",  # of several hosts, the one that is no standby
}
_SESSION: dict[str, str] = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "client_connection_check_interval": "5s",
    "statement_timeout": "60s",
    "client_encoding": "UTF8",
    "row_security": "off",  # an error instead of rows that a policy hides
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PostgresSchema:
    """A `dpswd.private_curator.books.location.LedgerLocation`.

    Attributes:
        url: ``postgresql://user@host:port/database?sslmode=verify-full&sslrootcert=...``; every parameter of libpq,
            but no password.
        schema: the ledger's own schema in that database.
        password_file: holds the password in its first line; without it PGPASSFILE and the server's rules decide.

    Raises:
        SettingsError: the URL is malformed or holds a password, or the schema's name is none.
    """

    url: str
    schema: str = "dpswd"
    password_file: Path | None = None

    def __post_init__(self) -> None:
        parameters = self._parameters()
        if "password" in parameters:
            raise SettingsError(
                "ledger.url holds a password, which settings and messages would show: take it out, and name a file in "
                "ledger.password_file or in the environment variable PGPASSFILE"
            )
        if not _SCHEMA.fullmatch(self.schema):
            raise SettingsError(
                f"ledger.schema_name is {self.schema!r}; needed are 1 to 40 lower-case letters, digits and _, a letter "
                "first"
            )

    def __str__(self) -> str:
        parameters = self._parameters()
        host = parameters.get("host") or parameters.get("hostaddr") or "the default host"
        return f"PostgreSQL at {host}, database {parameters.get('dbname', 'by default')!r}, schema {self.schema!r}"

    def exists(self) -> bool:
        """Whether the schema holds anything."""
        with self.session() as session:
            return self._occupied(session)

    def open(self, *, lock_timeout_s: float) -> PostgresDatabase:
        """See `LedgerLocation.open`."""
        with self.session() as session:
            if not self._occupied(session):
                raise LedgerUnavailable(f"there is no ledger in {self}; `dpswd-curator init` makes one")
            table = session.value("SELECT to_regclass('ledger')")
            row = None if table is None else session.execute("SELECT version FROM ledger").fetchone()
            if row is None:
                raise LedgerCorrupt("the schema holds tables, but no ledger: choose another one, or restore a backup")
            schema.check_version(row[0])
            # Of several hosts, one is to take over; what it lacks then was charged and answered all the same.
            several = "," in str(self._parameters().get("host", ""))
            if several and session.value("SELECT current_setting('synchronous_standby_names')") == "":
                _log.warning(
                    "%s: commits wait for no standby (synchronous_standby_names is empty): one that takes over may "
                    "lack the last charges, and is then not served (docs/operator/replicas.md)",
                    self,
                )
        return PostgresDatabase(self, lock_timeout_s=lock_timeout_s)

    def create(self, fill: Callable[[Session], object], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """See `LedgerLocation.create`."""
        with self.session(lock_timeout_s=lock_timeout_s) as session:
            session.execute("BEGIN")
            # One maker of this schema after the other.
            session.execute("SELECT pg_advisory_xact_lock(?, hashtext(?))", (LOCK_SPACE + 1, self.schema))
            if self._occupied(session):
                raise LedgerUnavailable(f"{self} exists already; open it, or choose another schema")
            _make(session, self.schema)
            fill(session)
            made = "the ledger may be there all the same: mend the standby, then drop this schema or choose another"
            commit(session.connection, self, spent=made)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """See `LedgerLocation.reading`."""
        with self.session() as session:
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if not self._occupied(session):
                raise LedgerUnavailable(f"there is no ledger in {self}")
            yield session

    def defects(self, session: Session) -> list[str]:
        """See `LedgerLocation.defects`. Makes the tables anew in a schema that is never committed, and compares."""
        fresh = f"dpswd_layout_{secrets.token_hex(4)}"
        with self.session() as made:
            made.execute(f"BEGIN; SET LOCAL search_path TO {fresh}")
            _make(made, fresh)
            expected = _layout_of(made, fresh)
        names = changed(expected, _layout_of(session, self.schema))
        return [f"the {name} is not as the ledger made it" for name in names]

    def place(self, session: Session) -> Place:
        """See `LedgerLocation.place`. A standby has its primary's number, a server that reads a dump has its own."""
        (number,) = session.execute("SELECT CAST(system_identifier AS TEXT) FROM pg_control_system()").fetchone()
        return {"database": number}

    def clock(self, of: Database | Session) -> Clock:
        """See `LedgerLocation.clock`."""
        if isinstance(of, PostgresDatabase):
            return of.now
        assert isinstance(of, PostgresSession)
        (now,) = of.execute("SELECT clock_timestamp()").fetchone()
        return lambda: now

    def watch(self, watcher: Watcher) -> PostgresWatch:
        """See `LedgerLocation.watch`."""
        return PostgresWatch(self, watcher)

    def missing(self, session: Session) -> Sequence[SignedEntry]:
        """See `LedgerLocation.missing`."""
        return session.missing if isinstance(session, BegunSession) else ()

    def report_missing(self, receipt: SignedEntry) -> None:
        """See `LedgerLocation.report_missing`."""
        try:
            with self.session() as session:
                insert = "INSERT INTO missing (seq, statement, signature) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
                session.execute(insert, (receipt.seq, receipt.statement, receipt.signature))
        except DpswdError as error:
            _log.warning("the others could not be told that entry %d is missing: %s", receipt.seq, type(error).__name__)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """See `LedgerLocation.alone`."""
        lock = LOCK_SPACE, self.schema
        with self.session() as session:
            if not session.value("SELECT pg_try_advisory_lock(?, hashtext(?))", *lock):
                raise LedgerUnavailable(f"a curator serves the ledger in {self}: stop every replica first")
            try:
                yield
            finally:
                # The server frees it too, but only once it notices that we left: a curator that starts now would be
                # told that a restore is under way.
                with contextlib.suppress(psycopg.Error):  # a session that broke holds nothing
                    session.execute("SELECT pg_advisory_unlock(?, hashtext(?))", lock)

    def replace(self, backup: Path, log: Callable[[Session], object]) -> None:
        """See `LedgerLocation.replace`. One transaction: the restored ledger is there complete, or nothing changed."""
        with self.session() as target, SqliteFile(backup).reading() as source:
            target.execute("BEGIN")
            if self._occupied(target):
                self._set_aside(target)
            _make(target, self.schema)
            copy_tables(source, target)
            log(target)
            restored = "the restored ledger may be there all the same: mend the standby, then restore again"
            commit(target.connection, self, spent=restored)

    def _set_aside(self, session: PostgresSession) -> None:
        """Renames the present schema, inside the caller's transaction."""
        # An operator's program may be in the middle of an act: it ends first, and whoever waits behind us looks the
        # tables up anew. Writers begin with `ledger`: no deadlock.
        tables = session.value(
            "SELECT string_agg(oid::regclass::text, ', ' ORDER BY relname <> 'ledger', relname) FROM pg_class "
            "WHERE relnamespace = to_regnamespace(?) AND relkind = 'r'",
            self.schema,
        )
        if tables:
            session.execute(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
        names = (f"{self.schema}_replaced_{number}" for number in itertools.count(1))
        free = next(name for name in names if not self._occupied(session, name))
        session.execute(f"ALTER SCHEMA {self.schema} RENAME TO {free}")

    def _occupied(self, session: PostgresSession, schema: str | None = None) -> bool:
        anything = "SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace(?))"
        return bool(session.value(anything, schema or self.schema))

    @contextlib.contextmanager
    def session(self, *, lock_timeout_s: float = LOCK_TIMEOUT_S, hung: str = "0") -> Iterator[PostgresSession]:
        """A connection of one's own, see `connect`; what is not committed when the block ends is rolled back."""
        try:
            with contextlib.closing(self.connect(lock_timeout_s=lock_timeout_s, hung=hung)) as connection:
                yield PostgresSession(connection)
        except psycopg.Error as error:
            raise translate(error, self) from error

    def _parameters(self) -> dict[str, Any]:
        problem = "it begins with postgresql://"
        if self.url.startswith(_URL_SCHEMES):
            try:
                return conninfo_to_dict(self.url)
            except psycopg.ProgrammingError as error:
                problem = " ".join(str(error).split())
        raise SettingsError(
            f"ledger.url is no URL of PostgreSQL ({problem}); write "
            "postgresql://user@host:5432/database?sslmode=verify-full"
        )

    def connect(self, *, lock_timeout_s: float = LOCK_TIMEOUT_S, hung: str = HUNG) -> Connection:
        """A connection whose search path is the ledger's schema and whose server keeps what it commits.

        Args:
            lock_timeout_s: how long to wait for another program, in seconds.
            hung: after which the server ends a transaction that does nothing.
        """
        chosen = self._parameters()
        defaults = {name: value for name, value in _CONNECTION.items() if name not in chosen}
        if self.password_file is not None:
            try:
                defaults["password"] = self.password_file.read_text().partition("\n")[0].rstrip("\r")
            except OSError as error:
                raise SettingsError(
                    f"ledger.password_file {self.password_file} cannot be read: {error.strerror}; make it readable for "
                    "the curator's user"
                ) from error
        with contextlib.ExitStack() as unfit:
            connection: Connection = psycopg.connect(self.url, autocommit=True, **defaults)  # type: ignore[arg-type]
            unfit.callback(connection.close)
            self._prepare(PostgresSession(connection), lock_timeout_s=lock_timeout_s, hung=hung)
            unfit.pop_all()
        return connection

    def _prepare(self, session: PostgresSession, *, lock_timeout_s: float, hung: str) -> None:
        server = session.connection.info
        if (version := server.server_version // 10_000) < OLDEST_SERVER:
            raise LedgerUnavailable(f"{self} is PostgreSQL {version}; needed is {OLDEST_SERVER} or newer")
        settings = {
            **_SESSION,
            "search_path": self.schema,
            "lock_timeout": f"{max(1, round(lock_timeout_s * 1000))}ms",
            "idle_in_transaction_session_timeout": hung,
        }
        session.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
        ask = "SELECT current_setting('synchronous_commit'), current_setting('fsync'), pg_backend_pid()"
        synchronous, fsync, pid = session.execute(ask).fetchone()
        # A commit that does not wait for the disk would be forgotten by a loss of power, after its reply was sent.
        if synchronous in ("off", "local"):
            session.execute("SET synchronous_commit = on")
        if fsync != "on":
            raise LedgerUnavailable(
                f"the server of {self} runs with fsync off: a loss of power would forget charges; switch it on"
            )
        if pid != server.backend_pid:
            raise LedgerUnavailable(
                f"a connection pooler stands before {self}, and locks of a session would go astray: connect to the "
                "server itself"
            )


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


def _make(session: Session, name: str) -> None:
    """Makes a schema, which is first in the session's search path, with empty tables, in the caller's transaction."""
    session.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
    schema.make_tables(session, integer="BIGINT", binary="BYTEA")
    session.execute(_BESIDE_THE_TABLES)
    session.execute("INSERT INTO ledger (singleton, version) VALUES (true, ?)", (schema.VERSION,))


def _layout_of(session: Session, name: str) -> dict[str, str]:
    """The definition of everything in a schema, by name, without the schema's own name."""
    rows = session.execute(_LAYOUT, (name, name)).fetchall()
    return {what: " ".join(definition.replace(f"{name}.", "").split()) for what, definition in rows}
