"""What other programs do to a ledger in PostgreSQL, as soon as they do it: what one replica has seen binds them all.

Each commit notifies the watch of every replica, which notes the new last entry: so an older state that is put back
lacks something that an idle replica has noted too. And every second, whatever happens, the ledger is held to what was
noted; an entry that is not there any more is written to the table ``missing``, which every transaction of every
replica reads first.

What remains is a replica that was cut off while others wrote, and comes back to a database that was put in the old
one's place meanwhile: a dump, a copy of a disk, a standby. It can see that the database is another one, and serves
only when the others have had time to come and object.
"""

from __future__ import annotations

import logging
import threading
import time

from dpswd.private_curator.books.location import Watcher
from dpswd.private_curator.core.ledger.database import Session
from dpswd.private_curator.postgres import database
from dpswd.shared.core.errors import DpswdError, LedgerUnavailable

BEAT_S = 1.0
_PAUSE_S = 0.1  # between two looks: what many commits tell is told once
CALM_S = 3.0
"""How long a database must have stood before a replica uses it: others look at it within a beat, or connect anew."""
_SERVING = """
    SELECT count(*) FROM pg_locks
     WHERE locktype = 'advisory' AND objsubid = 2 AND granted
       AND classid = ?::bigint::oid AND objid = (hashtext(?)::bigint & 4294967295)::oid
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

_log = logging.getLogger(__name__)


class PostgresWatch:
    """A `dpswd.private_curator.books.location.Watch`, with a connection and a thread of its own.

    Args:
        location: of the ledger; its schema is the channel of its notices.
        watcher: holds the ledger to what was seen.

    Raises:
        LedgerUnavailable: see `LedgerLocation.watch`.
    """

    def __init__(self, location: database.LedgerSchema, watcher: Watcher) -> None:
        self._location = location
        self._watcher = watcher
        self._stopping = threading.Event()
        self._incarnation = ""
        self._calm_at = 0.0
        with location.session(hung=database.HUNG) as session:
            self._look(session.connection)
            serving = session.value(_SERVING, database.LOCK_SPACE, location.schema)
        if serving <= 1:  # nobody else serves who could object
            self._calm_at = 0.0
        self._thread = threading.Thread(target=self._run, name="ledger-watch", daemon=True)
        self._thread.start()
        self._stopping.wait(max(0.0, self._calm_at - time.monotonic()))

    def require_calm(self, session: Session) -> None:
        """See `dpswd.private_curator.books.location.Watch`."""
        assert isinstance(session, database.BegunSession)
        if session.incarnation != self._incarnation or time.monotonic() < self._calm_at:
            raise LedgerUnavailable(
                f"the ledger in {self._location} cannot be used yet: its database was started or replaced moments ago, "
                "and the other curators look first whether it has all that they have seen; nothing was spent"
            )

    def close(self) -> None:
        """See `dpswd.private_curator.books.location.Watch`; the connection ends within a beat."""
        self._stopping.set()

    def _run(self) -> None:
        last = ""
        while not self._stopping.is_set():
            try:
                with self._location.session(hung=database.HUNG) as session:
                    session.execute(f"LISTEN {self._location.schema}")
                    while not self._stopping.is_set():
                        self._look(session.connection)
                        last = ""
                        list(session.connection.notifies(timeout=BEAT_S, stop_after=1))
                        self._stopping.wait(_PAUSE_S)
                        list(session.connection.notifies(timeout=0))  # one look answers them all
            except DpswdError as error:
                if str(error) != last:
                    _log.error("the ledger is not watched: %s", error)
                last = str(error)
                self._stopping.wait(BEAT_S)

    def _look(self, connection: database.Connection) -> None:
        session = database.begin(connection)
        try:
            if session.incarnation != self._incarnation:
                self._calm_at = time.monotonic() + CALM_S  # first: a request may read both in between
                self._incarnation = session.incarnation
            entry = self._watcher.look(session)
        finally:
            connection.execute("ROLLBACK")
        if entry is not None:
            database.settle(connection, self._location)  # of what a failover may forget, nobody takes note
            self._watcher.note(entry)
