"""Every request seen from outside its handler: how long it took with its padding, and how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from dpswd.private_curator.observability.metrics import TIME_STEP_S, Metrics
from dpswd.private_curator.settings.groups import TracingSettings
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.protocol.status import REASONS

if TYPE_CHECKING:
    from dpswd.private_curator.observability.tracing import Tracing

OK = "OK"
UNKNOWN = "UNKNOWN"
"""The outcome of a request that ended without a reason of ours; none should."""
OUTCOMES = frozenset({OK, UNKNOWN} | {row.reason for row in REASONS})
"""All outcomes that metrics, logs and spans name."""

_DETAILS = "grpc-status-details-bin"


class RequestWatch(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Counts, times and traces the calls of one service, which are streams of one request.

    Args:
        service: the full name of the gRPC service; calls of others pass unseen.
        metrics: counts and times.
        tracing: spans, or None.
        clock: seconds that only grow.
        wall_clock_ns: the time of day.
    """

    def __init__(
        self,
        service: str,
        *,
        metrics: Metrics,
        tracing: Tracing | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._tracing = tracing
        self._clock = clock
        self._wall_clock_ns = wall_clock_ns

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wraps the handler of one call."""
        handler = continuation(handler_call_details)
        service, _, operation = handler_call_details.method.lstrip("/").partition("/")
        if handler is None or service != self._service or handler.stream_unary is None:
            return handler

        def watched(requests: Any, context: Any) -> Any:
            begun, begun_ns = self._clock(), self._wall_clock_ns()
            outcome = UNKNOWN
            try:
                reply = handler.stream_unary(requests, context)
                outcome = OK
            except BaseException:
                outcome = outcome_of(context)
                raise
            else:
                return reply
            finally:
                self._ended(operation, outcome, seconds=rounded_up(self._clock() - begun), begun_ns=begun_ns)

        return grpc.stream_unary_rpc_method_handler(
            watched, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )

    def _ended(self, operation: str, outcome: str, *, seconds: float, begun_ns: int) -> None:
        self._metrics.answered(operation, outcome, seconds)
        if self._tracing is not None:
            ended_ns = begun_ns + int(seconds * 1e9)
            self._tracing.span(self._service, operation, outcome, begun_ns=begun_ns, ended_ns=ended_ns)


def outcome_of(context: Any) -> str:
    """The reason in the status that a handler aborted with, by gRPC's context of the call."""
    for name, value in context.trailing_metadata() or ():
        if name != _DETAILS:
            continue
        status = status_pb2.Status.FromString(value)
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.reason in OUTCOMES:
                return str(info.reason)
    return UNKNOWN


def rounded_up(seconds: float) -> float:
    """Up to the next multiple of `TIME_STEP_S`."""
    return max(1, math.ceil(seconds / TIME_STEP_S)) * TIME_STEP_S


def tracing_of(settings: TracingSettings) -> Tracing | None:
    """What sends spans; None where the settings name no collector.

    Raises:
        SettingsError: dpswd[tracing] is not installed.
    """
    if settings.endpoint is None:
        return None
    try:
        from dpswd.private_curator.observability.tracing import Tracing
    except ImportError as error:
        raise SettingsError(
            "tracing.endpoint is set, but OpenTelemetry is not installed; install dpswd[tracing], or leave it out"
        ) from error
    return Tracing(settings)
