"""Checks before serving: what would fail later, found now, with what to do about it.

docs/reference/settings.md lists the checks and their remedies; `dpswd-curator preflight` ends with exit code 3 if one
fails.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dpswd.private_curator.books.audit import Progress
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.observability.requests import tracing_of
from dpswd.private_curator.operator.machine import check_free, clock_is_synchronised
from dpswd.private_curator.operator.telling import ProgressReporter
from dpswd.private_curator.records import target
from dpswd.private_curator.records.contract import NO_RANGE, check_contract
from dpswd.private_curator.records.labels import NO_CLASSES, class_count, load_labels
from dpswd.private_curator.records.opening import open_source
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.settings.permissions import check_permissions, switched_on
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.private_curator.storage.certificates import CA_CERTIFICATE, CA_KEY, SERVER_CERTIFICATE, SERVER_KEY
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.books.chain_checks import Tampering
from dpswd.shared.certificates import belong_together
from dpswd.shared.configuration import settings_of
from dpswd.shared.core.errors import DpswdError, SettingsError
from dpswd.shared.core.wire import limits
from dpswd.shared.records.problems import RecordsRefused

MIN_FREE_BYTES = 1 << 30  # stored replies grow by about 50 kB a step: room for some 20,000 steps
RENEW_BEFORE = dt.timedelta(days=30)
MAX_CLOCK_SKEW = dt.timedelta(minutes=5)  # as much as certificates allow for
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckOutcome:
    """One check's result.

    Attributes:
        check: its name.
        ok: whether serving can go on.
        text: what was found, and what to do if it is not well.
        mind: serving can go on, but the operator should look at it.
    """

    check: str
    ok: bool
    text: str
    mind: bool = False


def check(
    home: HomeDirectory, overrides: Mapping[str, str] | None = None, *, progress: Progress | None = None
) -> list[CheckOutcome]:
    """Runs every check; a failing one does not stop the others.

    Args:
        home: the curator's directory.
        overrides: settings from the command line, as `settings.load` takes them.
        progress: told how far the ledger's verification is; by default the log is.
    """
    site = _Site(home, dict(overrides or {}), progress=progress or ProgressReporter(_log.info))
    with site.opened:
        return [_examine(name, site) for name in CHECKS]


def check_before_serving(
    home: HomeDirectory, overrides: Mapping[str, str] | None = None
) -> tuple[list[CheckOutcome], Ledger]:
    """What `serve` asks before it starts: whether keys, certificates, clock and ledger may be trusted.

    Args:
        home: the curator's directory.
        overrides: settings from the command line.

    Returns:
        What the operator should know although serving can go on, and the ledger, open and verified: a large one is
        read once for both.

    Raises:
        SettingsError: with everything for which this curator must not serve.
    """
    site = _Site(home, dict(overrides or {}))
    with site.opened:
        now = replace(site, certificates_last=dt.timedelta(0))
        refused = [outcome for name in _NEEDED_TO_SERVE if not (outcome := _examine(name, now)).ok]
        if refused:
            listed = "".join(f"\n  {outcome.check}: {outcome.text}" for outcome in refused)
            raise SettingsError(
                f"this curator must not serve like this (`dpswd-curator preflight` checks more):{listed}"
            )
        soon = _examine("certificates", site)
        site.opened.pop_all()  # the ledger is no longer closed here
        return [] if soon.ok else [soon], now.ledger


_NEEDED_TO_SERVE = ("permissions", "keys", "key files", "certificates", "clock", "ledger")


def _examine(name: str, site: _Site) -> CheckOutcome:
    try:
        text = CHECKS[name](site)
        return CheckOutcome(check=name, ok=True, text=text, mind=NO_RANGE in text or NO_CLASSES in text)
    except (DpswdError, OSError, ValueError) as error:
        return CheckOutcome(check=name, ok=False, text=_explained(error))


@dataclass(frozen=True)
class _Site:
    home: HomeDirectory
    overrides: dict[str, str]
    now: Callable[[], dt.datetime] = field(default=lambda: dt.datetime.now(dt.UTC))
    certificates_last: dt.timedelta = RENEW_BEFORE
    progress: Progress = field(default_factory=lambda: ProgressReporter(_log.info))
    opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @cached_property
    def settings(self) -> CuratorSettings:
        return configuration.load(self.home.path, self.overrides)

    @cached_property
    def ledger(self) -> Ledger:
        """Opened once for all checks; "ledger" is the one that follows its chain."""
        chosen = None
        with contextlib.suppress(SettingsError):  # is a finding of its own
            chosen = self.settings.ledger
        return self.opened.enter_context(self.home.open_ledger(chosen, followed=False))


def _explained(error: Exception) -> str:
    if isinstance(error, RecordsRefused):
        return f"{error}; `dpswd-curator records inspect` names the place"
    if isinstance(error, DpswdError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"{error.filename} is missing; restore the curator's directory from a backup"
    if isinstance(error, PermissionError):
        return f"{error.filename} cannot be read by this user; run as its owner, or chown it"
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror or 'cannot be used'}; mend that, and try again"
    return f"what was found cannot be read ({error}); restore it from a backup, or report a defect"


def _settings(site: _Site) -> str:
    check_permissions(site.settings.clients, switched_on(site.settings.clients))
    return f"{len(settings_of(CuratorSettings))} settings are in order"


def _records(site: _Site) -> str:
    settings = site.settings.records
    data = target.load(settings, home=site.home.path)
    data.check_count(site.ledger.records, site.settings.records_file)
    load_labels(settings, home=site.home.path, records=data.count)
    labels = f", labels of {class_count(settings)} classes" if class_count(settings) else ""
    shape = " x ".join(map(str, data.record_shape)) or "one value"
    layout = open_source(settings, home=site.home.path).layout
    unread = (NO_CLASSES,) if layout.labels and not class_count(settings) else ()
    notes = "".join(f"; {note}" for note in (*layout.notes, *unread))
    return f"{data.count} records of shape {shape}{labels}{notes}"


def _contract(site: _Site) -> str:
    settings = site.settings.records
    home = site.home.path
    return check_contract(settings, lambda: target.load(settings, home=home), home=home)


def _ledger(site: _Site) -> str:
    # The last signature vouches for the chain of hashes before it; `ledger verify` looks at each.
    report = site.ledger.verify(every_signature=False, progress=site.progress)
    # A clock that was once wrong leaves its mark for ever; what was spent stands all the same.
    grave = [finding for finding in report.findings if finding.tampering is not Tampering.MISDATED]
    if grave:
        raise SettingsError(f"the ledger does not verify: {grave[0].text}; restore a backup")
    misdated = "".join(f"; {finding.text}" for finding in report.findings[:1])
    return f"{report.entries} entries verify{misdated}"


_REMEDIES = {
    SERVER_CERTIFICATE: "run `dpswd-curator certificates --renew-server`",
    CA_CERTIFICATE: "make a new curator: every client needs a new certificate",
    SERVER_KEY: "run `dpswd-curator certificates --renew-server`",
    CA_KEY: "restore both from one backup",
}


def _certificates(site: _Site) -> str:
    server, authority = (site.home.authority.read(name) for name in (SERVER_CERTIFICATE, CA_CERTIFICATE))
    for name, certificate in ((SERVER_CERTIFICATE, server), (CA_CERTIFICATE, authority)):
        if certificate.not_valid_after_utc < site.now() + site.certificates_last:
            raise SettingsError(f"{name} expires at {certificate.not_valid_after_utc:%Y-%m-%d}; {_REMEDIES[name]}")
    try:
        server.verify_directly_issued_by(authority)
    except Exception as error:  # cryptography raises InvalidSignature, ValueError or TypeError
        raise SettingsError(
            f"{SERVER_CERTIFICATE} was not issued by {CA_CERTIFICATE} ({type(error).__name__}); "
            f"{_REMEDIES[SERVER_CERTIFICATE]}"
        ) from error
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    shown = ", ".join(str(entry.value) for entry in names)
    return f"valid for at least {site.certificates_last.days} days; clients connect to {shown}"


def _limits(site: _Site) -> str:
    least = site.settings.limits.min_batch_size
    if least < limits.MIN_BATCH_SIZE:
        text = f"samples of {least} records are allowed, fewer than {limits.MIN_BATCH_SIZE}"
        return (
            f"{text}: a step's time depends more on each record; set limits.min_batch_size unless clients are trusted"
        )
    return f"samples have at least {least} records"


def _keys(site: _Site) -> str:
    site.home.read_ledger_key()
    for certificate_file, key_file in ((SERVER_CERTIFICATE, SERVER_KEY), (CA_CERTIFICATE, CA_KEY)):
        try:
            key = serialization.load_pem_private_key((site.home.certificates / key_file).read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise SettingsError(f"{key_file} is damaged ({type(error).__name__}); {_REMEDIES[key_file]}") from error
        if not belong_together(key, site.home.authority.read(certificate_file)):
            raise SettingsError(f"{key_file} does not belong to {certificate_file}; {_REMEDIES[key_file]}")
    return "the ledger's key is there; certificates and keys belong together"


def _key_files(site: _Site) -> str:
    for path in (site.home.ledger_key, site.home.certificates / CA_KEY, site.home.certificates / SERVER_KEY):
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0  # the ledger's may be in a token
        if mode & 0o077:
            raise SettingsError(f"{path} has mode {mode:04o}: others can read it; run chmod 600 {path}")
    return "private keys are readable by their owner only"


def _permissions(site: _Site) -> str:
    path = site.home.path
    for entry in (path, site.home.certificates):
        status = entry.stat()
        if stat.S_IMODE(status.st_mode) & 0o002:
            raise SettingsError(f"everybody can write to {entry}; run chmod o-w {entry}")
        if os.access(entry, os.W_OK | os.X_OK):
            continue
        # A volume may belong to root and be written to by this user's group; only what cannot be written is wrong.
        if status.st_uid != os.geteuid():
            raise SettingsError(
                f"{entry} belongs to user {status.st_uid}, and user {os.geteuid()}, who runs this, cannot write there; "
                "run as its owner, or chown -R it"
            )
        raise SettingsError(f"this user cannot write to {entry}; run chmod u+wx {entry}")
    return f"this user can write to {path}, and not everybody can"


def _clock(site: _Site) -> str:
    last = dt.datetime.fromisoformat(site.ledger.head().time)
    shared, now = site.settings.ledger.url is not None, site.now()
    its = site.ledger.now() if shared else now
    if shared and abs(now - its) > MAX_CLOCK_SKEW:
        raise SettingsError(
            f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, and that of the ledger's database, which decides, "
            f"{its:%Y-%m-%d %H:%M}; set the clock of the machine that is wrong (timedatectl set-ntp true)"
        )
    if last > its + MAX_CLOCK_SKEW:
        raise SettingsError(
            f"the clock {'of the database ' * shared}says {its:%Y-%m-%d %H:%M} UTC, but the ledger ends at "
            f"{last:%Y-%m-%d %H:%M}; set {'that' if shared else 'the'} clock (timedatectl set-ntp true)"
        )
    server = site.home.authority.read(SERVER_CERTIFICATE)
    if server.not_valid_before_utc > now:
        raise SettingsError(
            f"the clock says {now:%Y-%m-%d %H:%M} UTC, before {SERVER_CERTIFICATE} begins to be valid; set the clock "
            "(timedatectl set-ntp true)"
        )
    synchronised = "" if clock_is_synchronised() else "; the kernel does not know it to be synchronised: use NTP"
    return f"{now:%Y-%m-%d %H:%M} UTC, not before the ledger and the certificates{synchronised}"


def _device(site: _Site) -> str:
    from dpswd.shared.devices import resolve_device  # torch takes seconds to load

    device = resolve_device(site.settings.compute.device)
    import torch

    try:
        works = float(torch.ones(64, 64, device=device).sum()) == 64 * 64
    except RuntimeError as error:
        raise SettingsError(
            f"{device} does not compute ({type(error).__name__}); check the driver with nvidia-smi, or set "
            "compute.device to cpu"
        ) from error
    if not works:
        raise SettingsError(f"{device} computes wrong sums; do not use it: set compute.device to cpu")
    if device.type != "cuda":
        return "steps run on cpu" + ("; a CUDA device is there and not used" if torch.cuda.is_available() else "")
    from dpswd.shared.device_noise.noise import device_sampler

    kind = "one kernel" if device_sampler(device).fused else "the CPU (Triton does not work here)"
    free, _ = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    return f"steps run on {name}, {free >> 20} MiB free; it draws the CPU's noise from the same key, by {kind}"


def _worker(site: _Site) -> str:
    from dpswd.private_curator.steps.engines import examine, make_engine
    from dpswd.shared.devices import resolve_device

    compute = site.settings.compute.model_copy(update={"parallel_steps": 1})
    return examine(make_engine(compute, resolve_device(compute.device)), secret=site.home.certificates / SERVER_KEY)


def _disk(site: _Site) -> str:
    path = site.home.path
    free = shutil.disk_usage(path).free
    if free < MIN_FREE_BYTES:
        raise SettingsError(f"{path} has {free} bytes left, needed are {MIN_FREE_BYTES}; free some space")
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"preflight")
            os.fsync(file.fileno())
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written ({error.strerror}); mount it for writing, and run as its owner"
        ) from error
    return f"{free // (1 << 20)} MiB free, and written to"


def _address(site: _Site) -> str:
    listen = site.settings.listen
    if _serving(site.home):
        return f"this curator serves already, at {site.home.address.read_text(encoding='ascii').strip()}"
    check_free(listen.host, listen.port, section="listen")
    return f"{listen.host} port {listen.port} is free"


def _watching(site: _Site) -> str:
    settings = site.settings
    shown = []
    if settings.metrics.enabled:
        if not _serving(site.home):
            check_free(settings.metrics.host, settings.metrics.port, section="metrics")
        shown.append(f"metrics at {settings.metrics.host}:{settings.metrics.port}")
    tracing = tracing_of(settings.tracing)
    if tracing is not None:
        tracing.close()
        shown.append(f"traces to {settings.tracing.endpoint}")
    return ", ".join(shown) or "neither metrics nor traces are on"


def _serving(home: HomeDirectory) -> bool:
    """Whether a process listens at the address that this home's curator has written."""
    try:
        host, _, port = home.address.read_text(encoding="ascii").strip().rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1):
            return True
    except (OSError, ValueError):
        return False


CHECKS: dict[str, Callable[[_Site], str]] = {
    "settings": _settings,
    "permissions": _permissions,
    "keys": _keys,
    "key files": _key_files,
    "certificates": _certificates,
    "clock": _clock,
    "ledger": _ledger,
    "records": _records,
    "data contract": _contract,
    "limits": _limits,
    "device": _device,
    "extraction worker": _worker,
    "disk": _disk,
    "address": _address,
    "watching": _watching,
}
"""Every check by name, in the order in which they are shown."""
