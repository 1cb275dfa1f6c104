"""Errors on the wire: one table from the error tree to google.rpc.Status and back.

The reasons never change meaning; docs/errors has a page for each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from dpswd.shared.core import errors

DOMAIN = "dpswd"

_Detail = TypeVar("_Detail", error_details_pb2.ErrorInfo, error_details_pb2.BadRequest)


@dataclass(frozen=True)
class Reason:
    """How one class of error travels.

    Attributes:
        reason: ErrorInfo.reason.
        code: the gRPC status code.
        error: the class that the client raises.
        retryable: whether the same request, with the same id, may succeed later without a change.
    """

    reason: str
    code: grpc.StatusCode
    error: type[errors.DpswdError]
    retryable: bool = False


REASONS: tuple[Reason, ...] = (
    Reason("CREDENTIALS_INVALID", grpc.StatusCode.UNAUTHENTICATED, errors.CredentialsInvalid),
    Reason("GRANT_NOT_HELD", grpc.StatusCode.PERMISSION_DENIED, errors.GrantNotHeld),
    Reason("REQUEST_INVALID", grpc.StatusCode.INVALID_ARGUMENT, errors.RequestInvalid),
    Reason("EXTRACTOR_UNKNOWN", grpc.StatusCode.FAILED_PRECONDITION, errors.ExtractorUnknown),
    Reason("EXTRACTOR_NOT_APPROVED", grpc.StatusCode.FAILED_PRECONDITION, errors.ExtractorNotApproved),
    Reason("RUN_FINISHED", grpc.StatusCode.FAILED_PRECONDITION, errors.RunFinished),
    Reason("BUDGET_EXHAUSTED", grpc.StatusCode.RESOURCE_EXHAUSTED, errors.BudgetExhausted),
    Reason("ACCOUNTANTS_DISAGREE", grpc.StatusCode.FAILED_PRECONDITION, errors.AccountantsDisagree),
    Reason("LEDGER_REFUSED", grpc.StatusCode.FAILED_PRECONDITION, errors.LedgerCorrupt),
    Reason("REQUEST_ID_REUSED", grpc.StatusCode.ALREADY_EXISTS, errors.RequestIdReused),
    Reason("REQUEST_IN_PROGRESS", grpc.StatusCode.ABORTED, errors.RequestInProgress, retryable=True),
    Reason("LEDGER_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, errors.CuratorUnavailable, retryable=True),
    Reason("EXTRACTION_STOPPED", grpc.StatusCode.UNAVAILABLE, errors.ExtractionStopped, retryable=True),
    Reason("TOO_MANY_REQUESTS", grpc.StatusCode.UNAVAILABLE, errors.TooManyRequests, retryable=True),
    Reason("STEP_GIVEN_UP", grpc.StatusCode.FAILED_PRECONDITION, errors.StepGivenUp),
    Reason("INTERNAL", grpc.StatusCode.INTERNAL, errors.CuratorFault),
)
_BY_REASON = {row.reason: row for row in REASONS}
_BY_ERROR = {row.error: row for row in REASONS}
# The curator's own ledger error reaches the client as "unavailable": nothing was spent, try again.
_BY_ERROR[errors.LedgerUnavailable] = _BY_REASON["LEDGER_UNAVAILABLE"]

# What the client makes of a failure that has no ErrorInfo: it came from gRPC itself, not from a curator.
_TRANSPORT: dict[grpc.StatusCode, type[errors.DpswdError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.CuratorUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.CuratorUnavailable,
    grpc.StatusCode.CANCELLED: errors.CuratorUnavailable,
    # Without ErrorInfo this is gRPC's own limit on calls at a time, not a budget.
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.CuratorUnavailable,
    grpc.StatusCode.UNAUTHENTICATED: errors.CredentialsInvalid,
    grpc.StatusCode.PERMISSION_DENIED: errors.GrantNotHeld,
}


def reason_for(error: BaseException) -> Reason | None:
    """The row for a curator's error, or None when it must not reach the client in its own words."""
    for base in type(error).__mro__:
        if base in _BY_ERROR:
            return _BY_ERROR[base]
    return None


def incident(number: str) -> status_pb2.Status:
    """What the client sees of an unexpected error: a constant text and a number for the operator's log."""
    status = status_pb2.Status(code=grpc.StatusCode.INTERNAL.value[0], message=f"internal error, incident {number}")
    info = error_details_pb2.ErrorInfo(reason="INTERNAL", domain=DOMAIN, metadata={"incident": number})
    status.details.add().Pack(info)
    return status


def to_status(error: errors.DpswdError) -> status_pb2.Status:
    """Encodes an error of the table.

    Raises:
        KeyError: the error is not in the table; use `incident`.
    """
    row = reason_for(error)
    if row is None:
        raise KeyError(type(error).__name__)
    info = error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN)
    status = status_pb2.Status(code=row.code.value[0], message=_sendable(str(error)))
    if isinstance(error, errors.BudgetExhausted):
        info.metadata.update({field: str(value) for field, value in asdict(error).items()})
    status.details.add().Pack(info)
    if isinstance(error, errors.RequestInvalid):
        bad = error_details_pb2.BadRequest()
        for field, text in error.violations:
            bad.field_violations.add(field=_sendable(field), description=_sendable(text))
        status.details.add().Pack(bad)
    return status


def _sendable(text: str) -> str:
    """A text that quotes a request may hold lone surrogates (from JSON), which UTF-8 cannot spell."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def from_rpc_error(error: grpc.RpcError) -> errors.DpswdError:
    """The client's exception for a failed call.

    A failure without ErrorInfo came from the network or the TLS layer; its text is kept.
    """
    try:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
    except ValueError:  # the trailing metadata disagree with the call: treat it as a transport failure
        status = None
    if status is not None:
        decoded = _decode(status)
        if decoded is not None:
            return decoded
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call) else None) or str(error)
    kind = _TRANSPORT.get(code, errors.ProtocolError)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        kind = errors.ProtocolError  # a message over the limit does not shrink by waiting
    return kind(f"{code.name}: {details}")


def _decode(status: status_pb2.Status) -> errors.DpswdError | None:
    info = _find(status, error_details_pb2.ErrorInfo())
    if info is None or info.domain != DOMAIN or info.reason not in _BY_REASON:
        return None
    kind = _BY_REASON[info.reason].error
    if kind is errors.BudgetExhausted:
        sums = {name: float(info.metadata[name]) for name in ("requested", "spent", "remaining")}
        steps = int(info.metadata["steps_that_fit"])
        return errors.BudgetExhausted(**sums, steps_that_fit=steps, scope=info.metadata["scope"])
    if kind is errors.RequestInvalid:
        bad = _find(status, error_details_pb2.BadRequest())
        violations = tuple((v.field, v.description) for v in bad.field_violations) if bad is not None else ()
        return errors.RequestInvalid(violations or (("request", status.message),))
    return kind(status.message)


def _find(status: status_pb2.Status, kind: _Detail) -> _Detail | None:
    for detail in status.details:
        if detail.Is(kind.DESCRIPTOR):
            detail.Unpack(kind)
            return kind
    return None
