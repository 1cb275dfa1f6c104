"""The sum of clipped features over all records, released once a step as one noised sum (docs/privacy/feature-sums.md).

A step may bring values of declared parameters of the graph, and a public map in the place of the run's: so one run asks
one graph several questions, each of which may depend on the replies before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Facts, FloatArray, LabelArray, Limits, RunSize, Session
from dpswd.shared.core.mechanisms.linear import Integers, LinearMechanism, Reach, ShardSum
from dpswd.shared.core.mechanisms.rounded_features import radius, rounded_features
from dpswd.shared.core.mechanisms.sliced import map_violations
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray, Integer, NoiseSource, release_finely, sum_grid
from dpswd.shared.core.privacy.events import BoundedSum, Part
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.arrays import BYTES
from dpswd.shared.core.wire.checks import Violation, positive
from dpswd.shared.core.wire.payloads import MessagePayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

_BITS = 20  # of rounded features, about those of float32
_MOST_RECORDS = 1 << 32  # their sum is a whole number that float64 holds


@dataclass(frozen=True, eq=False)
class SumsDeclaration(MessagePayload, message=pb.FeatureSumsDeclaration, field="parameters.declaration"):
    """What a run declares.

    Attributes:
        sigma: standard deviation of the noise on each coordinate of the sum.
        parameters: names of the graph's parameters whose values a step may bring; empty for none.
        feature_map: public; None for the identity. Features are clipped to norm 1/2 after it.
        adapted: (p,) values of these parameters in steps that bring none; None for the uploaded ones.
    """

    sigma: float
    parameters: tuple[str, ...] = ()
    feature_map: FeatureMap | None = None
    adapted: Annotated[FloatArray | None, Wire("adapted_parameters")] = None

    def grid(self, records: int) -> tuple[int, Integer]:
        """Exponent and width of the noise's grid, from public numbers alone; see `sum_grid`.

        Raises:
            InvalidValue: sigma is so small that the sum could leave the widest grid.
        """
        return sum_grid(float(records), sigma=self.sigma)


@dataclass(frozen=True, eq=False)
class SumsRequest(MessagePayload, message=pb.FeatureSumsRequest, field="payload"):
    """What a step brings.

    Attributes:
        adapted: (p,) values of the declared parameters, one behind the other; None for the run's.
        feature_map: public; None for the run's.
    """

    adapted: Annotated[FloatArray | None, Wire("adapted_parameters")] = None
    feature_map: FeatureMap | None = None


@dataclass(frozen=True, eq=False)
class SumsReply(MessagePayload, message=pb.FeatureSumsReply, field="reply"):
    """What a step returns.

    Attributes:
        sum: (d,), the noised sum of the clipped features.
    """

    sum: Annotated[GridArray, Wire(shape=("d",), most=protocol.MAX_RELEASE_VALUES)]


class _Sums:
    """The exact sum of rounded features; see `Accumulator`."""

    def __init__(self, dimension: int, feature_map: FeatureMap | None, device: torch.device) -> None:
        self._map = feature_map
        self._total = torch.zeros(dimension, dtype=torch.int64, device=device)

    @property
    def sums(self) -> tuple[Integers, ...]:
        """The sum (d,) in units of 2^-20."""
        return (self._total.cpu().numpy(),)

    def add(self, features: Tensor, labels: LabelArray | None) -> None:
        """See `Accumulator`."""
        v = rounded_features(features, self._map, bits=_BITS)
        self._total += v.to(torch.int64).sum(dim=0)


class FeatureSums(LinearMechanism[SumsDeclaration, SumsRequest, SumsReply]):
    """The sum over all records of features clipped to norm 1/2: one replaced record moves it by at most 1."""

    name = "feature_sums"
    declaration = SumsDeclaration
    request = SumsRequest
    reply = SumsReply

    def violations(self, declared: SumsDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """See `Mechanism`."""
        broken = positive("declaration.sigma", declared.sigma)
        width = 4  # bytes of one value
        if not broken:
            try:
                width = BYTES[declared.grid(facts.data.records)[1]]
            except InvalidValue as error:
                broken.append(("declaration.sigma", str(error)))
        if facts.data.records > _MOST_RECORDS:
            broken.append(("parameters.batch_size", f"is {facts.data.records}; at most {_MOST_RECORDS} are added up"))
        field, names, shapes = "declaration.parameters", declared.parameters, facts.model.parameter_shapes
        if len(set(names)) != len(names):
            broken.append((field, "must name each parameter once"))
        if unknown := [name for name in names if name not in shapes]:
            some = ", ".join(sorted(shapes)[:20]) or "none"
            broken.append((field, f"{unknown[:5]} are no parameters of the extractor with a gradient; it has {some}"))
        if (size := facts.model.size(names)) > limits.max_adapted_parameters:
            broken.append((field, f"have {size} values; at most {limits.max_adapted_parameters} are allowed"))
        broken += adapted_violations("declaration.adapted_parameters", declared.adapted, names, facts)
        d = facts.model.feature_dimension
        most = min(protocol.MAX_RELEASE_VALUES, max(0, limits.max_message_bytes - protocol.FRAMING_BYTES) // width)
        if d > most:
            broken.append(("parameters.graph_digest", f"computes {d} features; sums of at most {most} are sent"))
        return broken + map_violations(declared.feature_map, facts, "declaration.feature_map")

    def check(self, request: SumsRequest, declared: SumsDeclaration, facts: Facts, limits: Limits) -> list[Violation]:
        """See `Mechanism`."""
        broken = adapted_violations("payload.adapted_parameters", request.adapted, declared.parameters, facts)
        return broken + map_violations(request.feature_map, facts, "payload.feature_map")

    def synthetic(self, declared: SumsDeclaration, run: RunSize, facts: Facts) -> SumsRequest:
        """See `Mechanism`."""
        d, p = facts.model.feature_dimension, facts.model.size(declared.parameters)
        made = np.random.default_rng(2).normal(0.0, 0.01, p).astype(np.float32)
        return SumsRequest(made if p else None, FeatureMap.identity(d))

    def parts(self, declared: SumsDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """See `Mechanism`."""
        d, step = facts.model.feature_dimension, declared.sigma * 2.0 ** -declared.grid(facts.data.records)[0]
        return (BoundedSum(values=d, sensitivity=1.0, changed=d, sigma=declared.sigma, grid_step=step),)

    def work(self, declared: SumsDeclaration) -> tuple[object, ...]:
        """See `Mechanism`: neither noise nor values cost time."""
        return declared.parameters

    def stepped(self, declared: SumsDeclaration, request: SumsRequest) -> SumsDeclaration:
        """See `LinearMechanism`."""
        adapted = declared.adapted if request.adapted is None else request.adapted
        return replace(declared, adapted=adapted, feature_map=request.feature_map or declared.feature_map)

    def evaluated(
        self,
        declared: SumsDeclaration,
        records: FloatArray,
        model: Session,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """See `LinearMechanism`."""
        return model.features(
            records, adapted=declared.adapted, names=declared.parameters, differentiable=False, meanwhile=meanwhile
        )

    def accumulator(self, declared: SumsDeclaration, facts: Facts, device: torch.device) -> _Sums:
        """See `LinearMechanism`."""
        feature_map = None if declared.feature_map is None else declared.feature_map.to(device)
        return _Sums(facts.model.feature_dimension, feature_map, device)

    def reaches(self, declared: SumsDeclaration, facts: Facts) -> tuple[Reach, ...]:
        """See `LinearMechanism`."""
        return (Reach(radius(facts.model.feature_dimension, _BITS)),)

    def released(self, declared: SumsDeclaration, facts: Facts, total: ShardSum, noise: NoiseSource) -> SumsReply:
        """See `LinearMechanism`."""
        (sums,) = total.sums
        signal = torch.from_numpy(sums / (2.0 * radius(facts.model.feature_dimension, _BITS)))
        exponent, integer = declared.grid(facts.data.records)
        return SumsReply(release_finely(signal, sigma=declared.sigma, exponent=exponent, noise=noise, integer=integer))

    def summary(self, declared: SumsDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        return f"noised sums of {facts.model.feature_dimension} features over all records"


def adapted_violations(field: str, adapted: FloatArray | None, names: tuple[str, ...], facts: Facts) -> list[Violation]:
    """Whether a step, or a run, brings as many values of these parameters as they have, or none at all."""
    size = facts.model.size(names)
    if adapted is None or adapted.size == size:
        return []
    return [(field, f"holds {adapted.size} values; the run's parameters have {size}")]


FEATURE_SUMS = FeatureSums()
