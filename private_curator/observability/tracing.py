"""OpenTelemetry spans: one for each request, with the names of its RPC and outcome and nothing else.

Optional: needs dpswd[tracing] and a collector's address in ``tracing.endpoint``. A client's own trace headers are not
looked at, and no exception is recorded.
"""

from __future__ import annotations

from importlib import metadata

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode

from dpswd.private_curator.settings.groups import TracingSettings

SPAN_ATTRIBUTES = frozenset({"rpc.system", "rpc.service", "rpc.method", "dpswd.outcome"})
"""All attributes that a span has."""
RESOURCE_ATTRIBUTES = frozenset({"service.name", "service.version"})
"""All attributes of the process that sends them."""

_SEND_S = 1.0
_FLUSH_MS = 2000
"""A collector that is gone must not hold up the curator's end."""


class Tracing:
    """Sends spans to a collector, in batches and in the background.

    Args:
        settings: where to.
        exporter: takes the spans; by default the OTLP exporter for the settings' endpoint.
    """

    def __init__(self, settings: TracingSettings, *, exporter: SpanExporter | None = None) -> None:
        # Not Resource.create: it would add what the environment says and what it finds out about the machine.
        resource = Resource({"service.name": settings.service_name, "service.version": metadata.version("dpswd")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        endpoint = settings.endpoint or ""
        exporter = exporter or OTLPSpanExporter(
            endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=_SEND_S
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("dpswd")

    def span(self, service: str, operation: str, outcome: str, *, begun_ns: int, ended_ns: int) -> None:
        """Records one request that has ended.

        Args:
            service: the gRPC service.
            operation: the RPC.
            outcome: OK or the reason of the refusal.
            begun_ns: wall clock, nanoseconds.
            ended_ns: the same, its distance rounded up by the caller.
        """
        span = self._tracer.start_span(
            f"{service}/{operation}",
            context=Context(),  # a trace of its own
            kind=SpanKind.SERVER,
            start_time=begun_ns,
            attributes={
                "rpc.system": "grpc",
                "rpc.service": service,
                "rpc.method": operation,
                "dpswd.outcome": outcome,
            },
        )
        if outcome == "INTERNAL":
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=ended_ns)

    def close(self) -> None:
        """Sends what is left, for a moment, and stops."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()
