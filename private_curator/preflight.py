"""Checks before serving: what would fail later, found now, with what to do about it."""

from __future__ import annotations

import datetime as dt
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass

from cryptography import x509

from private_curator import settings as configuration
from private_curator import target
from private_curator.certificates import CA_CERTIFICATE, CA_KEY, SERVER_CERTIFICATE, SERVER_KEY
from private_curator.home import Home
from private_curator.labels import class_count, load_labels
from private_curator.settings import CuratorSettings
from shared.errors import DpswdError, SettingsError

MIN_FREE_BYTES = 1 << 30  # stored replies grow by about 50 kB a step: room for some 20,000 steps
RENEW_BEFORE = dt.timedelta(days=30)


@dataclass(frozen=True)
class Finding:
    """One check's result.

    Attributes:
        check: its name.
        ok: whether serving can go on.
        text: what was found, and what to do if it is not well.
    """

    check: str
    ok: bool
    text: str


def check(home: Home) -> list[Finding]:
    """Runs every check; a failing one does not stop the others."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("settings", lambda: f"{len(configuration.describe(_settings(home)))} settings are in order"),
        ("records", lambda: _records(home)),
        ("ledger", lambda: _ledger(home)),
        ("certificates", lambda: _certificates(home)),
        ("key files", lambda: _key_files(home)),
        ("device", lambda: _device(home)),
        ("disk", lambda: _disk(home)),
    ]
    findings = []
    for name, run in checks:
        try:
            findings.append(Finding(check=name, ok=True, text=run()))
        except (DpswdError, OSError, ValueError) as error:
            text = str(error) if isinstance(error, DpswdError) else f"{type(error).__qualname__}: {error}"
            findings.append(Finding(check=name, ok=False, text=text))
    return findings


def _settings(home: Home) -> CuratorSettings:
    return configuration.load(home.path)


def _records(home: Home) -> str:
    data = target.load(_settings(home).records, home=home.path)
    with home.open_ledger() as ledger:
        if ledger.records != data.count:
            raise SettingsError(
                f"the file holds {data.count} records, the ledger was made for {ledger.records}; restore the file, or "
                "make a new curator"
            )
    settings = _settings(home).records
    load_labels(settings, home=home.path, records=data.count)
    labels = f", labels of {class_count(settings)} classes" if class_count(settings) else ""
    return f"{data.count} records of shape {data.record_shape}{labels}"


def _ledger(home: Home) -> str:
    with home.open_ledger() as ledger:
        report = ledger.verify()
    if not report.ok:
        raise SettingsError(f"the ledger does not verify: {report.findings[0].text}; restore a backup")
    return f"{report.entries} entries verify"


def _certificates(home: Home) -> str:
    now = dt.datetime.now(dt.UTC)
    for name, remedy in (
        (SERVER_CERTIFICATE, "run `dpswd-curator certificate renew`"),
        (CA_CERTIFICATE, "make a new curator: every client needs a new certificate"),
    ):
        certificate = x509.load_pem_x509_certificate((home.certificates / name).read_bytes())
        if certificate.not_valid_after_utc < now + RENEW_BEFORE:
            raise SettingsError(f"{name} expires at {certificate.not_valid_after_utc:%Y-%m-%d}; {remedy}")
        if name == SERVER_CERTIFICATE:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    shown = ", ".join(str(entry.value) for entry in names)
    return f"valid for at least {RENEW_BEFORE.days} days; clients connect to {shown}"


def _key_files(home: Home) -> str:
    for path in (home.ledger_key, home.certificates / CA_KEY, home.certificates / SERVER_KEY):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise SettingsError(f"{path} has mode {mode:04o}: others can read it; run chmod 600 {path}")
    return "private keys are readable by their owner only"


def _device(home: Home) -> str:
    from private_curator.server import choose_device  # torch takes seconds to load

    return f"steps run on {choose_device(_settings(home).compute.device)}"


def _disk(home: Home) -> str:
    free = shutil.disk_usage(home.path).free
    if free < MIN_FREE_BYTES:
        raise SettingsError(f"{home.path} has {free} bytes left, needed are {MIN_FREE_BYTES}; free some space")
    return f"{free // (1 << 20)} MiB free"
