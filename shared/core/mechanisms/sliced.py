"""Sliced releases: what one-dimensional projections of clipped features along random directions U release.

`quantiles` is such a mechanism, and `rows` among the published ones, whose `gradient` releases one of the two first.
The directions are drawn after everything else is fixed; the price follows the law of the squared shift along them
(docs/privacy, sections 2 and 6).
The labelled ones append a record's weighted one-hot label to its mapped features and clip the two together: a replaced
record then moves a row of d + C values by at most 1, whatever happens to its label.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.mechanisms.interface import Facts, FloatArray, Limits, Mechanism, RunSize, Step
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.directions import Draw, directions, drawn_here
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray, NoiseSource
from dpswd.shared.core.privacy.events import Part
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.checks import Violation, between, positive
from dpswd.shared.core.wire.payloads import MessagePayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

MIN_MAP_SCALE, MAX_MAP_SCALE = 1e-12, 1e12
"""Scales of a feature map: beyond these float32 arithmetic overflows or vanishes."""


@dataclass(frozen=True, eq=False)
class SlicedDeclaration(MessagePayload, message=pb.SlicedDeclaration, field="parameters.declaration"):
    """What a run of a sliced release declares.

    Attributes:
        directions: k.
        sigma: standard deviation of the noise on each released value.
        coefficients: L of each direction; 0 for rows.
        feature_map: of every step that does not bring its own; None for the identity.
        label_weight: of the one-hot label beside the mapped features; 0 where no labels are read.
    """

    directions: int
    sigma: float
    coefficients: int = 0
    feature_map: FeatureMap | None = None
    label_weight: float = 0.0


@dataclass(frozen=True, eq=False)
class SlicedRequest(MessagePayload, message=pb.SlicedRequest, field="payload"):
    """What a step brings.

    Attributes:
        feature_map: replaces the run's map for this step; None for the run's.
    """

    feature_map: FeatureMap | None = None


@dataclass(frozen=True, eq=False)
class SlicedReply(MessagePayload, message=pb.SlicedReply, field="reply"):
    """What a step returns.

    Attributes:
        seed: 32 bytes from which both parties draw U.
        values: rows (b, k) or coefficients (L, k), noised, on the grid.
    """

    seed: Annotated[bytes, Wire("directions_seed")]
    values: Annotated[GridArray, Wire(shape=("rows or coefficients", "directions"), most=protocol.MAX_RELEASE_VALUES)]

    def broken_structure(self) -> list[Violation]:
        """See `MessagePayload`."""
        size = len(self.seed)
        return [] if size == 32 else [("directions_seed", f"has {size} bytes; needs 32")]

    def directions(self, like: Tensor, draw: Draw = drawn_here) -> Tensor:
        """U of the step, (d, k), for what is projected (m, d), in its type and on its device."""
        k = self.values.values.shape[1]
        return directions(self.seed, like.shape[1], k, device=like.device, draw=draw).to(like)


@dataclass(frozen=True, eq=False)
class ProjectedSample:
    """What a step of a sliced release has looked at; private but for U and the map.

    Attributes:
        raw: (b, d), features as the extractor computes them, with labels where they are read.
        features: (b, d), mapped and clipped.
        U: (d, k).
        feature_map: of the step.
        reply: the release made of them.
    """

    raw: Tensor
    features: Tensor
    U: Tensor
    feature_map: FeatureMap
    reply: SlicedReply


class Sliced(Mechanism[SlicedDeclaration, SlicedRequest, SlicedReply]):
    """A mechanism that releases projections along random directions, or statistics of them."""

    declaration = SlicedDeclaration
    request = SlicedRequest
    reply = SlicedReply

    @abc.abstractmethod
    def released(self, features: Tensor, U: Tensor, declared: SlicedDeclaration, noise: NoiseSource) -> GridArray:
        """Noised values of clipped features (b, d) along U (d, k): (b, k) or (L, k)."""

    @abc.abstractmethod
    def part(self, declared: SlicedDeclaration, facts: Facts) -> Part:
        """The part that prices it."""

    @abc.abstractmethod
    def own_violations(self, declared: SlicedDeclaration, run: RunSize, limits: Limits) -> list[Violation]:
        """Rules about `coefficients`."""

    def dimension(self, facts: Facts) -> int:
        """Of what is projected: the features, and the one-hot labels where they are read."""
        return facts.model.feature_dimension + (facts.data.classes if self.needs_labels else 0)

    def rows(self, declared: SlicedDeclaration, batch: int) -> int:
        """Released values of each direction."""
        return declared.coefficients or batch

    def violations(self, declared: SlicedDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """See `Mechanism`."""
        field, directions = "declaration.directions", declared.directions
        broken = between(field, directions, min(protocol.MAX_DIRECTIONS, limits.max_directions))
        broken += positive("declaration.sigma", declared.sigma)
        broken += self.own_violations(declared, run, limits) + self._label_violations(declared)
        reply_bytes = self.rows(declared, run.batch) * directions * 4 + protocol.FRAMING_BYTES
        if reply_bytes > limits.max_message_bytes:
            broken.append((field, f"make replies of {reply_bytes} bytes; at most {limits.max_message_bytes} are sent"))
        most = max(run.batch, self.rows(declared, run.batch)) * directions
        if most > protocol.MAX_RELEASE_VALUES:
            text = f"times the batch of {run.batch} is more than {protocol.MAX_RELEASE_VALUES}; use fewer of either"
            broken.append((field, text))
        return broken + map_violations(declared.feature_map, facts, "declaration.feature_map")

    def _label_violations(self, declared: SlicedDeclaration) -> list[Violation]:
        field, weight = "declaration.label_weight", declared.label_weight
        if not self.needs_labels:
            return [(field, f"is {weight:g}; {self.name} reads no labels, send 0")] if weight else []
        if 0.0 < weight <= RECORD_NORM:
            return []
        return [(field, f"is {weight:g}; allowed is above 0, to the clip norm of {RECORD_NORM:g}")]

    def check(
        self, request: SlicedRequest, declared: SlicedDeclaration, facts: Facts, limits: Limits
    ) -> list[Violation]:
        """See `Mechanism`."""
        return map_violations(request.feature_map, facts, "payload.feature_map")

    def synthetic(self, declared: SlicedDeclaration, run: RunSize, facts: Facts) -> SlicedRequest:
        """See `Mechanism`."""
        return SlicedRequest(FeatureMap.identity(facts.model.feature_dimension))

    def parts(self, declared: SlicedDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """See `Mechanism`."""
        return (self.part(declared, facts),)

    def work(self, declared: SlicedDeclaration) -> tuple[object, ...]:
        """See `Mechanism`: neither the noise nor the map's values cost time."""
        return (declared.directions, declared.coefficients)

    def compute(self, declared: SlicedDeclaration, request: SlicedRequest, step: Step) -> SlicedReply:
        """See `Mechanism`."""
        return self.look(declared, request.feature_map, step).reply

    def look(
        self,
        declared: SlicedDeclaration,
        own_map: FeatureMap | None,
        step: Step,
        *,
        adapted: FloatArray | None = None,
        names: tuple[str, ...] = (),
    ) -> ProjectedSample:
        """Extracts the sample, draws the directions meanwhile, and releases.

        Args:
            declared: by the run.
            own_map: of this step, or None for the run's.
            step: the sample and what computes on it.
            adapted: (p,) values of the adapted parameters, or None for the uploaded ones.
            names: the parameters whose gradients will be asked for.
        """
        records, labels = step.sample.take(0, step.sample.count)
        drawn: list[tuple[bytes, Tensor]] = []

        def direct() -> None:
            seed = step.fresh_seed()
            d, k = self.dimension(step.facts), declared.directions
            drawn.append((seed, directions(seed, d, k, device=step.device, draw=step.draw)))
            step.reached("directed")

        raw = step.model.features(records, adapted=adapted, names=names, meanwhile=direct).to(step.device)  # (b, d)
        mapped = own_map or declared.feature_map
        feature_map = FeatureMap.identity(raw.shape[1]) if mapped is None else mapped
        feature_map = feature_map.to(step.device)
        if self.needs_labels:
            assert labels is not None, "offered only where there are labels"
            kinds, classes = torch.from_numpy(labels).to(step.device), step.facts.data.classes
            raw = labelled(raw, kinds, classes=classes, weight=declared.label_weight)
            feature_map = feature_map.extended(classes)
        features = feature_map.clipped(raw)
        step.reached("extracted")
        ((seed, U),) = drawn
        values = self.released(features, U, declared, step.noise)
        step.reached("released")
        return ProjectedSample(raw, features, U, feature_map, SlicedReply(seed, values))


def labelled(features: Tensor, labels: Tensor, *, classes: int, weight: float) -> Tensor:
    """Features (m, d) with the weighted one-hot labels beside them, (m, d + C): what `FeatureMap.extended` takes.

    Args:
        features: of records, or of generated ones.
        labels: (m,).
        classes: C.
        weight: of the label.
    """
    return torch.cat([features, weight * functional.one_hot(labels, classes).to(features)], dim=1)


def map_violations(feature_map: FeatureMap | None, facts: Facts, field: str) -> list[Violation]:
    """Whether a map fits the features and stays within float32."""
    if feature_map is None:
        return []
    d = facts.model.feature_dimension
    if feature_map.center.shape != (d,):
        return [(field, f"has length {feature_map.center.shape[0]}; the extractor has {d} features")]
    scale = feature_map.scale
    if not bool(((scale >= MIN_MAP_SCALE) & (scale <= MAX_MAP_SCALE)).all()):
        return [(f"{field}.scale", f"must lie between {MIN_MAP_SCALE:g} and {MAX_MAP_SCALE:g} in every feature")]
    return []
