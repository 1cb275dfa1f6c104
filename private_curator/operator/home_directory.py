"""The curator's home directory: which file stands where, and how a new home is made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from private_curator.ledger import Ledger
from private_curator.ledger.database import Place
from private_curator.ledger.renyi import RenyiAccounting
from private_curator.ledger.sqlite_file import SqliteFile
from private_curator.ledger.store import no_checkpoint
from private_curator.records import target
from private_curator.records.labels import load_labels
from private_curator.serving.certificates import CertificateAuthority, write_private
from private_curator.settings.tree import SETTINGS_FILE, LedgerSettings, RecordsSettings, check_section
from private_curator.settings import tree as configuration
from shared.errors import SettingsError
from shared.privacy.events import NeighbouringRelation

SAFE_UMASK = 0o077
"""Whatever a curator's process makes belongs to its operator alone."""


@dataclass(frozen=True)
class Home:
    """Paths under the home directory.

    Attributes:
        path: the directory.
    """

    path: Path

    @property
    def settings(self) -> Path:
        """curator.toml; written last, so that its presence means a complete home."""
        return self.path / SETTINGS_FILE

    @property
    def ledger(self) -> Path:
        """The ledger's file, where no ``ledger.url`` names a database."""
        return self.path / "ledger.db"

    @property
    def ledger_witness(self) -> Path:
        """The last entry of the ledger that this curator has seen."""
        return self.path / "ledger.witness"

    @property
    def ledger_key(self) -> Path:
        """The Ed25519 key that signs the ledger's entries, PEM, mode 0600."""
        return self.path / "ledger.key"

    @property
    def certificates(self) -> Path:
        """The certificate authority's directory."""
        return self.path / "certificates"

    @property
    def uploads(self) -> Path:
        """What clients uploaded."""
        return self.path / "uploads"

    @property
    def incidents(self) -> Path:
        """Unexpected errors, for the operator."""
        return self.path / "incidents.jsonl"

    @property
    def address(self) -> Path:
        """host:port of the serving process; there only while it serves."""
        return self.path / "address"

    @property
    def authority(self) -> CertificateAuthority:
        """The curator's certificate authority."""
        return CertificateAuthority(self.certificates)

    def read_ledger_key(self) -> Ed25519PrivateKey:
        """The ledger's key.

        Raises:
            SettingsError: it is missing or damaged.
        """
        try:
            key = serialization.load_pem_private_key(self.ledger_key.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{self.ledger_key} cannot be read ({type(error).__name__}); restore it from a backup: without it the "
                "ledger cannot be continued"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise SettingsError(f"{self.ledger_key} is no Ed25519 key; restore the ledger's own key from a backup")
        return key

    def ledger_place(self, chosen: LedgerSettings | None = None) -> Place:
        """Where the ledger stands by these settings, or by those of the home.

        Raises:
            SettingsError: the home is none, or its settings cannot work.
        """
        chosen = chosen or configuration.load(self.path).ledger
        if chosen.url is None:
            return SqliteFile(self.ledger)
        try:
            from private_curator.ledger.postgres_schema import PostgresSchema
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
    ) -> Ledger:
        """Opens the ledger; close it with a ``with`` statement.

        Args:
            chosen: the settings in force; by default those of the home.
            checkpoint: called at named points; tests stop the process there.
            witnessed: whether a ledger is refused that was put back to an older state.

        Raises:
            SettingsError: the home is none, its settings cannot work, or its key is missing.
            LedgerUnavailable, LedgerCorrupt: see `Ledger.open`.
        """
        chosen = chosen or configuration.load(self.path).ledger
        return Ledger.open(
            self.ledger_place(chosen),
            key=self.read_ledger_key(),
            checkpoint=checkpoint,
            lock_timeout_s=chosen.lock_seconds,
            witness=self.ledger_witness if witnessed else None,
        )


def create(
    path: Path,
    *,
    records: RecordsSettings,
    epsilon: float,
    delta: float,
    names: Sequence[str],
    sections: dict[str, dict[str, object]] | None = None,
) -> Home:
    """Makes a curator: certificates, ledger with its budget, settings.

    Args:
        path: the home directory; may exist, must hold no curator.
        records: where the records are; checked before anything is written.
        epsilon: the data set's budget for its whole life.
        delta: its delta.
        names: host names and addresses for the server's certificate.
        sections: further settings to write, by section.

    Raises:
        SettingsError: the directory already holds a curator, or a part of one.
        DataInvalid: the records cannot be served.
        InvalidValue: the budget is none.
        LedgerUnavailable: the ledger's database cannot be used now; nothing was written.
    """
    home = Home(path.resolve())
    place = home.ledger_place(check_section(LedgerSettings, "ledger", (sections or {}).get("ledger", {})))
    for present in (home.settings, home.ledger, home.ledger_key, home.certificates):
        if present.exists():
            raise SettingsError(
                f"{present} exists: {home.path} holds a curator or a part of one, and nothing is ever overwritten; "
                "choose another directory"
            )
    if place.exists():
        raise SettingsError(f"{place} exists: it belongs to another curator; choose another ledger.schema_name")
    data, evidence = target.load_for_the_first_time(records, home=home.path)
    load_labels(records, home=home.path, records=data.count)
    budget = RenyiAccounting().budget(epsilon=epsilon, delta=delta, relation=NeighbouringRelation.REPLACE_ONE.value)
    previous = os.umask(SAFE_UMASK)
    try:
        home.path.mkdir(parents=True, exist_ok=True)
        home.authority.create(names=names, data_set=records.name)
        key = Ed25519PrivateKey.generate()
        write_private(
            home.ledger_key,
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )
        Ledger.create(place, key=key, records=data.count, budget=budget, witness=home.ledger_witness).close()
        evidence.write(home.path)
        tree = {"records": records.model_dump(mode="json", exclude_defaults=True), **(sections or {})}
        write_private(home.settings, _toml(tree).encode())
    finally:
        os.umask(previous)
    return home


def _toml(tree: dict[str, dict[str, object]]) -> str:
    """Sections of scalars and lists; JSON's strings, numbers, booleans and lists are TOML's."""
    lines = ["# Settings of this curator; `dpswd-curator settings` explains each and shows the defaults.", ""]
    for section, fields in tree.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in fields.items() if value is not None]
        lines.append("")
    return "\n".join(lines)
