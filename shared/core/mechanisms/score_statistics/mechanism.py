"""Class counts, and gradient and curvature of the log-loss in a correction of a model's scores: one noised sum.

docs/privacy/score-statistics.md derives the price. The graph computes of a record a basis and scores; the labels are
private. A step brings the correction at which gradient and curvature are taken, so a run of several steps is Newton's
method with the client in the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Facts, FloatArray, Limits, RunSize
from dpswd.shared.core.mechanisms.linear import LinearMechanism, Reach, ShardSum
from dpswd.shared.core.mechanisms.score_statistics.geometry import ROUNDED, released_values, sensitivity
from dpswd.shared.core.mechanisms.score_statistics.sums import ScoreSums
from dpswd.shared.core.noise.noise import GridArray, Integer, NoiseSource, release_finely, sum_grid
from dpswd.shared.core.privacy.events import BoundedSum, Part
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.arrays import BYTES
from dpswd.shared.core.wire.checks import Violation, positive, positive_or_zero
from dpswd.shared.core.wire.payloads import MessagePayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

MOST_SCALE = 1e6
"""Of the basis before its clip, which takes off what is longer than about 1."""


@dataclass(frozen=True, eq=False)
class ScoresDeclaration(MessagePayload, message=pb.ScoreStatisticsDeclaration, field="parameters.declaration"):
    """What a run declares.

    Attributes:
        classes: C.
        count_weight: a of a record's one in its class's count; 0 without counts.
        square_weight: beta of the curvature's square.
        sigma: standard deviation of the noise on each coordinate of the sum.
        scale: (d,) by which the basis is multiplied before its clip; the first number is of the constant 1, which the
            mechanism adds to what the graph computes.
        correction: of one step (`ScoreStatistics.stepped`); a run declares none.
    """

    classes: int
    count_weight: float
    square_weight: float
    sigma: float
    scale: FloatArray
    correction: FloatArray | None = None

    @property
    def columns(self) -> int:
        """D of the basis."""
        return len(self.scale)

    @property
    def values(self) -> int:
        """Coordinates of the sum."""
        return released_values(self.classes, self.columns)

    def sensitivity(self) -> float:
        """What replacing one record moves the sum by at most."""
        return sensitivity(count_weight=self.count_weight, square_weight=self.square_weight, values=self.values)

    def grid(self, records: int) -> tuple[int, Integer]:
        """Exponent and width of the noise's grid, from public numbers alone; see `sum_grid`.

        Raises:
            InvalidValue: sigma is so small that the sum could leave the widest grid.
        """
        return sum_grid(records * max(1.0, self.count_weight, self.square_weight), sigma=self.sigma)


@dataclass(frozen=True, eq=False)
class ScoresRequest(MessagePayload, message=pb.ScoreStatisticsRequest, field="payload"):
    """What a step brings.

    Attributes:
        correction: (C, d) whose product with the basis is added to the scores.
    """

    correction: FloatArray


@dataclass(frozen=True, eq=False)
class ScoresReply(MessagePayload, message=pb.ScoreStatisticsReply, field="reply"):
    """What a step returns.

    Attributes:
        sum: (m,), the noised sum: a times the counts (C), the gradient (C, d) row by row, and beta times the upper
            triangle of the square, row by row, entries off the diagonal times the root of 2.
    """

    sum: Annotated[GridArray, Wire(shape=("values",), most=protocol.MAX_RELEASE_VALUES)]


@dataclass(frozen=True, eq=False)
class Scored:
    """The blocks of a released sum, each divided by its weight. Noised.

    Attributes:
        counts: (C,) records of each class; zeros where they were not released.
        gradient: (C, d) sum of (label - probability) u^T / sqrt(2).
        square: (d, d) sum of (1 - |p|^2) / 2 u u^T.
    """

    counts: npt.NDArray[np.float64]
    gradient: npt.NDArray[np.float64]
    square: npt.NDArray[np.float64]

    @classmethod
    def of(cls, reply: ScoresReply, declared: ScoresDeclaration) -> Scored:
        """Takes a reply apart.

        Raises:
            InvalidValue: the reply has another length than such a run's.
        """
        values, classes, d = reply.sum.to_numpy(), declared.classes, declared.columns
        if values.shape != (declared.values,):
            raise InvalidValue(f"the reply holds {values.size} values; the run releases {declared.values}")
        counts, gradient, upper = np.split(values, [classes, classes * (1 + d)])
        rows, columns = np.triu_indices(d)
        square = np.zeros((d, d))
        square[rows, columns] = upper / (declared.square_weight * np.where(rows == columns, 1.0, np.sqrt(2.0)))
        square += np.triu(square, 1).T
        counts = counts / declared.count_weight if declared.count_weight else np.zeros(classes)
        return cls(counts, gradient.reshape(classes, d), square)


class ScoreStatistics(LinearMechanism[ScoresDeclaration, ScoresRequest, ScoresReply]):
    """Counts of the classes, and how the log-loss changes with a correction of the scores."""

    name = "score_statistics"
    declaration = ScoresDeclaration
    request = ScoresRequest
    reply = ScoresReply
    needs_labels = True
    partial_labels = True

    def violations(self, declared: ScoresDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """See `Mechanism`."""
        broken = positive("declaration.sigma", declared.sigma)
        broken += positive_or_zero("declaration.count_weight", declared.count_weight)
        broken += positive("declaration.square_weight", declared.square_weight)
        classes, outputs = facts.data.classes, facts.model.feature_dimension
        if declared.classes != classes:
            text = f"is {declared.classes}; the data set's labels have {classes}"
            return [*broken, ("declaration.classes", text)]
        if outputs < classes:
            text = f"computes {outputs} numbers of each record; needed are a score for each of {classes} classes, last"
            return [*broken, ("parameters.graph_digest", text)]
        d = 1 + outputs - classes
        if declared.scale.shape != (d,) or not ((declared.scale > 0.0) & (declared.scale <= MOST_SCALE)).all():
            text = f"has shape {declared.scale.shape}; needed are {d} numbers above 0 and up to {MOST_SCALE:g}"
            return [*broken, ("declaration.scale", text)]
        if declared.correction is not None:
            broken.append(("declaration.correction", "is present; each step brings its own"))
        return broken or self._too_large(declared, facts, limits)

    def _too_large(self, declared: ScoresDeclaration, facts: Facts, limits: Limits) -> list[Violation]:
        try:
            width = BYTES[declared.grid(facts.data.records)[1]]
        except InvalidValue as error:
            return [("declaration.sigma", str(error))]
        room = max(0, limits.max_message_bytes - protocol.FRAMING_BYTES)
        most = min(protocol.MAX_RELEASE_VALUES, room // width)
        if declared.values <= most:
            return []
        text = f"computes a basis of {declared.columns} numbers, whose sums have {declared.values} values"
        return [("parameters.graph_digest", f"{text}; at most {most} are sent: use a smaller basis")]

    def check(
        self, request: ScoresRequest, declared: ScoresDeclaration, facts: Facts, limits: Limits
    ) -> list[Violation]:
        """See `Mechanism`."""
        shape = (declared.classes, declared.columns)
        if request.correction.shape != shape:
            return [("payload.correction", f"has shape {request.correction.shape}; this run declared {shape}")]
        return []

    def synthetic(self, declared: ScoresDeclaration, run: RunSize, facts: Facts) -> ScoresRequest:
        """See `Mechanism`."""
        return ScoresRequest(np.zeros((declared.classes, declared.columns), dtype=np.float32))

    def parts(self, declared: ScoresDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """See `Mechanism`."""
        part = BoundedSum(
            values=declared.values,
            sensitivity=declared.sensitivity(),
            changed=declared.values - max(0, declared.classes - 2),  # counts of two classes, and all of the rest
            sigma=declared.sigma,
            grid_step=declared.sigma * 2.0 ** -declared.grid(facts.data.records)[0],
        )
        return (part,)

    def work(self, declared: ScoresDeclaration) -> tuple[object, ...]:
        """See `Mechanism`: neither weights nor noise nor a correction cost time."""
        return (declared.classes, declared.columns)

    def stepped(self, declared: ScoresDeclaration, request: ScoresRequest) -> ScoresDeclaration:
        """See `LinearMechanism`."""
        return replace(declared, correction=request.correction)

    def accumulator(self, declared: ScoresDeclaration, facts: Facts, device: torch.device) -> ScoreSums:
        """See `LinearMechanism`."""
        correction = declared.correction
        if correction is None:
            correction = np.zeros((declared.classes, declared.columns), dtype=np.float32)
        return ScoreSums(classes=declared.classes, scale=declared.scale, correction=correction)

    def reaches(self, declared: ScoresDeclaration, facts: Facts) -> tuple[Reach, ...]:
        """See `LinearMechanism`: norms of 1, and half a unit in each coordinate."""
        whole = Reach(2.0**ROUNDED + 0.5 * declared.values**0.5)
        return Reach(1, counts=True), whole, whole

    def released(self, declared: ScoresDeclaration, facts: Facts, total: ShardSum, noise: NoiseSource) -> ScoresReply:
        """See `LinearMechanism`."""
        counts, gradient, square = total.sums
        unit = 2.0**-ROUNDED
        signal = np.concatenate(
            [declared.count_weight * counts, gradient.reshape(-1) * unit, square * (declared.square_weight * unit)]
        )
        exponent, integer = declared.grid(facts.data.records)
        released = release_finely(
            torch.from_numpy(signal), sigma=declared.sigma, exponent=exponent, noise=noise, integer=integer
        )
        return ScoresReply(released)

    def summary(self, declared: ScoresDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        d = declared.columns
        return f"noised counts of {declared.classes} classes, and gradient and curvature of the log-loss in {d} numbers"


SCORE_STATISTICS = ScoreStatistics()
