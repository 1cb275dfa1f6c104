"""One step of a mock curator's run: the real mechanisms and the real wire format, on records that nobody has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from public_client.curator.values import PendingStep
from shared.extractor import Extractor, ExtractorGraph
from shared.kernels.directions import directions
from shared.kernels.feature_map import FeatureMap
from shared.kernels.noise import GridArray, SeededNoise
from shared.mechanisms.critic.domain_loss import target_cotangents
from shared.mechanisms.gradient.sanitized import release_gradient
from shared.mechanisms.quantiles.coefficients import release_coefficients
from shared.mechanisms.quantiles.cotangents import QuantileCotangent
from shared.mechanisms.rows.cotangents import noised_source_projections, row_cotangents
from shared.mechanisms.rows.projections import release_rows
from shared.protocol import arrays, limits
from shared.protocol.messages import Critic, PublicMap, Quantiles, Rows, RunParameters
from shared.protocol.v1 import curator_pb2 as pb

_REQUESTS: Mapping[str, Any] = {
    "align_target": pb.AlignTargetRequest,
    "release_projections": pb.ReleaseProjectionsRequest,
    "release_quantiles": pb.ReleaseQuantilesRequest,
    "release_critic_gradient": pb.ReleaseCriticGradientRequest,
}


@dataclass
class MockRun:
    """A run that a mock curator opened.

    Attributes:
        parameters: as declared.
        extractor: rebuilt from what was uploaded.
        answers: stored bytes by request id.
    """

    parameters: RunParameters
    extractor: Extractor
    answers: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class MockStep:
    """What a step is computed from.

    Attributes:
        run: to which it belongs.
        pending: the request.
        records: (b, ...) in the secret sample's place.
        sources: uploaded source features (m, d) by their digests.
        randomness: where seeds of directions and noise come from.
    """

    run: MockRun
    pending: PendingStep
    records: Tensor
    sources: Mapping[str, npt.NDArray[np.float32]]
    randomness: Callable[[int], bytes]

    def answer(self) -> bytes:
        """The release as a curator would store and send it."""
        request = _REQUESTS[self.pending.kind].FromString(self.pending.message)
        adapted = _adapted(request.input.adapted_parameters, self.run.parameters, self.run.extractor.graph)
        reply = (
            self._critic(adapted)
            if isinstance(self.run.parameters.release, Critic)
            else self._alignment(request, adapted)
        )
        reply.run_id, reply.step = self.pending.run_id, len(self.run.answers) + 1
        data: bytes = reply.SerializeToString(deterministic=True)
        return data

    def _critic(self, adapted: dict[str, Tensor]) -> pb.CriticRelease:
        declared = self.run.parameters.gradient
        assert declared is not None, "no critic's run is opened without a gradient"
        forward = self.run.extractor.begin(self.records, declared.parameters, parameters=adapted)
        per_record = forward.gradients(target_cotangents(forward.outputs))  # (b, p)
        return pb.CriticRelease(gradient=self._sanitized(per_record, self._noise()))

    def _alignment(self, request: Any, adapted: dict[str, Tensor]) -> pb.StepRelease:
        """Rows or coefficients, and the gradient where one is declared; the curator's own order of events."""
        declared, extractor = self.run.parameters, self.run.extractor
        own_map = request.input.feature_map if request.input.HasField("feature_map") else None
        mapped = _feature_map(
            PublicMap.from_message(own_map, field="map") if own_map is not None else declared.feature_map,
            extractor.graph.feature_dimension,
        )
        raw = extractor.features(self.records, adapted)
        features = mapped.clipped(raw)
        seed = self.randomness(32)
        noise = self._noise()
        U = directions(seed, features.shape[1], declared.directions)
        if isinstance(declared.release, Rows):
            values = release_rows(features, U, sigma=declared.release.sigma, noise=noise)
        else:
            assert isinstance(declared.release, Quantiles), "no other run is opened"
            values = release_coefficients(
                features, U, coefficients=declared.release.coefficients, sigma=declared.release.sigma, noise=noise
            )
        reply = pb.StepRelease(directions_seed=seed, release=arrays.encode_grid(values))
        if declared.gradient is not None:
            source = mapped.clipped(self._source(request.source))
            cotangents, reply.cotangent_scale = _cotangents(features, values, source, U, declared, seed)
            per_record = extractor.per_record_gradients(
                self.records, mapped.pull_back(raw, cotangents), declared.gradient.parameters, parameters=adapted
            )
            reply.gradient.CopyFrom(self._sanitized(per_record, noise))
        return reply

    def _noise(self) -> SeededNoise:
        return SeededNoise(self.randomness(32), purpose="mock release")  # protects nothing: nothing is here

    def _sanitized(self, per_record: Tensor, noise: SeededNoise) -> pb.GridArray:
        declared = self.run.parameters.gradient
        assert declared is not None
        gradient = release_gradient(per_record, clip_norm=declared.clip_norm, sigma=declared.sigma, noise=noise)
        return arrays.encode_grid(gradient)

    def _source(self, message: pb.SourceFeatures) -> Tensor:
        if message.WhichOneof("features") == "digest":
            return torch.from_numpy(self.sources[message.digest].copy())
        values = arrays.decode_floats(message.inline, field="source.inline", max_values=limits.MAX_MESSAGE_BYTES // 4)
        return torch.from_numpy(values)


def _feature_map(declared: PublicMap | None, dimension: int) -> FeatureMap:
    if declared is None:
        return FeatureMap(center=torch.zeros(dimension), scale=torch.ones(dimension))
    return FeatureMap(center=torch.from_numpy(declared.center), scale=torch.from_numpy(declared.scale))


def _adapted(data: bytes, declared: RunParameters, graph: ExtractorGraph) -> dict[str, Tensor]:
    if not data or declared.gradient is None:
        return {}
    flat = torch.from_numpy(np.frombuffer(data, dtype="<f4").astype(np.float32))
    shapes = [graph.parameter_shapes[name] for name in declared.gradient.parameters]
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return {
        name: part.reshape(shape) for name, part, shape in zip(declared.gradient.parameters, parts, shapes, strict=True)
    }


def _cotangents(
    features: Tensor, values: GridArray, source: Tensor, U: Tensor, declared: RunParameters, seed: bytes
) -> tuple[Tensor, float]:
    released = values.to_tensor()
    if isinstance(declared.release, Rows):
        noised = noised_source_projections(source, U, sigma=declared.release.sigma, seed=seed)
        found = row_cotangents(released, noised, U)
        return found.values, found.scale
    cotangent = QuantileCotangent.from_release(released, source, U, batch=declared.batch_size)
    return cotangent.batch(features), cotangent.scale
