"""Class counts, class sums and shared second moments of features, released once as one noised sum.

docs/privacy/class-statistics.md derives the price. The labels are private; public is what the operator declares: the
number of classes, and whether every record has a label. A record without one adds nothing. The sum is linear in the
records, so the sums of several hospitals add up, each with its own noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from shared.errors import InvalidValue
from shared.kernels.clipping import RECORD_NORM
from shared.kernels.feature_map import FeatureMap
from shared.kernels.noise import GridArray, finest_exponent, release_finely
from shared.mechanisms.class_statistics.geometry import Weights
from shared.mechanisms.clipped_sum import FRAMING_BYTES
from shared.mechanisms.interface import UNLABELLED, Facts, Limits, Mechanism, RunSize, Step
from shared.mechanisms.sliced import map_violations
from shared.privacy.events import BoundedSum, Part
from shared.protocol import limits as protocol
from shared.protocol.checks import Violation, positive, positive_or_zero
from shared.protocol.payloads import MessagePayload, NoPayload, Wire
from shared.protocol.v1 import curator_pb2 as pb

_RECORDS_AT_A_TIME = 4096
"""Bounds memory; the sum does not depend on it but for the rounding of float64."""


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

    def exponent(self, records: int) -> int:
        """Of the noise's grid, from public numbers alone: as fine as a sum over so many records allows.

        Raises:
            InvalidValue: sigma is so small that the sum could leave 32 bits on any grid.
        """
        return finest_exponent(records * max(1.0, self.count_weight, self.moment_weight), sigma=self.sigma)


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


class ClassStatistics(Mechanism[StatisticsDeclaration, StatisticsRequest, StatisticsReply]):
    """Counts, sums and second moments of clipped features by class, over all labelled records."""

    name = "class_statistics"
    declaration = StatisticsDeclaration
    request = StatisticsRequest
    reply = StatisticsReply
    needs_labels = True
    whole = True

    def violations(
        self, declared: StatisticsDeclaration, run: RunSize, facts: Facts, limits: Limits
    ) -> list[Violation]:
        """See `Mechanism`."""
        broken = positive("declaration.sigma", declared.sigma)
        for name in ("count_weight", "moment_weight", "centring"):
            broken += positive_or_zero(f"declaration.{name}", getattr(declared, name))
        if declared.centring > 1.0:
            broken.append(("declaration.centring", f"is {declared.centring}; allowed are 0 to 1"))
        if not broken:
            try:
                declared.exponent(facts.data.records)
            except InvalidValue as error:
                broken.append(("declaration.sigma", str(error)))
        if declared.classes != facts.data.classes:
            text = f"is {declared.classes}; the data set's labels have {facts.data.classes}"
            return [*broken, ("declaration.classes", text)]
        d = facts.model.feature_dimension
        values, most = declared.values(d), min(protocol.MAX_RELEASE_VALUES, _values_of(limits.max_message_bytes))
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
        step = declared.sigma * 2.0 ** -declared.exponent(facts.data.records)
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

    def compute(self, declared: StatisticsDeclaration, request: StatisticsRequest, step: Step) -> StatisticsReply:
        """See `Mechanism`."""
        d, count = step.facts.model.feature_dimension, step.sample.count
        feature_map = (declared.feature_map or FeatureMap.identity(d)).to(step.device)
        by_class = torch.zeros((declared.classes, 1 + d), dtype=torch.float64, device=step.device)
        moments = torch.zeros((d, d) if declared.moment_weight else (0, 0), dtype=torch.float64, device=step.device)
        for start in range(0, count, _RECORDS_AT_A_TIME):
            records, labels = step.sample.take(start, min(start + _RECORDS_AT_A_TIME, count))
            assert labels is not None, "offered only where there are labels"
            raw = step.model.features(records).to(step.device)
            u = feature_map.clipped(raw).to(torch.float64) / RECORD_NORM  # (m, d), |u| <= 1, record by record
            classes = torch.from_numpy(labels).to(step.device)
            labelled = (classes != UNLABELLED)[:, None]  # a record without a label adds nothing to any block
            u = u * labelled
            kinds = functional.one_hot(classes.clamp(min=0), declared.classes).to(torch.float64) * labelled
            by_class[:, 0] += declared.count_weight * kinds.sum(dim=0)
            by_class[:, 1:] += kinds.T @ u
            if declared.moment_weight:
                moments += u.T @ u
        by_class -= declared.centring / declared.classes * by_class.sum(dim=0)
        step.reached("extracted")
        signal = by_class.reshape(-1)
        if declared.moment_weight:
            signal = torch.cat((signal, declared.moment_weight * _upper(moments)))
        # What a smaller or larger sample's grid would be is no matter: the declared n is the price's.
        exponent = declared.exponent(step.facts.data.records)
        released = release_finely(signal, sigma=declared.sigma, exponent=exponent, noise=step.noise)
        step.reached("released")
        return StatisticsReply(released)

    def summary(self, declared: StatisticsDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        d = facts.model.feature_dimension
        told = f"noised counts and sums of {d} features for each of {declared.classes} classes"
        return f"{told}, and their {d} x {d} second moments" if declared.moment_weight else told


def moments_of(dimension: int) -> int:
    """Values of a symmetric (d, d) matrix."""
    return dimension * (dimension + 1) // 2


def _upper(moments: Tensor) -> Tensor:
    """The upper triangle row by row, off the diagonal times the root of 2: its norm is the matrix's Frobenius norm."""
    d = len(moments)
    rows, columns = torch.triu_indices(d, d, device=moments.device)
    off = torch.where(rows == columns, 1.0, 2.0**0.5).to(moments)
    return moments[rows, columns] * off


def _values_of(message_bytes: int) -> int:
    """How many int32 values fit into a message."""
    return max(0, message_bytes - FRAMING_BYTES) // 4


CLASS_STATISTICS = ClassStatistics()
