"""A span for each request, with the allowed attributes only; real spans through the SDK's in-memory exporter."""

from __future__ import annotations

import re

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dpswd.private_curator.observability.metrics import Metrics
from dpswd.private_curator.observability.requests import OUTCOMES, RequestWatch, tracing_of
from dpswd.private_curator.observability.tracing import RESOURCE_ATTRIBUTES, SPAN_ATTRIBUTES, Tracing
from dpswd.private_curator.settings import tree as settings
from dpswd.private_curator.settings.groups import RecordsSettings, TracingSettings
from dpswd.private_curator.storage import home_directory as home
from dpswd.shared.core import errors
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.protocol import status

SERVICE = "dpswd.curator.v1.CuratorService"


@pytest.fixture
def made(tmp_path):
    np.save(tmp_path / "r.npy", np.zeros((5, 2), np.float32))
    records = RecordsSettings(file=tmp_path / "r.npy")
    return home.create(tmp_path / "home", records=records, epsilon=1.0, delta=1e-5, names=["localhost"])


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter):
    return Tracing(TracingSettings(endpoint="http://localhost:1"), exporter=exporter)


class Details:
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = (("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"),)


class Context:
    def __init__(self) -> None:
        self.sent = ()

    def trailing_metadata(self):
        return self.sent


class Clock:
    """0.3 seconds pass between two looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.3
        return self.now


def _call(watch, method, behaviour):
    context = Context()
    handler = watch.intercept_service(lambda _: grpc.stream_unary_rpc_method_handler(behaviour), Details(method))
    return handler.stream_unary(iter([b""]), context)


def test_a_span_tells_the_rpc_and_its_outcome_and_nothing_else(made, tracing, exporter):
    def refuse(_, context):
        refusal = status.to_status(errors.RunFinished("secret 4711"))
        context.sent = (("grpc-status-details-bin", refusal.SerializeToString()),)
        raise RuntimeError("secret 4711")

    def fail(_, context):
        context.sent = (("grpc-status-details-bin", status.incident("ab12").SerializeToString()),)
        raise RuntimeError("secret 4711")

    with made.open_ledger() as ledger:
        metrics = Metrics(made, ledger)
    watch = RequestWatch(SERVICE, metrics=metrics, tracing=tracing, clock=Clock(), wall_clock_ns=lambda: 10**18)
    assert _call(watch, f"/{SERVICE}/Describe", lambda request, context: b"reply") == b"reply"
    for behaviour in (refuse, fail):
        with pytest.raises(RuntimeError):
            _call(watch, f"/{SERVICE}/DrawStep", behaviour)
    _call(watch, "/grpc.health.v1.Health/Check", lambda request, context: b"unseen")
    tracing.close()
    spans = exporter.get_finished_spans()
    assert [span.attributes["dpswd.outcome"] for span in spans] == ["OK", "RUN_FINISHED", "INTERNAL"]
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
    for span in spans:
        assert span.attributes.keys() == SPAN_ATTRIBUTES
        assert span.attributes["dpswd.outcome"] in OUTCOMES
        assert span.resource.attributes.keys() == RESOURCE_ATTRIBUTES
        assert (span.events, span.links) == ((), ())
        assert span.parent is None  # the client's own trace is not taken over
        assert span.end_time - span.start_time == 500_000_000  # 0.3 s, rounded up
        text = re.sub(r"0x[0-9a-f]+", "", span.to_json())  # its ids: random digits, which may hold any number
        assert "secret" not in text
        assert "4711" not in text


def test_without_an_endpoint_there_is_no_tracing(made):
    assert tracing_of(settings.load(made.path).tracing) is None


def test_a_collector_that_is_gone_does_not_hold_up_the_end(made):
    tracing = tracing_of(settings.load(made.path, {"tracing.endpoint": "http://127.0.0.1:9"}).tracing)
    tracing.span(SERVICE, "Describe", "OK", begun_ns=1, ended_ns=2)
    tracing.close()


@pytest.mark.parametrize("endpoint", ["collector:4317", "http://", "http://a b"])
def test_an_endpoint_is_a_url(made, endpoint):
    with pytest.raises(SettingsError, match=r"tracing\.endpoint"):
        settings.load(made.path, {"tracing.endpoint": endpoint})
