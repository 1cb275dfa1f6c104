"""The table of errors is complete, and each error of it arrives as it left."""

from __future__ import annotations

from concurrent import futures

import grpc
import pytest
from grpc_status import rpc_status

from dpswd.shared.core import errors
from dpswd.shared.protocol.status import REASONS, from_rpc_error, incident, reason_for, to_status

SAMPLES = {
    errors.BudgetExhausted: errors.BudgetExhausted(
        requested=1.25, spent=0.5, remaining=0.5, steps_that_fit=7, scope="client"
    ),
    errors.RequestInvalid: errors.RequestInvalid((("a.b", "is 0; allowed are 1 to 3"), ("c", "is missing"))),
}


def raised_through_grpc(status):
    """What a client catches when a real server aborts with the status."""

    def handler(_request, context):
        context.abort_with_status(rpc_status.to_status(status))

    return failed_call(handler)


def failed_call(handler):
    """What a client catches when a real server's handler aborts."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    method = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Call": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/test.Service/Call")(b"", timeout=60)
            return caught.value
    finally:
        server.stop(None)


def test_every_protocol_error_is_in_the_table():
    listed = {row.error for row in REASONS}
    tree = set(errors.ProtocolError.__subclasses__())
    assert tree <= listed
    assert len({row.reason for row in REASONS}) == len(REASONS)


@pytest.mark.parametrize("row", REASONS, ids=lambda row: row.reason)
def test_an_error_arrives_as_it_left(row):
    error = SAMPLES.get(row.error) or row.error("what was wrong")
    call = raised_through_grpc(to_status(error))
    assert call.code() is row.code
    arrived = from_rpc_error(call)
    assert type(arrived) is row.error
    assert str(arrived) == str(error)


def test_an_unavailable_ledger_is_retryable():
    row = reason_for(errors.LedgerUnavailable("disk full"))
    assert row is not None
    assert row.retryable


def test_an_unexpected_error_has_no_row():
    assert reason_for(RuntimeError("record 17 is 0.25")) is None
    with pytest.raises(KeyError):
        to_status(errors.RestoreRefused("entry 3"))


def test_an_incident_tells_its_number_alone():
    arrived = from_rpc_error(raised_through_grpc(incident("abc123")))
    assert type(arrived) is errors.CuratorFault
    assert str(arrived) == "internal error, incident abc123"


def test_a_server_that_is_not_there_is_unavailable():
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/test.Service/Call")(b"", timeout=5)
        assert isinstance(from_rpc_error(caught.value), errors.CuratorUnavailable)


@pytest.mark.parametrize(
    ("details", "error"),
    [
        ("Concurrent RPC limit exceeded!", errors.CuratorUnavailable),
        ("Sent message larger than max (9 vs. 8)", errors.ProtocolError),
    ],
)
def test_grpcs_own_limits_are_no_budget(details, error):
    def handler(_request, context):
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, details)

    assert type(from_rpc_error(failed_call(handler))) is error


def test_a_text_that_quotes_a_lone_surrogate_is_sent():
    status = to_status(errors.RequestInvalid((("graph.\ud83d", "the name '\udd4f' is unknown"),)))
    assert "\\udd4f" in status.message
