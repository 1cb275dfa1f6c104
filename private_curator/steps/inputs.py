"""From a step's message to values: in two parts, so that a stored reply is found before anything can refuse it."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np

from private_curator.serving.uploads import Kind, UploadStore
from private_curator.settings.tree import LimitSettings
from private_curator.steps.admission import ExtractorFacts, Operation, StepContent
from shared.errors import RequestInvalid
from shared.protocol import arrays, limits
from shared.protocol.digests import step_digest
from shared.protocol.messages import FloatVector, PublicMap, RunParameters
from shared.protocol.v1 import curator_pb2 as pb


@dataclass(frozen=True)
class Asked:
    """What a step's message says, read by the protocol's rules alone.

    Attributes:
        operation: the RPC.
        message: the step's common input.
        feature_map: replaces the run's map for this step, or None.
        inline: source features (m, d), if they came with the message.
        source_digest: SHA-256 of the source features, hexadecimal, or None where the step brings none.
        digest: of the request's meaning; see `shared.protocol.digests`.
    """

    operation: Operation
    message: pb.StepInput
    feature_map: PublicMap | None
    inline: FloatVector | None
    source_digest: str | None
    digest: str


class StepInputs:
    """Reads messages.

    Args:
        uploads: where source features that come by digest are kept.
        bounds: the operator's limits.
    """

    def __init__(self, uploads: UploadStore, bounds: LimitSettings) -> None:
        self._uploads = uploads
        self._bounds = bounds

    def asked(self, operation: Operation, message: pb.StepInput, source: pb.SourceFeatures) -> Asked:
        """Reads a message; depends on nothing that the operator can change.

        Raises:
            RequestInvalid: it is none of this protocol.
        """
        feature_map = (
            PublicMap.from_message(message.feature_map, field="input.feature_map")
            if message.HasField("feature_map")
            else None
        )
        inline, source_digest = None, None
        match source.WhichOneof("features"):
            case "inline":
                inline = _decoded(source.inline, field="source.inline")
                # Uploaded features have the SHA-256 of the same bytes for their name.
                source_digest = hashlib.sha256(inline.astype("<f4").tobytes()).hexdigest()
            case "digest":
                source_digest = source.digest
            case _:
                pass
        digest = step_digest(
            operation=operation.value,
            run_id=message.run_id,
            adapted=message.adapted_parameters,
            feature_map=feature_map,
            source=source_digest,
        )
        return Asked(operation, message, feature_map, inline, source_digest, digest)

    def content(self, asked: Asked, *, client: str, extractor: ExtractorFacts) -> StepContent:
        """The step's values for admission.

        Raises:
            RequestInvalid: the source features are unknown, or not rows as the extractor makes them.
        """
        source = asked.inline
        if source is None and asked.source_digest is not None:
            data = self._uploads.get(Kind.SOURCE, asked.source_digest, client=client)
            if data is None:
                raise RequestInvalid((("source.digest", "is unknown; upload the source features first"),))
            d = extractor.feature_dimension
            if len(data) % (4 * d):
                text = f"names features that are no rows of {d} values, as the extractor makes them"
                raise RequestInvalid((("source.digest", text),))
            source = np.frombuffer(data, dtype="<f4").astype(np.float32).reshape(-1, d)
        return StepContent(
            operation=asked.operation,
            run_id=asked.message.run_id,
            request_id=asked.message.request_id,
            adapted=asked.message.adapted_parameters,
            feature_map=asked.feature_map,
            source=source,
        )

    def uploaded(self, message: pb.FloatArray) -> FloatVector:
        """Source features (m, d) of an upload.

        Raises:
            RequestInvalid: another shape, or more features than the operator allows.
        """
        features = _decoded(message, field="features")
        most = self._bounds.max_source_features
        if features.shape[0] > most:
            raise RequestInvalid(
                (("features", f"has shape {features.shape}; needed is (m, d) with m from 1 to {most}"),)
            )
        return features


def _decoded(message: pb.FloatArray, *, field: str) -> FloatVector:
    features = arrays.decode_floats(message, field=field, max_values=limits.MAX_MESSAGE_BYTES // 4)
    if features.ndim != 2 or features.shape[0] < 1 or features.shape[1] < 1:
        most = limits.MAX_SOURCE_FEATURES
        raise RequestInvalid(((field, f"has shape {features.shape}; needed is (m, d) with m from 1 to {most}"),))
    return features


@functools.lru_cache(maxsize=64)
def declared(parameters: bytes) -> RunParameters:
    """A run's declaration as the ledger keeps it; each of its steps reads it, and nobody changes its arrays."""
    return RunParameters.from_message(pb.RunParameters.FromString(parameters))
