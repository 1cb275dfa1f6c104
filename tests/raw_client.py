"""A client made of the generated stub alone: what the curator's own tests talk to it with.

It keeps no receipt, checks none and repeats nothing; what the public client adds is tested with the public client.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from torch import nn

from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.wire.messages import RunParameters, StepRelease
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.core.wire.v1 import curator_pb2_grpc as pb_grpc
from dpswd.shared.protocol.status import from_rpc_error

DEADLINE_S = 120.0


class RawClient:
    """A connection to one curator over mutual TLS. A context manager.

    Args:
        address: host:port; the host is a name in the curator's certificate.
        credentials: directory with ca.crt, client.crt and client.key.
    """

    def __init__(self, address: str, *, credentials: Path) -> None:
        authority, key, certificate = (
            (credentials / name).read_bytes() for name in ("ca.crt", "client.key", "client.crt")
        )
        self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, certificate))
        self._stub = pb_grpc.CuratorServiceStub(self._channel)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def describe(self) -> pb.DescribeResponse:
        return _called(self._stub.Describe, pb.DescribeRequest())

    def send_bytes(self, method: str, data: bytes) -> bytes:
        """Sends bytes that need be no message, and returns the reply's."""
        path = f"/{pb.DESCRIPTOR.services_by_name['CuratorService'].full_name}/{method}"
        return _called(self._channel.unary_unary(path), data)

    def upload_extractor(self, graph: bytes, weights: bytes) -> pb.UploadExtractorResponse:
        return _called(self._stub.UploadExtractor, pb.UploadExtractorRequest(graph=graph, weights=weights))

    def upload(self, module: nn.Module) -> dict[str, str]:
        """Uploads a module for this curator's records; the digests that a run declares."""
        graph = trace(module, tuple(self.describe().record_shape))
        uploaded = self.upload_extractor(graph.to_bytes(), weights_to_bytes(module_weights(module, graph)))
        return {"graph_digest": uploaded.graph_digest, "weights_digest": uploaded.weights_digest}

    def open_run(
        self,
        parameters: RunParameters | pb.RunParameters,
        *,
        request_id: str | None = None,
        validate_only: bool = False,
    ) -> pb.OpenRunResponse:
        message = parameters.to_message() if isinstance(parameters, RunParameters) else parameters
        request = pb.OpenRunRequest(
            request_id=request_id or str(uuid.uuid4()), parameters=message, validate_only=validate_only
        )
        return _called(self._stub.OpenRun, request)

    def prepare_step(self, run_id: str, request: Payload | bytes = b"") -> pb.DrawStepRequest:
        """A step's message under an id of its own, not sent yet; no bytes where the step needs to bring nothing."""
        payload = request if isinstance(request, bytes) else request.to_bytes()
        return pb.DrawStepRequest(run_id=run_id, request_id=str(uuid.uuid4()), payload=payload)

    def send(self, request: pb.DrawStepRequest) -> pb.DrawStepResponse:
        return _called(self._stub.DrawStep, request)

    def step(self, run_id: str, request: Payload | bytes = b"") -> StepRelease:
        """Draws the next step."""
        return released(self.send(self.prepare_step(run_id, request)))


def released(reply: pb.DrawStepResponse) -> StepRelease:
    """What a step's response holds."""
    return StepRelease.from_bytes(reply.step_release)


def _called(method: Callable[..., Any], request: Message) -> Any:
    try:
        return method(request, timeout=DEADLINE_S)
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
