"""A sliced release and, on the same sample, the sanitized gradient through the target branch (DP-SWD, Algorithm 2).

The release comes first; the cotangents follow from it and from public source features; each record's gradient passes
through map, clip and extractor by itself, is clipped to C, summed and noised (docs/privacy, section 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.mechanisms.interface import Facts, FloatArray, Limits, Mechanism, RunSize, Step
from dpswd.shared.core.mechanisms.quantiles.mechanism import QUANTILES
from dpswd.shared.core.mechanisms.sliced import Sliced, SlicedDeclaration, SlicedReply, map_violations
from dpswd.shared.core.noise.clipping import RECORD_NORM, clip_factors, neutralise
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.privacy.events import Part
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.checks import Violation, between
from dpswd.shared.core.wire.payloads import MessagePayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum, SummedGradient
from dpswd.shared.published_mechanisms.gradient.cotangents import (
    QuantileCotangent,
    noised_source_projections,
    row_cotangents,
)
from dpswd.shared.published_mechanisms.rows.mechanism import ROWS

SLICED: Mapping[str, Sliced] = {mechanism.name: mechanism for mechanism in (ROWS, QUANTILES)}
"""What a gradient may be taken of."""


@dataclass(frozen=True, eq=False)
class GradientDeclaration(MessagePayload, message=pb.GradientDeclaration, field="parameters.declaration"):
    """What a run declares.

    Attributes:
        release: "rows" or "quantiles".
        sliced: that release's own declaration.
        sum: of the clipped gradients.
        source_features: M, the most public source features that a step brings.
    """

    release: str
    sliced: SlicedDeclaration
    sum: ClippedSum
    source_features: int


@dataclass(frozen=True, eq=False)
class GradientRequest(MessagePayload, message=pb.GradientRequest, field="payload"):
    """What a step brings.

    Attributes:
        source: raw public source features (m, d).
        adapted: (p,) values of the adapted parameters; None for the uploaded ones.
        feature_map: replaces the run's map for this step; None for the run's.
    """

    source: FloatArray
    adapted: Annotated[FloatArray | None, Wire("adapted_parameters")] = None
    feature_map: FeatureMap | None = None


@dataclass(frozen=True, eq=False)
class GradientReply(MessagePayload, message=pb.GradientReply, field="reply"):
    """What a step returns.

    Attributes:
        sliced: the release.
        gradient: (p,), the noised sum of clipped per-record gradients.
        cotangent_scale: cotangents were divided by this; public, from source records alone.
    """

    sliced: SlicedReply
    gradient: SummedGradient
    cotangent_scale: float


class Gradient(Mechanism[GradientDeclaration, GradientRequest, GradientReply]):
    """A sliced release, and the sanitized gradient of what it says."""

    name = "gradient"
    declaration = GradientDeclaration
    request = GradientRequest
    reply = GradientReply

    def violations(self, declared: GradientDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        if declared.release not in SLICED:
            allowed = " or ".join(SLICED)
            return [("declaration.release", f"is {declared.release!r}; a gradient is taken of {allowed}")]
        broken = SLICED[declared.release].violations(declared.sliced, run, facts, limits)
        broken += declared.sum.violations(run, facts, limits)
        field, most = "declaration.source_features", min(protocol.MAX_SOURCE_FEATURES, limits.max_source_features)
        broken += between(field, declared.source_features, most)
        if declared.source_features * declared.sliced.directions > protocol.MAX_RELEASE_VALUES:
            fit = protocol.MAX_RELEASE_VALUES // max(1, declared.sliced.directions)
            text = f"is {declared.source_features}; with {declared.sliced.directions} directions at most {fit} are"
            broken.append((field, f"{text} allowed"))
        return broken

    def check(
        self, request: GradientRequest, declared: GradientDeclaration, facts: Facts, limits: Limits
    ) -> list[Violation]:
        broken = map_violations(request.feature_map, facts, "payload.feature_map")
        broken += declared.sum.check(request.adapted, facts)
        shape, d = request.source.shape, facts.model.feature_dimension
        if len(shape) != 2 or shape[1] != d or not 1 <= shape[0] <= declared.source_features:
            text = f"has shape {shape}; this run declared (1 to {declared.source_features}, {d})"
            broken.append(("payload.source", text))
        return broken

    def parts(self, declared: GradientDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        return (SLICED[declared.release].part(declared.sliced, facts), declared.sum.part(run, facts))

    def synthetic(self, declared: GradientDeclaration, run: RunSize, facts: Facts) -> GradientRequest:
        shape = (declared.source_features, facts.model.feature_dimension)
        source = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
        return GradientRequest(source, declared.sum.made_values(facts), FeatureMap.identity(shape[1]))

    def work(self, declared: GradientDeclaration) -> tuple[object, ...]:
        sliced = SLICED[declared.release].work(declared.sliced)
        return (declared.release, *sliced, declared.sum.parameters, declared.source_features)

    def compute(self, declared: GradientDeclaration, request: GradientRequest, step: Step) -> GradientReply:
        sliced, names = SLICED[declared.release], declared.sum.parameters
        seen = sliced.look(declared.sliced, request.feature_map, step, adapted=request.adapted, names=names)
        source = seen.feature_map.clipped(torch.from_numpy(request.source).to(step.device))  # (m, d), public
        released = seen.reply.values.to_tensor(device=step.device)
        if declared.release == ROWS.name:
            noised = noised_source_projections(source, seen.U, sigma=declared.sliced.sigma, seed=seen.reply.seed)
            cotangents, scale = row_cotangents(released, noised, seen.U)
        else:
            cotangent = QuantileCotangent.from_release(released, source, seen.U, batch=step.run.batch)
            cotangents, scale = cotangent.batch(seen.features), cotangent.scale
        per_record = step.model.gradients(pulled_back(seen.feature_map, seen.raw, cotangents)).to(step.device)  # (b, p)
        gradient = declared.sum.released(per_record, step.noise)
        step.reached("sanitized")
        return GradientReply(seen.reply, gradient, scale)

    def summary(self, declared: GradientDeclaration, facts: Facts) -> str:
        sliced = SLICED[declared.release].summary(declared.sliced, facts)
        return f"{sliced} and {declared.sum.summary(facts)}"


GRADIENT = Gradient()


def pulled_back(feature_map: FeatureMap, features: Tensor, cotangents: Tensor) -> Tensor:
    """Carry cotangents of the clipped features back to the raw ones: the transposed Jacobian of `clipped`.

    A clipped row moves on a sphere, so the part of its cotangent along the row drops out; entries that
    were not finite are constants and get zero.

    Args:
        feature_map: of the step.
        features: (b, d) raw features.
        cotangents: (b, d) with respect to `clipped(features)`.

    Returns:
        (b, d), each row a function of its own record and cotangent alone.
    """
    mapped = feature_map.apply(features)
    finite = neutralise(mapped).to(torch.float64)
    factors = clip_factors(finite, RECORD_NORM)  # (b, 1)
    pulled = cotangents.to(torch.float64) * factors
    squared = (finite * finite).sum(dim=1, keepdim=True)
    radial = (finite * pulled).sum(dim=1, keepdim=True) / torch.where(squared > 0.0, squared, 1.0)
    pulled = torch.where(factors < 1.0, pulled - radial * finite, pulled)
    # A product, for `where` takes longer for some patterns than for others; what is multiplied is finite.
    pulled = pulled * torch.isfinite(mapped) * feature_map.scale
    return neutralise(pulled).to(features.dtype)
