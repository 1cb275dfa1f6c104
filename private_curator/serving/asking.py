"""What a request was and how it ended, for the operator: the log, the book of asks, the hooks.

Made of public values: what the client sent or declared, its certificate and address, and a price. Nothing of it depends
on a record, and nothing of it is told to a client.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import Message

from dpswd.private_curator.observability.requests import OK
from dpswd.private_curator.serving.authentication import presented
from dpswd.private_curator.storage.asks import Ask
from dpswd.shared.core.errors import BudgetExhausted, rounded
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.words import one_line

_REMEMBERED = 1024  # dry runs whose repeats are told at the level of details
_log = logging.getLogger(__name__)


def described(
    operation: str,
    *,
    peer: Mapping[str, Sequence[bytes]],
    place: str,
    said: Mapping[str, Any],
    reply: Message | None,
    error: Exception | None,
    outcome: str,
    time: dt.datetime,
) -> Ask:
    """One request.

    Args:
        operation: the RPC.
        peer: gRPC's authentication context of the connection.
        place: gRPC's name of the other end.
        said: see `said_by`; nothing where the request was refused before it was parsed.
        reply: of the handler; None where it was refused.
        error: what the handler met.
        outcome: OK, or the refusal's reason.
        time: of the request.
    """
    client, fingerprint = presented(peer)
    ask = Ask(
        time=time,
        operation=operation,
        client=client,
        outcome=outcome,
        fingerprint=fingerprint,
        peer=host_of(place),
        **said,
    )
    if isinstance(reply, pb.OpenRunResponse):
        ask = replace(ask, run=reply.run_id, epsilon=reply.epsilon)
    if isinstance(error, BudgetExhausted):
        ask = replace(ask, epsilon=error.requested)
    return ask


def said_by(request: Message) -> dict[str, Any]:
    """What a request says of itself, as fields of an `Ask`: it is small, whatever else the request brings."""
    if isinstance(request, pb.OpenRunRequest):
        declared, purpose = _words(request.parameters.mechanism), _words(request.purpose)
        return {"dry_run": request.validate_only, "mechanism": declared, "purpose": purpose}
    if isinstance(request, pb.DrawStepRequest):
        return {"run": _words(request.run_id)}
    if isinstance(request, pb.RequestBudgetRequest) and request.epsilon:
        return {"epsilon": request.epsilon, "purpose": _words(request.purpose)}
    return {}


def host_of(place: str) -> str:
    """The address in gRPC's name of a peer, such as ``ipv6:%5B::1%5D:50123``, without the port."""
    text = urllib.parse.unquote(place)
    for scheme in ("ipv4:", "ipv6:"):
        if text.startswith(scheme):
            return text.removeprefix(scheme).rpartition(":")[0].strip("[]")
    return text


@dataclass(frozen=True)
class AskLog:
    """Tells the operator of each request: one line for a charged run and for each refusal, the rest as details.

    Attributes:
        listeners: further ones, called with each ask.
        odd: called with the words for a ledger that is not as it should be.
    """

    listeners: tuple[Callable[[Ask], object], ...] = ()
    odd: Callable[[str], object] = lambda _: None
    _dry: OrderedDict[tuple[str, str, float | None], None] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def tell(self, ask: Ask) -> None:
        """Writes a line, and calls the listeners."""
        fields = {
            "operation": ask.operation,
            "client": ask.client,
            "outcome": ask.outcome,
            "run": ask.run,
            "epsilon": "" if ask.epsilon is None else rounded(ask.epsilon, up=True),
            "release": ask.mechanism,
            "charge": _charge(ask),
            "purpose": ask.purpose,
            "certificate": ask.fingerprint,
            "peer": ask.peer,
        }
        text = " ".join(f"{name} {fields[name]}" for name in _SHOWN if fields[name])
        who = ask.client or "nobody"
        if self._of_note(ask):
            _log.info("%s for %s: %s; %s", ask.operation, who, ask.outcome, text, extra=fields)
        else:
            _log.debug("%s for %s: %s; %s", ask.operation, who, ask.outcome, text, extra=fields)
        for listener in self.listeners:
            listener(ask)

    def _of_note(self, ask: Ask) -> bool:
        """Charges and refusals, and the first of equal dry runs: a client asks prices again and again."""
        if ask.outcome != OK or ask.operation != "OpenRun" or not ask.dry_run:
            return ask.outcome != OK or ask.operation in ("OpenRun", "RequestBudget")
        key = ask.client, ask.mechanism, ask.epsilon
        with self._lock:
            new = key not in self._dry
            self._dry[key] = None
            if len(self._dry) > _REMEMBERED:
                self._dry.popitem(last=False)
        return new


_SHOWN = ("charge", "run", "release", "epsilon", "certificate", "peer")


def _charge(ask: Ask) -> str:
    if ask.operation != "OpenRun":
        return ""
    return "dry run" if ask.dry_run else "charge" if ask.outcome == OK else "no charge"


def _words(text: str) -> str:
    """A client's words as far as they are one: what is refused need not be printable."""
    return text if not one_line("", text) else ""
