"""How requests reach a curator: over gRPC, to a mock in this process, or from one rank of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from dpswd.public_client.curator.connection import Patience, call
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.core.wire.v1 import curator_pb2_grpc as rpc

REPLIES: Mapping[str, type[Message]] = {
    "Describe": pb.DescribeResponse,
    "UploadExtractor": pb.UploadExtractorResponse,
    "OpenRun": pb.OpenRunResponse,
    "DrawStep": pb.DrawStepResponse,
    "RequestBudget": pb.RequestBudgetResponse,
}
"""The reply's type of each RPC."""


@dataclass(frozen=True)
class Exchange:
    """A request as it was sent, and its reply.

    Attributes:
        request: where several ranks ask as one, the first rank's.
        reply: of the RPC's type.
    """

    request: Any
    reply: Any


class Transport(Protocol):
    """Carries requests to one curator."""

    def exchange(self, method: str, request: Message, *, patience: Patience | None = None) -> Exchange:
        """Sends a request until it is answered, refused for good, or patience ends.

        Args:
            method: the RPC's name.
            request: of that RPC's type.
            patience: instead of the transport's own.

        Raises:
            DpswdError: the curator's refusal as its typed error, or the last failure to reach it.
        """
        ...

    def close(self) -> None:
        """Closes the connection; runs stay as they are at the curator."""
        ...


class GrpcTransport:
    """A `Transport` over an open gRPC channel.

    Args:
        channel: with mutual TLS; `dpswd.public_client.curator.connection.open_channel` makes one.
        patience: deadlines and pauses.
    """

    def __init__(self, channel: grpc.Channel, *, patience: Patience | None = None) -> None:
        self._channel = channel
        self._stub = rpc.CuratorServiceStub(channel)
        self._patience = patience or Patience()

    def exchange(self, method: str, request: Message, *, patience: Patience | None = None) -> Exchange:
        """See `Transport`."""
        ask = getattr(self._stub, method)
        return Exchange(request, call(ask, request, REPLIES[method], patience=patience or self._patience))

    def close(self) -> None:
        """See `Transport`."""
        self._channel.close()
