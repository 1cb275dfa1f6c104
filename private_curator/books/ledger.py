"""The ledger of one data set: create it, open it, ask it how things stand."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self, Unpack

from dpswd.private_curator.books.asking import ClientActs
from dpswd.private_curator.books.audit import VerificationOptions, VerificationReport, verify_file
from dpswd.private_curator.books.backup import restored, write_backup
from dpswd.private_curator.books.figures import AccountStatus, LedgerStatus, budget_payload
from dpswd.private_curator.books.location import LedgerLocation, Watch
from dpswd.private_curator.books.operator import OperatorActs, checked_reason
from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.books.place import elsewhere
from dpswd.private_curator.books.reading import status_of
from dpswd.private_curator.books.register import Register, account_status, share_status
from dpswd.private_curator.books.renyi import RENYI
from dpswd.private_curator.books.sqlite_file import as_location
from dpswd.private_curator.books.witness import Witness, lacks
from dpswd.private_curator.core.ledger.accounting import Accounting
from dpswd.private_curator.core.ledger.database import LOCK_TIMEOUT_S, Session
from dpswd.private_curator.core.ledger.statements import DataSetState, Kind
from dpswd.private_curator.core.ledger.store import (
    PAGE,
    LedgerOptions,
    append_entry,
    entries_of,
    head,
    no_checkpoint,
    read_entries,
)
from dpswd.shared.accounting.persons import check_records_per_person
from dpswd.shared.core.errors import InvalidValue, LedgerCorrupt, SettingsError
from dpswd.shared.core.ledger.keys import LedgerKeys, SigningKey
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.core.privacy.budget import PrivacyBudget


class Ledger(OperatorActs, ClientActs):
    """The durable, signed record of everything that is spent on one data set.

    Safe for the threads of one process and for several processes. Of a file, one process at a time computes steps; of
    a schema of PostgreSQL, any number of replicas, each step in one of them. A context manager.
    """

    location: LedgerLocation
    _witness: Witness | None
    _watch: Watch | None = None

    def __init__(self, *args: Any, here: bool = False, **options: Any) -> None:
        self._accounted: set[bytes] = set()  # signatures of missing entries whose loss the operator has accepted
        super().__init__(*args, **options)
        self._clock = options.get("clock") or self.location.clock(self._database)
        if here and self.is_a_copy():
            self.close()
            raise SettingsError(
                f"{self.location} was copied, moved or put back past `ledger restore`: its entry {self._books.placed} "
                "states another place. Two that serve would spend one budget twice. Delete this copy; or say that the "
                "other will never serve again: `dpswd-curator ledger move --reason ...` (docs/operator/backup.md)"
            )

    @classmethod
    def create(
        cls,
        location: LedgerLocation | Path,
        *,
        key: SigningKey,
        records: int,
        budget: PrivacyBudget,
        records_per_person: int = 1,
        accounting: Accounting = RENYI,
        witness: Path | None = None,
        **options: Unpack[LedgerOptions],
    ) -> Self:
        """Makes the ledger of a data set, complete or not at all, and opens it.

        Args:
            location: a file that does not exist yet, in a directory that does; or a schema of PostgreSQL.
            key: signs every entry; the caller keeps it.
            records: n, the number of records; public from now on.
            budget: the `PrivacyBudget` for the data set's whole life, of a record.
            records_per_person: k, how many records of one person there are at most; public from now on.
            accounting: as for `open`.
            witness: as for `open`.
            options: see `LedgerOptions`.

        Raises:
            InvalidValue: ``records`` is not positive, or ``records_per_person`` is none.
            LedgerUnavailable: a ledger stands there already, or it cannot be written.
        """
        location = as_location(location)
        if type(records) is not int or records < 1:
            raise InvalidValue(f"a data set has at least one record, not {records!r}")
        check_records_per_person(records_per_person)
        opening = {
            "ledger": secrets.token_hex(16),
            "public_key": key.public_key().public_bytes_raw().hex(),
            "records": records,
            "records_per_person": records_per_person,
            "budget": budget_payload(budget),
            "by": {"operator": Operator.of(options.get("by")).name, "credential": None},
        }

        def fill(session: Session) -> None:
            clock = options.get("clock") or location.clock(session)
            placed = {**opening, "place": location.place(session)}
            append_entry(session, Kind.DATA_SET_OPENED, placed, key=key, clock=clock)
            options.get("checkpoint", no_checkpoint)("create:data-set-opened")

        location.create(fill, lock_timeout_s=options.get("lock_timeout_s", LOCK_TIMEOUT_S))
        return cls.open(location, key=key, accounting=accounting, witness=witness, **options)

    @classmethod
    def open(
        cls,
        location: LedgerLocation | Path,
        *,
        key: SigningKey,
        accounting: Accounting = RENYI,
        witness: Path | None = None,
        here: bool = False,
        **options: Unpack[LedgerOptions],
    ) -> Self:
        """Opens a ledger; follows its chain of hashes first, unless ``options`` leave that to `verify`.

        Args:
            location: as for `create`.
            key: the ledger's own.
            accounting: prices runs.
            witness: a file, kept elsewhere than the ledger, in which the last entry seen is noted: a ledger that lacks
                it was put back to an older state. None to notice that only while the ledger is open.
            here: whether a copy is refused, see `is_a_copy`.
            options: see `LedgerOptions`.

        Raises:
            LedgerUnavailable: it is not there, locked, read-only, or the disk is full.
            LedgerCorrupt: the chain is broken, another key made it, or what the witness noted is missing.
            SettingsError: it is a copy.
        """
        noted = None if witness is None else Witness(witness)
        return cls(as_location(location), key=key, books=Register(accounting), witness=noted, here=here, **options)

    @property
    def keys(self) -> LedgerKeys:
        """The keys that sign its entries, each from its place on."""
        return self._books.keys

    @property
    def records(self) -> int:
        """n, the number of records of the data set; public."""
        return self._books.records

    @property
    def records_per_person(self) -> int:
        """k, how many records of one person there are at most; public."""
        return self._books.records_per_person

    def budget_of(self, client: str) -> tuple[AccountStatus, AccountStatus | None]:
        """The data set's account and the client's own, as they stand.

        Raises:
            GrantNotHeld: the client is not registered, or shut out.
        """
        with self._reading():
            self._books.holder(client)
            closed = self._books.closed
            return account_status(self._books.account, closed=closed), share_status(
                self._books.shares.get(client), closed=closed
            )

    def hold_to(self, receipt: SignedEntry) -> None:
        """Holds the ledger to a receipt that somebody presents; one that this ledger's key did not sign says nothing.

        Raises:
            LedgerCorrupt: the ledger lacks it: it was put back to an older state. From now on nothing is read or
                written, here or after a restart, until the operator has decided.
        """
        if not receipt.signed_by(self._books.keys):
            return
        with self._reading() as session:
            if lacks(session, receipt):
                self._stop(receipt)

    def watch(self) -> None:
        """From now on follows what other replicas write, notes it, and stops with them; until `close`.

        Raises:
            LedgerUnavailable, LedgerCorrupt: the ledger cannot be looked at now, or lacks what was seen.
        """
        self._watch = self._watch or self.location.watch(self)

    def look(self, session: Session) -> SignedEntry | None:
        """See `dpswd.private_curator.books.location.Watcher`."""
        noted = None if self._witness is None else self._witness.noted
        keys = LedgerKeys.of(self.public_key, entries_of(session, Kind.KEY_CHANGED))
        for receipt in (noted, *self._missing(session)):
            if receipt is None:
                continue
            if receipt.signed_by(keys) and lacks(session, receipt):
                with self.location.reading() as later:  # the receipt may be younger than the session's view
                    if lacks(later, receipt):
                        self._stop(receipt)
            self._accounted.add(receipt.signature)
        last = head(session)
        return None if last is None or (noted is not None and last.seq <= noted.seq) else last

    def note(self, entry: SignedEntry) -> None:
        """See `dpswd.private_curator.books.location.Watcher`."""
        if self._witness is not None:
            self._witness.note(entry)

    def is_a_copy(self) -> bool:
        """Whether it stands elsewhere than its entries say."""
        with self._reading() as session:
            return elsewhere(self._books.place, self.location.place(session))

    def move(self, *, reason: str) -> None:
        """States that it stands here from now on, and serves nowhere else; raises InvalidValue: it is no copy."""
        if not self.is_a_copy():
            raise InvalidValue(f"{self.location} stands where its entries say: there is nothing to move")
        with self._transaction("move") as transaction:
            place = self.location.place(transaction.connection)
            self._act(transaction, Kind.RESTORED, {**restored(None, None, checked_reason(reason)), "place": place})

    def now(self) -> datetime:
        """What time it is by the clock that dates the entries."""
        return self._clock()

    def close(self) -> None:
        """Ends the use. Idempotent."""
        if self._watch is not None:
            self._watch.close()
        super().close()

    def _refresh(self, connection: Session) -> None:
        if self._watch is not None:
            self._watch.require_calm(connection)
        if self._witness is not None and self._missing(connection):
            self.look(connection)
        try:
            super()._refresh(connection)
        except LedgerCorrupt:
            if self._watch is None:  # one file: no failover loses the end of it
                raise
            self.look(connection)  # what no failover forgets is missing for all replicas, not for this one alone
            # It lacks only what nobody relied on: of a commit that the lost primary had alone.
            self._books, self._seen = Register(self.accounting), None
            super()._refresh(connection)

    def _missing(self, session: Session) -> list[SignedEntry]:
        return [entry for entry in self.location.missing(session) if entry.signature not in self._accounted]

    def _stop(self, receipt: SignedEntry) -> NoReturn:
        """Here, after a restart, and in every other program on this ledger, until the operator has decided."""
        self._stopped = (
            f"{self.location} lacks entry {receipt.seq} of {receipt.time}, of which a signed receipt is there: it was "
            "put back to an older state, and what was spent since then would be spent again. Nothing is charged or "
            "released any more. Stop every curator of it and restore a newer backup, or accept this state in writing "
            "(docs/operator/incidents.md)"
        )
        if self._witness is not None:
            self._witness.keep(receipt)
        self.location.report_missing(receipt)
        raise LedgerCorrupt(self._stopped)

    def head(self) -> SignedEntry:
        """The last entry. Noted elsewhere, it proves a later truncation or rollback, like any receipt."""
        with self._reading() as connection:
            last = head(connection)
        if last is None:
            raise LedgerCorrupt("the ledger does not begin with the opening of a data set")
        return last

    def history(self, *, after: int = 0) -> Iterator[SignedEntry]:
        """Every entry behind ``after``, in order; reads page by page, so that writers need not wait."""
        while True:
            with self._database.read() as connection:
                page = list(read_entries(connection, after=after, limit=PAGE))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].seq

    def export(self) -> Iterator[str]:
        """The whole chain, one line for each entry, for `dpswd.shared.books.chain_checks.read_export`."""
        return (entry.to_json() for entry in self.history())

    def verify(self, **options: Unpack[VerificationOptions]) -> VerificationReport:
        """Derives everything anew from the entries as they are now and compares; nobody waits for it.

        Args:
            options: as for `dpswd.private_curator.books.audit.verify_file`.

        Raises:
            LedgerUnavailable: the file cannot be read.
        """
        return verify_file(self.location, public_key=self.public_key, accounting=self.accounting, **options)

    @property
    def state(self) -> DataSetState:
        """Whether the data set is open, frozen or ended."""
        with self._reading():
            return self._books.state

    def backup(self, destination: Path | str) -> None:
        """Copies the ledger to a new file while it is in use; the copy is complete or not there.

        Raises:
            LedgerUnavailable: the file exists, or cannot be written.
        """
        write_backup(self._database, Path(destination))

    def status(self) -> LedgerStatus:
        """Budgets, clients and runs as they stand."""
        with self._reading() as connection:
            return status_of(connection, self._books)
