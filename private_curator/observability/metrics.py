"""Prometheus metrics. `CATALOGUE` is all there is. docs/operator/monitoring.md argues that each is data-independent.

Figures of the budget, of runs and of steps are read from the ledger when they are asked for, so that they are right
after a restart and with several curators on one ledger. No figure of the process itself is served (its processor time
and memory may depend on the records), and none of Python's.
"""

from __future__ import annotations

import datetime as dt
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dpswd.private_curator.books.figures import AccountStatus, LedgerStatus
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import DataSetState
from dpswd.private_curator.settings.groups import MetricsSettings
from dpswd.private_curator.storage.certificates import CA_CERTIFICATE, SERVER_CERTIFICATE
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.private_curator.storage.incidents import IncidentBook
from dpswd.shared.core.errors import LedgerError, SettingsError
from dpswd.shared.files import write_public

METRICS_ADDRESS_FILE = "metrics-address"

TIME_STEP_S = 0.25
"""Times are rounded up to multiples of this: finer differences are not the operator's, but the records'."""
BUCKETS_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Described:
    """One metric of the catalogue.

    Attributes:
        kind: counter, histogram or gauge.
        labels: their names.
        help: what it counts, with its unit.
    """

    kind: str
    labels: tuple[str, ...]
    help: str


CATALOGUE: dict[str, Described] = {
    "dpswd_build_info": Described("gauge", ("version",), "1; the version of the curator's software."),
    "dpswd_requests_total": Described(
        "counter", ("operation", "outcome"), "Requests answered, by RPC and by OK or the reason of the refusal."
    ),
    "dpswd_request_seconds": Described(
        "histogram", ("operation",), "Seconds to the reply of an RPC, its padding included, rounded up to 0.25."
    ),
    "dpswd_worker_restarts_total": Described(
        "counter", (), "Extraction workers that were ended and replaced since the start."
    ),
    "dpswd_ledger_up": Described("gauge", (), "1 while the ledger can be read; else the figures from it are missing."),
    "dpswd_data_set_state": Described("gauge", ("state",), "1 for the present state: open, frozen or ended."),
    "dpswd_budget_epsilon": Described("gauge", ("scope", "client"), "Epsilon of the budget."),
    "dpswd_budget_epsilon_spent": Described("gauge", ("scope", "client"), "Epsilon spent, at the budget's delta."),
    "dpswd_budget_epsilon_remaining": Described(
        "gauge", ("scope", "client"), "Epsilon left at the budget's delta; 0 where nothing may be spent."
    ),
    "dpswd_runs": Described("gauge", (), "Runs charged in the data set's life."),
    "dpswd_steps_charged": Described("gauge", (), "Steps of all runs charged."),
    "dpswd_steps_used": Described("gauge", (), "Steps begun in the data set's life."),
    "dpswd_step_attempts_repeated": Described("gauge", (), "Attempts beyond a step's first, after crashes and errors."),
    "dpswd_clients": Described("gauge", (), "Registered clients that are not revoked."),
    "dpswd_incidents": Described("gauge", (), "Incidents in the curator's book."),
    "dpswd_certificate_expiry_timestamp_seconds": Described(
        "gauge", ("certificate",), "End of validity, seconds since 1970: server or ca."
    ),
    "dpswd_disk_free_bytes": Described("gauge", (), "Bytes free where the curator's directory is."),
}


class Metrics:
    """The counters of this process, and what is read from the home directory when somebody asks.

    Args:
        home: the curator's directory.
        ledger: budgets and runs.
        restarts: how many extraction workers were replaced since the start.
    """

    def __init__(self, home: HomeDirectory, ledger: Ledger, *, restarts: Callable[[], int] = lambda: 0) -> None:
        self._home = home
        self._ledger = ledger
        self._restarts = restarts
        self._lock = threading.Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "dpswd_requests", _help("dpswd_requests_total"), ["operation", "outcome"], registry=self.registry
        )
        self._seconds = Histogram(
            "dpswd_request_seconds",
            _help("dpswd_request_seconds"),
            ["operation"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.registry.register(self)

    def answered(self, operation: str, outcome: str, seconds: float) -> None:
        """Counts one request.

        Args:
            operation: the RPC's name.
            outcome: OK or the reason of the refusal.
            seconds: rounded up to `TIME_STEP_S` by the caller.
        """
        self._requests.labels(operation, outcome).inc()
        self._seconds.labels(operation).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """The figures now; one scrape at a time."""
        with self._lock:
            yield _gauge("dpswd_build_info", [((metadata.version("dpswd"),), 1)])
            try:
                status: LedgerStatus | None = self._ledger.status()
            except LedgerError as error:
                _log.warning("the ledger cannot be read for metrics: %s", type(error).__qualname__)
                status = None
            yield _gauge("dpswd_ledger_up", [((), status is not None)])
            if status is not None:
                yield from _ledger_figures(status)
            name = "dpswd_worker_restarts_total"
            yield CounterMetricFamily(name, _help(name), value=self._restarts())
            yield _gauge("dpswd_incidents", [((), len(IncidentBook(self._home.incidents).all()))])
            yield _gauge("dpswd_certificate_expiry_timestamp_seconds", list(_expiries(self._home)))
            yield _gauge("dpswd_disk_free_bytes", [((), shutil.disk_usage(self._home.path).free)])


class MetricsServer:
    """Serves metrics over HTTP, on a port of their own.

    Args:
        metrics: what is served.
        settings: where.
        home: gets the address file.

    Raises:
        SettingsError: the address cannot be bound.
    """

    def __init__(self, metrics: Metrics, settings: MetricsSettings, home: HomeDirectory) -> None:
        try:
            self._server, self._thread = start_http_server(settings.port, addr=settings.host, registry=metrics.registry)
        except OSError as error:
            raise SettingsError(
                f"metrics.host {settings.host!r} and metrics.port {settings.port} cannot be bound ({error.strerror}); "
                "free the port or choose another (0 takes a free one)"
            ) from error
        host, port = self._server.server_address[:2]
        self.address = f"{host!s}:{port}"
        """host:port that is listened on."""
        self._file: Path = home.path / METRICS_ADDRESS_FILE
        write_public(self._file, f"{self.address}\n".encode())

    def close(self) -> None:
        """Stops listening."""
        self._file.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _ledger_figures(status: LedgerStatus) -> Iterator[Metric]:
    yield _gauge("dpswd_data_set_state", [((state.value,), status.state is state) for state in DataSetState])
    accounts: list[tuple[tuple[str, str], AccountStatus]] = [(("data set", ""), status.data_set)]
    accounts += [
        (("client", client.name), account)
        for client, account in status.clients
        if account is not None and not client.revoked
    ]
    for figure in ("epsilon", "epsilon_spent", "epsilon_remaining"):
        yield _gauge(f"dpswd_budget_{figure}", [(labels, getattr(account, figure)) for labels, account in accounts])
    yield _gauge("dpswd_runs", [((), status.runs)])
    yield _gauge("dpswd_steps_charged", [((), status.steps_charged)])
    yield _gauge("dpswd_steps_used", [((), status.steps_used)])
    yield _gauge("dpswd_step_attempts_repeated", [((), status.steps_repeated)])
    yield _gauge("dpswd_clients", [((), sum(not client.revoked for client, _ in status.clients))])


def _expiries(home: HomeDirectory) -> Iterator[tuple[tuple[str, ...], float]]:
    for label, name in (("server", SERVER_CERTIFICATE), ("ca", CA_CERTIFICATE)):
        try:
            certificate = home.authority.read(name)
        except (OSError, ValueError):
            # Left out: an alert on the missing figure tells more than a time that is none.
            _log.warning("%s cannot be read for metrics", name)
            continue
        yield (label,), certificate.not_valid_after_utc.astimezone(dt.UTC).timestamp()


def _gauge(name: str, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, _help(name), labels=CATALOGUE[name].labels)
    for labels, value in values:
        family.add_metric(labels, float(value))
    return family


def _help(name: str) -> str:
    return CATALOGUE[name].help
