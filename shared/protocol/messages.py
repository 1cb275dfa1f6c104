"""The messages of the contract as frozen values, with their conversions to and from the generated code.

``from_message`` functions check structure (presence, sizes, encodings, finite numbers) and raise RequestInvalid
with the field's path; what a value may be for a given data set is the curator's admission.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shared.errors import RequestInvalid
from shared.protocol import arrays, limits
from shared.protocol.checks import Violation, between, invalid, positive
from shared.protocol.critics import Critic
from shared.protocol.evaluations import Evaluation
from shared.protocol.v1 import curator_pb2 as pb

__all__ = [
    "Critic",
    "Evaluation",
    "FloatVector",
    "Gradient",
    "PublicMap",
    "Quantiles",
    "Release",
    "Rows",
    "RunParameters",
    "StepRelease",
]

FloatVector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PublicMap:
    """A public affine map of features, (f - center) * scale.

    Attributes:
        center: (d,) float32.
        scale: (d,) float32.
    """

    center: FloatVector
    scale: FloatVector

    def to_message(self) -> pb.FeatureMap:
        """Encodes the map."""
        return pb.FeatureMap(center=arrays.encode_floats(self.center), scale=arrays.encode_floats(self.scale))

    @classmethod
    def from_message(cls, message: pb.FeatureMap, *, field: str) -> PublicMap:
        """Decodes a map; raises RequestInvalid where the two vectors do not agree."""
        most = limits.MAX_MESSAGE_BYTES // 8
        center = arrays.decode_floats(message.center, field=f"{field}.center", max_values=most)
        scale = arrays.decode_floats(message.scale, field=f"{field}.scale", max_values=most)
        if center.ndim != 1 or center.shape != scale.shape:
            raise invalid(
                field,
                f"center {center.shape} and scale {scale.shape} must be one vector each, of equal length",
            )
        return cls(center=center, scale=scale)


@dataclass(frozen=True)
class Rows:
    """Noisy projections row by row.

    Attributes:
        sigma: standard deviation of the noise on each projection.
    """

    sigma: float


@dataclass(frozen=True)
class Quantiles:
    """Sliced quantile coefficients.

    Attributes:
        coefficients: L, coefficients of each direction.
        sigma: standard deviation of the noise on each coefficient.
    """

    coefficients: int
    sigma: float


@dataclass(frozen=True)
class Gradient:
    """The sanitized gradient through the target branch.

    Attributes:
        parameters: names of the adapted parameters, in the order of the flat gradient.
        clip_norm: C, the largest norm of one record's gradient.
        sigma: standard deviation of the noise on each coordinate of the sum over the sample.
    """

    parameters: tuple[str, ...]
    clip_norm: float
    sigma: float


Release: TypeAlias = Rows | Quantiles | Evaluation | Critic
"""What a run releases; evaluations and critics use no directions."""


@dataclass(frozen=True)
class RunParameters:
    """What a run declares before it starts; all of it is public.

    Attributes:
        graph_digest: SHA-256 of the extractor's graph.
        weights_digest: SHA-256 of the extractor's weights.
        directions: k; 0 for evaluations and critics.
        batch_size: b, records in each step's secret sample; n for evaluations.
        steps: T.
        release: rows, quantiles, an evaluation or a critic.
        gradient: the sanitized gradient on the same sample, or None.
        feature_map: the map of every step that brings none of its own, or None for the identity.
    """

    graph_digest: str
    weights_digest: str
    directions: int
    batch_size: int
    steps: int
    release: Release
    gradient: Gradient | None = None
    feature_map: PublicMap | None = None

    def to_message(self) -> pb.RunParameters:
        """Encodes the declaration."""
        message = pb.RunParameters(
            graph_digest=self.graph_digest,
            weights_digest=self.weights_digest,
            directions=self.directions,
            batch_size=self.batch_size,
            steps=self.steps,
        )
        match self.release:
            case Rows(sigma):
                message.rows.sigma = sigma
            case Quantiles(coefficients, sigma):
                message.quantiles.coefficients = coefficients
                message.quantiles.sigma = sigma
            case Evaluation():
                message.evaluation.CopyFrom(self.release.to_message())
            case Critic():
                message.critic.CopyFrom(self.release.to_message())
        if self.gradient is not None:
            message.gradient.parameters.extend(self.gradient.parameters)
            message.gradient.clip_norm = self.gradient.clip_norm
            message.gradient.sigma = self.gradient.sigma
        if self.feature_map is not None:
            message.feature_map.CopyFrom(self.feature_map.to_message())
        return message

    @classmethod
    def from_message(cls, message: pb.RunParameters, *, field: str = "parameters") -> RunParameters:
        """Decodes a declaration.

        Raises:
            RequestInvalid: every broken rule, in one error.
        """
        broken = list(_range_violations(message, field))
        release: Release
        match message.WhichOneof("release"):
            case "rows":
                release = Rows(sigma=message.rows.sigma)
                broken += positive(f"{field}.rows.sigma", release.sigma)
            case "quantiles":
                release = Quantiles(message.quantiles.coefficients, message.quantiles.sigma)
                broken += positive(f"{field}.quantiles.sigma", release.sigma)
                broken += between(f"{field}.quantiles.coefficients", release.coefficients, limits.MAX_COEFFICIENTS)
            case "evaluation":
                release, rules = Evaluation.from_message(message.evaluation, field=f"{field}.evaluation")
                broken += rules
            case "critic":
                release = Critic()
                if not message.HasField("gradient"):
                    broken.append((f"{field}.gradient", "is missing; a critic's run declares one"))
            case _:
                raise invalid(f"{field}.release", "is missing; declare rows or quantiles, an evaluation or a critic")
        gradient = None
        if message.HasField("gradient"):
            gradient = Gradient(tuple(message.gradient.parameters), message.gradient.clip_norm, message.gradient.sigma)
            broken += positive(f"{field}.gradient.clip_norm", gradient.clip_norm)
            broken += positive(f"{field}.gradient.sigma", gradient.sigma)
            if not gradient.parameters or len(set(gradient.parameters)) != len(gradient.parameters):
                broken.append((f"{field}.gradient.parameters", "must name at least one parameter, each once"))
        if broken:
            raise RequestInvalid(tuple(broken))
        public_map = None
        if message.HasField("feature_map"):
            public_map = PublicMap.from_message(message.feature_map, field=f"{field}.feature_map")
        return cls(
            graph_digest=message.graph_digest,
            weights_digest=message.weights_digest,
            directions=message.directions,
            batch_size=message.batch_size,
            steps=message.steps,
            release=release,
            gradient=gradient,
            feature_map=public_map,
        )


@dataclass(frozen=True)
class StepRelease:
    """What one step releases, decoded.

    Attributes:
        run_id: the run.
        step: 1 for the run's first step.
        directions_seed: 32 bytes from which both parties draw U.
        release: rows (b, k) or coefficients (L, k), in real units, float32.
        gradient: the noised sum of clipped per-record gradients (p,), float32, or None.
        cotangent_scale: public divisor of the cotangents, from source records alone.
    """

    run_id: str
    step: int
    directions_seed: bytes
    release: FloatVector
    gradient: FloatVector | None
    cotangent_scale: float

    @classmethod
    def from_bytes(cls, data: bytes) -> StepRelease:
        """Decodes the bytes whose digest stands in the receipt.

        Raises:
            RequestInvalid: the curator sent something that is not a step's release.
        """
        message = pb.StepRelease()
        try:
            message.ParseFromString(data)
        except Exception as error:
            raise invalid("step_release", "cannot be parsed") from error
        if len(message.directions_seed) != 32:
            raise invalid("step_release.directions_seed", f"has {len(message.directions_seed)} bytes; needs 32")
        values, step = arrays.decode_grid(
            message.release, field="step_release.release", max_values=limits.MAX_RELEASE_VALUES
        )
        gradient = None
        if message.HasField("gradient"):
            sums, unit = arrays.decode_grid(
                message.gradient, field="step_release.gradient", max_values=limits.MAX_ADAPTED_PARAMETERS
            )
            gradient = (sums * unit).astype(np.float32)
        return cls(
            run_id=message.run_id,
            step=message.step,
            directions_seed=message.directions_seed,
            release=(values * step).astype(np.float32),
            gradient=gradient,
            cotangent_scale=message.cotangent_scale,
        )


def _range_violations(message: pb.RunParameters, field: str) -> list[tuple[str, str]]:
    if message.WhichOneof("release") in ("evaluation", "critic"):
        broken = _unused(message, field)
    else:
        broken = between(f"{field}.directions", message.directions, limits.MAX_DIRECTIONS)
    # An evaluation goes through all records in chunks: its size is the data set's and needs no other bound.
    most = limits.MAX_RECORDS if message.WhichOneof("release") == "evaluation" else limits.MAX_BATCH_SIZE
    broken += between(f"{field}.batch_size", message.batch_size, most)
    broken += between(f"{field}.steps", message.steps, limits.MAX_STEPS)
    for name in ("graph_digest", "weights_digest"):
        value = getattr(message, name)
        if len(value) != 64 or any(c not in "0123456789abcdef" for c in value):
            broken.append(
                (
                    f"{field}.{name}",
                    "must be a SHA-256 in lower-case hexadecimal, as UploadExtractor returned it",
                )
            )
    return broken


def _unused(message: pb.RunParameters, field: str) -> list[Violation]:
    """What evaluations and critics have no use for: a client that sends it expects something else."""
    broken = []
    if message.directions:
        broken.append((f"{field}.directions", f"is {message.directions}; evaluations and critics use none, send 0"))
    if message.HasField("feature_map"):
        broken.append((f"{field}.feature_map", "is not used by evaluations and critics; leave it out"))
    if message.HasField("gradient") and message.WhichOneof("release") == "evaluation":
        broken.append((f"{field}.gradient", "is not released by an evaluation; leave it out"))
    return broken
