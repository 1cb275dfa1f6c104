"""Metrics and traces of one serving curator, put together from its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from private_curator.ledger.ledger import Ledger
from private_curator.observability.metrics import Metrics, MetricsServer
from private_curator.observability.requests import RequestWatch
from private_curator.settings.groups import TracingSettings
from private_curator.settings.tree import CuratorSettings
from private_curator.storage.home_directory import HomeDirectory
from shared.errors import SettingsError

if TYPE_CHECKING:
    from private_curator.observability.tracing import Tracing


class Watch:
    """What watches a curator from its start to its end.

    Args:
        home: the curator's directory.
        settings: whether there are metrics and traces, and where.
        ledger: budgets and runs.
        service: the full name of the gRPC service.
        restarts: how many extraction workers were replaced since the start.

    Raises:
        SettingsError: tracing is wanted and not installed.
    """

    def __init__(
        self,
        home: HomeDirectory,
        settings: CuratorSettings,
        *,
        ledger: Ledger,
        service: str,
        restarts: Callable[[], int] = lambda: 0,
    ) -> None:
        self.metrics = Metrics(home, ledger, restarts=restarts)
        self._home = home
        self._settings = settings
        self._tracing = tracing_of(settings.tracing)
        self._server: MetricsServer | None = None
        self.interceptor = RequestWatch(service, metrics=self.metrics, tracing=self._tracing)
        """For the gRPC server."""

    def start(self) -> None:
        """Serves metrics, where the settings say so.

        Raises:
            SettingsError: their address cannot be bound.
        """
        if self._settings.metrics.enabled:
            self._server = MetricsServer(self.metrics, self._settings.metrics, self._home)

    def stop(self) -> None:
        """Ends both; may be called more than once."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._tracing is not None:
            self._tracing.close()
            self._tracing = None


def tracing_of(settings: TracingSettings) -> Tracing | None:
    """What sends spans; None where the settings name no collector.

    Raises:
        SettingsError: dpswd[tracing] is not installed.
    """
    if settings.endpoint is None:
        return None
    try:
        from private_curator.observability.tracing import Tracing
    except ImportError as error:
        raise SettingsError(
            "tracing.endpoint is set, but OpenTelemetry is not installed; install dpswd[tracing], or leave it out"
        ) from error
    return Tracing(settings)
