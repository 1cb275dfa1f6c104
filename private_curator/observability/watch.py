"""Metrics and traces of one serving curator, put together from its settings."""

from __future__ import annotations

from collections.abc import Callable

from private_curator.observability.metrics import Books, Metrics, MetricsServer
from private_curator.observability.requests import RequestWatch
from private_curator.observability.tracing import Tracing
from private_curator.operator.home_directory import Home
from private_curator.settings.tree import CuratorSettings


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
        home: Home,
        settings: CuratorSettings,
        *,
        ledger: Books,
        service: str,
        restarts: Callable[[], int] = lambda: 0,
    ) -> None:
        self.metrics = Metrics(home, ledger, restarts=restarts)
        self._home = home
        self._settings = settings
        self._tracing = Tracing(settings.tracing) if settings.tracing.endpoint is not None else None
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
