"""A hospital's published release as a `Transport`: a curator that is a file, asked without any network.

It answers exactly what the hospital answered: the run that was prepared and its one step, with the receipts of the
ledger. Asked for anything else it refuses in words. However often and by whomever it is asked, nothing is charged:
reading a release is post-processing (docs/privacy, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from dpswd.public_client.curator.connection import Patience
from dpswd.public_client.curator.transport import Exchange
from dpswd.shared.core.errors import ProtocolError
from dpswd.shared.core.ledger.keys import PinnedKey
from dpswd.shared.core.wire.checks import invalid
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.mechanisms import every_mechanism
from dpswd.shared.protocol.publications import Publication
from dpswd.shared.sandbox.graph import ExtractorGraph

_MAP = "feature_map"


class ReleaseFile:
    """A `Transport` that reads a publication.

    Args:
        path: the file.
        key: the ledger's raw Ed25519 key, 32 bytes, as the hospital gave it over another way, or its keys.

    Attributes:
        publication: verified.
        proposal: what was prepared.
        graph: of the extractor.

    Raises:
        DataInvalid: the file cannot be read, or is no publication.
        ProtocolError: signature, receipts and digests do not hold together under this key.
    """

    def __init__(self, path: Path, *, key: PinnedKey) -> None:
        self.path = path
        self.publication = Publication.read(path)
        if problems := self.publication.problems(key):
            raise ProtocolError(f"{path} does not verify: {'; '.join(problems)}; do not use it, and ask the hospital")
        self.proposal = self.publication.proposal
        self.graph = ExtractorGraph.from_bytes(self.proposal.graph)

    def exchange(self, method: str, request: Message, *, patience: Patience | None = None) -> Exchange:  # noqa: ARG002
        """See `Transport`; the exchange returned is the one that the hospital had."""
        handlers: dict[str, Callable[[Any], Exchange]] = {
            "Describe": lambda asked: Exchange(asked, self.publication.message.description),
            "UploadExtractor": self._upload_extractor,
            "OpenRun": self._open_run,
            "DrawStep": self._draw_step,
        }
        return handlers[method](request)

    def close(self) -> None:
        """Nothing is open."""

    def _upload_extractor(self, asked: pb.UploadExtractorRequest) -> Exchange:
        for name in ("graph", "weights"):
            if getattr(asked, name) != getattr(self.proposal, name):
                text = f"is not that of the extractor that {self.path} was made with; begin with the file's own "
                raise invalid(name, text + "(`PublishedHospital.load_extractor`) and source_epochs=0")
        declared = self.proposal.parameters
        reply = pb.UploadExtractorResponse(
            graph_digest=declared.graph_digest,
            weights_digest=declared.weights_digest,
            feature_dimension=self.graph.feature_dimension,
        )
        return Exchange(asked, reply)

    def _open_run(self, asked: pb.OpenRunRequest) -> Exchange:
        """The run that was charged, whatever the public map that is chosen now: the prepared one is declared."""
        prepared, requested = self.proposal.parameters, RunParameters.from_message(asked.parameters)
        if not same_but_for_map(requested, prepared):
            differing = [
                one.name for one in fields(prepared) if getattr(requested, one.name) != getattr(prepared, one.name)
            ]
            raise invalid(
                "parameters",
                f"{self.path} holds the one run that was prepared, and this one differs in {', '.join(differing)}; "
                "train by the plan that PublishedHospital.plan makes, with the settings of the proposal",
            )
        publication, reply = self.publication.message, pb.OpenRunResponse()
        reply.CopyFrom(publication.run)
        if asked.validate_only:
            reply.ClearField("run_id")
            reply.ClearField("receipt")
            return Exchange(asked, reply)
        sent = pb.OpenRunRequest(request_id=publication.run_request_id, parameters=prepared.to_message())
        return Exchange(sent, reply)

    def _draw_step(self, asked: pb.DrawStepRequest) -> Exchange:
        record = self.publication.message
        if asked.run_id != record.run.run_id or asked.payload != self.proposal.payload:
            raise invalid("payload", f"{self.path} holds the answer to one request, and this is another")
        sent = pb.DrawStepRequest(run_id=asked.run_id, request_id=record.step_request_id, payload=self.proposal.payload)
        return Exchange(sent, record.step)


def same_but_for_map(one: RunParameters, other: RunParameters) -> bool:
    """Whether two declarations are of one release, but for the public map, which each training chooses anew."""
    return _without_map(one) == _without_map(other)


def _without_map(parameters: RunParameters) -> tuple[RunParameters, Any]:
    """A declaration, but for the public map: it is chosen anew from the source at each training."""
    mechanism = every_mechanism().get(parameters.mechanism)
    if mechanism is None:
        return parameters, None
    declared = mechanism.declaration.from_bytes(parameters.declaration)
    if _MAP in {one.name for one in fields(declared)}:
        declared = replace(declared, **{_MAP: None})
    return replace(parameters, declaration=b""), declared.to_bytes()
