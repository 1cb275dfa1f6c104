"""Class counts, class sums and shared second moments of features, released once as one noised sum.

docs/privacy/class-statistics.md derives the price. The labels are private; public is what the operator declares: the
number of classes, and whether every record has a label. A record without one adds nothing. The sum is linear in the
records, so the sums of several hospitals add up, each with its own noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.core.mechanisms.class_statistics.sums import ClassSums, feature_bits
from dpswd.shared.core.mechanisms.interface import Facts, Limits, RunSize
from dpswd.shared.core.mechanisms.linear import LinearMechanism, Reach, ShardSum
from dpswd.shared.core.mechanisms.rounded_features import radius
from dpswd.shared.core.mechanisms.sliced import map_violations
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray, Integer, NoiseSource, release_finely, sum_grid
from dpswd.shared.core.privacy.events import BoundedSum, Part
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.arrays import BYTES
from dpswd.shared.core.wire.checks import Violation, positive, positive_or_zero
from dpswd.shared.core.wire.payloads import MessagePayload, NoPayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb


@dataclass(frozen=True, eq=False)
class StatisticsDeclaration(MessagePayload, message=pb.ClassStatisticsDeclaration, field="parameters.declaration"):
    """What a run declares.

    Attributes:
        classes: C.
        count_weight: a of a record's one in its class's count; 0 without counts.
        moment_weight: beta of the second moments; 0 without them.
        centring: kappa, from 0 (plain class sums) to 1 (what the classes have in common is taken off: with two classes
            their difference alone is left, and the noise is smaller by the root of 2).
        sigma: standard deviation of the noise on each coordinate of the sum.
        feature_map: public; None for the identity. Features are clipped after it and brought to norm 1 at most.
    """

    classes: int
    count_weight: float
    moment_weight: float
    centring: float
    sigma: float
    feature_map: FeatureMap | None = None

    @property
    def weights(self) -> Weights:
        """Of a record's blocks."""
        return Weights(self.classes, self.count_weight, self.moment_weight, self.centring)

    def values(self, dimension: int) -> int:
        """Coordinates of the sum for d features."""
        return self.classes * (1 + dimension) + (moments_of(dimension) if self.moment_weight else 0)

    def grid(self, records: int) -> tuple[int, Integer]:
        """Exponent and width of the noise's grid, from public numbers alone; see `sum_grid`.

        Raises:
            InvalidValue: sigma is so small that the sum could leave the widest grid.
        """
        return sum_grid(records * max(1.0, self.count_weight, self.moment_weight), sigma=self.sigma)


class StatisticsRequest(NoPayload):
    """What a step brings: nothing."""


@dataclass(frozen=True, eq=False)
class StatisticsReply(MessagePayload, message=pb.ClassStatisticsReply, field="reply"):
    """What a step returns.

    Attributes:
        sum: (m,), the noised sum: for each class a times its count, and its features, centred as was declared; then
            beta times the second moments' upper triangle, row by row, entries off the diagonal times the root of 2.
    """

    sum: Annotated[GridArray, Wire(shape=("values",), most=protocol.MAX_RELEASE_VALUES)]


@dataclass(frozen=True, eq=False)
class Sums:
    """The blocks of a released sum, each divided by its weight. Noised.

    Attributes:
        counts: (C,) records of each class, less kappa / C of all.
        features: (C, d) sums of the features u of each class, less kappa / C of the sum over all.
        moments: (d, d) symmetric sum of u u^T; None where it was not released.
    """

    counts: npt.NDArray[np.float64]
    features: npt.NDArray[np.float64]
    moments: npt.NDArray[np.float64] | None

    @classmethod
    def of(cls, reply: StatisticsReply, declared: StatisticsDeclaration, dimension: int) -> Sums:
        """Takes a reply apart.

        Args:
            reply: of a step.
            declared: by its run.
            dimension: d.

        Raises:
            InvalidValue: the reply has another length than such a run's.
        """
        values = reply.sum.to_numpy()
        if values.shape != (declared.values(dimension),):
            raise InvalidValue(f"the reply holds {values.size} values; the run releases {declared.values(dimension)}")
        classes = declared.classes
        by_class = values[: classes * (1 + dimension)].reshape(classes, 1 + dimension)
        # Without a weight nothing of the counts is in the sum; what was released of them is noise.
        counts = by_class[:, 0] / declared.count_weight if declared.count_weight else np.zeros(classes)
        moments = None
        if declared.moment_weight:
            moments = np.zeros((dimension, dimension))
            rows, columns = np.triu_indices(dimension)
            off = np.where(rows == columns, 1.0, np.sqrt(2.0))
            moments[rows, columns] = values[classes * (1 + dimension) :] / (declared.moment_weight * off)
            moments = moments + np.triu(moments, 1).T
        return cls(counts, by_class[:, 1:].copy(), moments)


class ClassStatistics(LinearMechanism[StatisticsDeclaration, StatisticsRequest, StatisticsReply]):
    """Counts, sums and second moments of clipped features by class, over all labelled records."""

    name = "class_statistics"
    declaration = StatisticsDeclaration
    request = StatisticsRequest
    reply = StatisticsReply
    needs_labels = True
    partial_labels = True

    def violations(
        self, declared: StatisticsDeclaration, run: RunSize, facts: Facts, limits: Limits
    ) -> list[Violation]:
        """See `Mechanism`."""
        broken = positive("declaration.sigma", declared.sigma)
        for name in ("count_weight", "moment_weight", "centring"):
            broken += positive_or_zero(f"declaration.{name}", getattr(declared, name))
        if declared.centring > 1.0:
            broken.append(("declaration.centring", f"is {declared.centring}; allowed are 0 to 1"))
        width = 4  # bytes of one value
        if not broken:
            try:
                width = BYTES[declared.grid(facts.data.records)[1]]
            except InvalidValue as error:
                broken.append(("declaration.sigma", str(error)))
        if declared.classes != facts.data.classes:
            text = f"is {declared.classes}; the data set's labels have {facts.data.classes}"
            return [*broken, ("declaration.classes", text)]
        d = facts.model.feature_dimension
        values, most = (
            declared.values(d),
            min(protocol.MAX_RELEASE_VALUES, max(0, limits.max_message_bytes - protocol.FRAMING_BYTES) // width),
        )
        if values > most:
            text = f"computes {d} features, whose sums have {values} values; at most {most} are sent"
            advice = "leave out the second moments (moment_weight 0), or " if declared.moment_weight else ""
            broken.append(("parameters.graph_digest", f"{text}: {advice}use fewer features"))
        return broken + map_violations(declared.feature_map, facts, "declaration.feature_map")

    def parts(self, declared: StatisticsDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """See `Mechanism`."""
        d = facts.model.feature_dimension
        touched = declared.classes if declared.centring else 2  # classes whose sums a replacement may change
        changed = touched * (1 + d) + (moments_of(d) if declared.moment_weight else 0)
        step = declared.sigma * 2.0 ** -declared.grid(facts.data.records)[0]
        part = BoundedSum(
            values=declared.values(d),
            sensitivity=declared.weights.sensitivity(),
            changed=changed,
            sigma=declared.sigma,
            grid_step=step,
        )
        return (part,)

    def work(self, declared: StatisticsDeclaration) -> tuple[object, ...]:
        """See `Mechanism`: neither weights nor noise nor the map's values cost time."""
        return (declared.classes, bool(declared.moment_weight))

    def accumulator(self, declared: StatisticsDeclaration, facts: Facts, device: torch.device) -> ClassSums:
        """See `LinearMechanism`."""
        return ClassSums(
            classes=declared.classes,
            dimension=facts.model.feature_dimension,
            moments=bool(declared.moment_weight),
            bits=feature_bits(facts.data.records),
            feature_map=None if declared.feature_map is None else declared.feature_map.to(device),
            device=device,
        )

    def reaches(self, declared: StatisticsDeclaration, facts: Facts) -> tuple[Reach, ...]:
        """See `LinearMechanism`."""
        norm = radius(facts.model.feature_dimension, feature_bits(facts.data.records))
        return Reach(1, counts=True), Reach(norm), Reach(norm * norm)

    def released(
        self, declared: StatisticsDeclaration, facts: Facts, total: ShardSum, noise: NoiseSource
    ) -> StatisticsReply:
        """See `LinearMechanism`."""
        counts, features, moments = total.sums
        unit = 1.0 / radius(facts.model.feature_dimension, feature_bits(facts.data.records))
        by_class = np.concatenate([declared.count_weight * counts[:, None], features * unit], axis=1)
        by_class -= declared.centring / declared.classes * by_class.sum(axis=0)
        signal = by_class.reshape(-1)
        if declared.moment_weight:
            signal = np.concatenate([signal, declared.moment_weight * _upper(moments * (unit * unit))])
        # What a smaller or larger sample's grid would be is no matter: the declared n is the price's.
        exponent, integer = declared.grid(facts.data.records)
        released = release_finely(
            torch.from_numpy(signal), sigma=declared.sigma, exponent=exponent, noise=noise, integer=integer
        )
        return StatisticsReply(released)

    def summary(self, declared: StatisticsDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        d = facts.model.feature_dimension
        text = f"noised counts and sums of {d} features for each of {declared.classes} classes"
        return f"{text}, and their {d} x {d} second moments" if declared.moment_weight else text


def moments_of(dimension: int) -> int:
    """Values of a symmetric (d, d) matrix."""
    return dimension * (dimension + 1) // 2


def _upper(moments: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
    """The upper triangle row by row, off the diagonal times the root of 2: its norm is the matrix's Frobenius norm."""
    rows, columns = np.triu_indices(len(moments))
    upper = moments[rows, columns]
    upper[rows != columns] *= 2.0**0.5
    return upper


CLASS_STATISTICS = ClassStatistics()
