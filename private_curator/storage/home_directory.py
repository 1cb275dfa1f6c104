"""The curator's home directory: which file stands where, and how a new home is made."""

from __future__ import annotations

import functools
import json
import os
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpswd.private_curator.books.heads import Heads
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.location import LedgerLocation
from dpswd.private_curator.books.operators import Operator, checked_operator
from dpswd.private_curator.books.reading import LedgerReading, read_keys, read_ledger
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.books.witness import Witness
from dpswd.private_curator.core.ledger.store import no_checkpoint
from dpswd.private_curator.keys.places import KeyPlaces
from dpswd.private_curator.records import target
from dpswd.private_curator.records.labels import load_labels
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.settings.groups import LedgerSettings, RecordsSettings
from dpswd.private_curator.settings.tree import SETTINGS_FILE, CuratorSettings
from dpswd.private_curator.storage.asks import AskBook
from dpswd.private_curator.storage.certificates import CertificateAuthority
from dpswd.private_curator.storage.checks import CheckNotes
from dpswd.private_curator.storage.notices import Notices
from dpswd.shared.accounting.persons import allowed_for_record
from dpswd.shared.certificates import private_pem
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.ledger.keys import LedgerKeys, SigningKey
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.files import write_private

SAFE_UMASK = 0o077
"""Whatever a curator's process makes belongs to its operator alone."""


class HomeDirectory:
    """Where everything of one curator stands.

    Attributes:
        path: the directory.
        settings: curator.toml; written last, so that its presence means a complete curator.
        ledger: its file, where no ``ledger.url`` names a database.
        ledger_key: the Ed25519 key that signs the ledger's entries, PEM, mode 0600.
        certificates: the certificate authority's directory.
        authority: the certificate authority.
        uploads: what clients uploaded.
        publications: a copy of what was published, by request.
        incidents: unexpected errors, for the operator.
        asks: refusals, and when clients were last seen.
        checks: when the ledger was last verified and backed up.
        noted_acts: acts that wait for a second operator.
        address: host:port of the serving process; there only while it serves.
    """

    def __init__(self, path: Path, *, operator: str | Operator | Callable[[], Operator] | None = None) -> None:
        self.path = path
        if operator is None or isinstance(operator, str):
            operator = Operator(system_user() if operator is None else checked_operator(operator))
        self._operator = operator
        self.settings = path / SETTINGS_FILE
        self.ledger = path / "ledger.db"
        self.ledger_key = path / "ledger.key"
        self.certificates = path / "certificates"
        self.authority = CertificateAuthority(self.certificates)
        self.uploads = path / "uploads"
        self.publications = path / "publications"
        self.incidents = path / "incidents.jsonl"
        self.asks = AskBook(path / "asks.db")
        self.checks = CheckNotes(path / "checks.json")
        self.noted_acts = path / "noted-acts"
        self.address = path / "address"

    @functools.cached_property
    def acting(self) -> Operator:
        """Whoever acts; raises SettingsError where nobody may."""
        return self._operator if isinstance(self._operator, Operator) else self._operator()

    @property
    def operator(self) -> str:
        """The name of whoever acts, or the two names."""
        return self.acting.text

    def key_places(self, chosen: LedgerSettings | None = None) -> KeyPlaces:
        """Where the ledger's keys may be, by these settings or by those of the home."""
        return KeyPlaces(self.ledger_key, (chosen or configuration.load(self.path).ledger).keys)

    def read_ledger_key(self) -> SigningKey:
        """The ledger's key; of several, the one that the ledger names. Raises what `KeyPlaces` does."""
        _ = self.acting  # for whoever may act alone
        places = self.key_places()
        return places.only() or places.find(self.read_ledger_keys().pinned.hex())

    def rotate_ledger_key(self, *, reason: str) -> str:
        """Lets the next key sign the ledger, and returns its public half, hexadecimal; see `KeyPlaces.successor`."""
        places = self.key_places()
        with self.open_ledger() as books:
            key = places.successor(books.keys.every)
            books.change_key(key, reason=reason)
        places.find(named := key.public_key().public_bytes_raw().hex())
        return named

    def ledger_location(self, chosen: LedgerSettings | None = None) -> LedgerLocation:
        """Where the ledger stands by these settings, or by those of the home.

        Raises:
            SettingsError: the home is none, or its settings cannot work.
        """
        chosen = chosen or configuration.load(self.path).ledger
        if chosen.url is None:
            return SqliteFile(self.ledger)
        try:
            from dpswd.private_curator.postgres.schema import PostgresSchema
        except ImportError as error:
            raise SettingsError(
                "ledger.url needs psycopg, which is not installed; install dpswd[curator], or leave ledger.url out"
            ) from error
        secret = None if chosen.password_file is None else self.path / chosen.password_file
        return PostgresSchema(chosen.url, schema=chosen.schema_name, password_file=secret)

    def open_ledger(
        self,
        chosen: LedgerSettings | None = None,
        *,
        checkpoint: Callable[[str], None] = no_checkpoint,
        witnessed: bool = True,
        followed: bool = True,
        here: bool = True,
    ) -> Ledger:
        """Opens the ledger, whose entries the operators' notices are told; close it with a ``with`` statement.

        Args:
            chosen: the settings in force; by default those of the home.
            checkpoint: called at named points; tests stop the process there.
            witnessed: whether a ledger is refused that was put back to an older state.
            followed: see `dpswd.private_curator.core.ledger.store.LedgerOptions`.
            here: whether a copy is refused.

        Raises:
            SettingsError: the home is none, or a copy; its settings cannot work, or its key is missing.
            LedgerUnavailable, LedgerCorrupt: see `Ledger.open`.
        """
        chosen = chosen or configuration.load(self.path).ledger
        file = None if chosen.heads_file is None else self.path / chosen.heads_file
        return Ledger.open(
            self.ledger_location(chosen), key=self.read_ledger_key(), checkpoint=checkpoint,
            lock_timeout_s=chosen.lock_seconds, followed=followed, here=here,
            witness=self.ledger_witness(chosen) if witnessed else None, by=self.acting, listener=self._tell,
            find_key=self.key_places(chosen).find, heads=Heads(file=file, command=chosen.heads_command),
        )  # fmt: skip

    def read_ledger(self) -> LedgerReading:
        """The ledger as it is now, without its key and without writing: a read-only copy of the home will do.

        Raises:
            SettingsError: the home is none, or its settings cannot work.
            LedgerUnavailable, LedgerCorrupt: see `dpswd.private_curator.books.reading.read_ledger`.
        """
        return read_ledger(self.ledger_location())

    def read_ledger_keys(self) -> LedgerKeys:
        """The keys that sign the ledger; raises what `read_ledger` does."""
        return read_keys(self.ledger_location())

    def notices(self, chosen: CuratorSettings | None = None) -> Notices:
        """What tells the operators, by these settings or by those of the home; close it."""
        chosen = chosen or configuration.load(self.path)
        own = chosen.operators
        return Notices(own.notify_command, data_set=chosen.records.name, low_share=own.low_share)

    def _tell(self, entry: SignedEntry) -> None:
        """Tells one entry, and waits until it is told: the program that acts ends soon."""
        notices = self.notices()
        notices.entry(entry)
        notices.close()

    def ledger_witness(self, chosen: LedgerSettings | None = None) -> Path:
        """Where the last entry of the ledger that this curator has seen is noted."""
        chosen = chosen or configuration.load(self.path).ledger
        return self.path / (chosen.witness_file or "ledger.witness")

    def accept_ledger(self, *, reason: str, receipts: Iterable[SignedEntry] | None = None) -> int:
        """Takes the ledger as it is, in writing, and notes its last entry.

        Args:
            reason: stands in the ledger.
            receipts: are charged, and nothing else is accepted; None accepts that all is forgotten which was lost.

        Returns:
            How many runs were charged.

        Raises:
            InvalidValue, LedgerUnavailable, LedgerCorrupt: see `OperatorActs.accept_state`, `OperatorActs.count_copies`
                and `Ledger.open`.
        """
        with self.open_ledger(witnessed=False) as ledger:
            counted = 0
            if receipts is None:
                ledger.accept_state(reason=reason)
            else:
                counted = ledger.count_copies(receipts, reason=reason)
            Witness(self.ledger_witness()).note(ledger.head())
        return counted


def create(
    path: Path,
    *,
    records: RecordsSettings,
    epsilon: float,
    delta: float,
    names: Sequence[str],
    records_per_person: int = 1,
    groups: Mapping[str, Mapping[str, object]] | None = None,
    agreed: Callable[[int, PrivacyBudget], object] = lambda _count, _budget: None,
) -> HomeDirectory:
    """Makes a curator: certificates, ledger with its budget, settings.

    Args:
        path: the home directory; may exist, must hold no curator.
        records: where the records are; checked before anything is written.
        epsilon: the data set's budget for its whole life: what a person is promised.
        delta: its delta.
        names: host names and addresses for the server's certificate.
        records_per_person: how many records of one person there are at most; a record's budget follows from it.
        groups: further settings to write, by group.
        agreed: called with the number of records and a person's budget before anything is written; raises to stop.

    Raises:
        SettingsError: the directory already holds a curator, or a part of one.
        DataInvalid: the records cannot be served.
        InvalidValue: the budget is none.
        LedgerUnavailable: the ledger's database cannot be used now; nothing was written.
    """
    home = HomeDirectory(path.resolve())
    chosen = LedgerSettings.checked("ledger", (groups or {}).get("ledger", {}))
    location, witness = home.ledger_location(chosen), home.ledger_witness(chosen)
    for present in (home.settings, home.ledger, home.ledger_key, home.certificates):
        if present.exists():
            raise SettingsError(
                f"{present} exists: {home.path} holds a curator or a part of one, and nothing is ever overwritten; "
                "choose another directory"
            )
    if location.exists():
        raise SettingsError(f"{location} exists: it belongs to another curator; choose another ledger.schema_name")
    data, fingerprint = target.load_for_the_first_time(records, home=home.path)
    load_labels(records, home=home.path, records=data.count)
    agreed(data.count, PrivacyBudget(epsilon=epsilon, delta=delta))
    each, its_delta = allowed_for_record(epsilon, delta, records_per_person)
    budget = PrivacyBudget(epsilon=each, delta=its_delta)
    previous = os.umask(SAFE_UMASK)
    try:
        home.path.mkdir(parents=True, exist_ok=True)
        home.authority.create(names=names, data_set=records.name)
        key = Ed25519PrivateKey.generate()
        write_private(home.ledger_key, private_pem(key))
        Ledger.create(
            location,
            key=key,
            records=data.count,
            budget=budget,
            records_per_person=records_per_person,
            witness=witness,
            by=home.acting,
        ).close()
        fingerprint.write(home.path)
        tree = {"records": records.model_dump(mode="json", exclude_defaults=True), **(groups or {})}
        write_private(home.settings, _toml(tree).encode())
    finally:
        os.umask(previous)
    return home


def system_user() -> str:
    """The name of the user whose process this is; its number where the system has no name for it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _toml(tree: Mapping[str, Mapping[str, object]]) -> str:
    """Groups of scalars and lists; JSON's strings, numbers, booleans and lists are TOML's."""
    lines = ["# Settings of this curator; `dpswd-curator settings` explains each and shows the defaults.", ""]
    for group, fields in tree.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in fields.items() if value is not None]
        lines.append("")
    return "\n".join(lines)
