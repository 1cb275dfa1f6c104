"""Events: frozen values that describe a release completely enough for a stranger to price it.

**What must never change.** The ledger stores these values for the life of a data set. The meaning of a class, of a
field, and of the shift that ``StepEvent.shift`` derives from them must never change, because old charges would
silently be priced anew. To describe something new, add a class and a new kind in ``serialisation``.

The parts of one step are computed from one secret, uniformly ordered sample of ``batch`` records out of ``records``,
drawn without replacement (batch = records: the full batch). They are one mechanism: their squared shifts add up,
and amplification by sampling is applied once. A later part may depend on the outputs of the earlier ones.

Grids (docs/privacy, 7). A part with ``grid_step`` g > 0 rounds the values before noising to the grid g Z and adds
noise that is a rounded N(0, sigma^2): post-processing of the continuous mechanism on rounded values. Rounding moves
each of m values of two neighbours apart by at most g, so a sensitivity D becomes D + g sqrt(m). For the random
D^2 = w H of a sliced part the square is split with the fixed rule t = sqrt(g^2 m / (w k/d)):
    (sqrt(w H) + g sqrt(m))^2 <= (1 + t) w H + (1 + 1/t) g^2 m,
the choice of t that makes the mean of the right-hand side smallest.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TypeAlias

from shared.errors import InvalidEvent
from shared.privacy.curves import ShiftLaw
from shared.privacy.event_parts import (
    FIXED_PARTS,
    MAX_RECORDS,
    MAX_SIGMA,
    MAX_STEPS,
    MIN_SIGMA,
    SLICED_PARTS,
    BoundedSum,
    FixedPart,
    Part,
    QuantileCoefficients,
    RowProjections,
    SanitizedGradient,
    SlicedPart,
    check_number,
    check_whole,
    fixed_shift,
)

__all__ = [
    "ApproximateCharge",
    "BoundedSum",
    "Event",
    "LaplaceRelease",
    "NeighbouringRelation",
    "Part",
    "QuantileCoefficients",
    "RowProjections",
    "RunEvent",
    "SanitizedGradient",
    "StepEvent",
]


class NeighbouringRelation(enum.Enum):
    """Which data sets the guarantee cannot tell apart. One relation for each data set, stored with its budget."""

    REPLACE_ONE = "replace-one"
    """One record is replaced by another one; the number of records is public."""


@dataclass(frozen=True)
class StepEvent:
    """One joint release of ``parts`` from one ordered sample without replacement.

    Attributes:
        records: n, public.
        batch: b, from 1 to n; b = n is the full batch.
        parts: at least one part, at most one of them sliced (they would need a law for each U); in order of release.
        relation: the neighbouring relation.
    """

    records: int
    batch: int
    parts: tuple[Part, ...]
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE_ONE

    def __post_init__(self) -> None:
        check_whole("records", self.records, 1, MAX_RECORDS)
        check_whole("batch", self.batch, 1, self.records)
        if not isinstance(self.parts, tuple) or not self.parts:
            raise InvalidEvent("parts must be a tuple of at least one part")
        for part in self.parts:
            if type(part) not in (*SLICED_PARTS, *FIXED_PARTS):
                raise InvalidEvent(
                    f"parts holds a {type(part).__name__}; allowed are RowProjections, QuantileCoefficients, "
                    "SanitizedGradient and BoundedSum, not nested"
                )
        sliced = [part for part in self.parts if isinstance(part, SLICED_PARTS)]
        if len(sliced) > 1:
            raise InvalidEvent(f"parts holds {len(sliced)} sliced parts; at most one can be priced, use a second step")
        if sliced and self.parts[0] is not sliced[0]:
            raise InvalidEvent("the sliced part must be the first of parts: it is released before any other")
        for part in sliced:
            if isinstance(part, QuantileCoefficients) and part.coefficients > self.batch:
                raise InvalidEvent(f"coefficients is {part.coefficients}; it must be at most the batch {self.batch}")
        _relation(self.relation)

    @property
    def sampling_ratio(self) -> float:
        """The ratio gamma = b/n."""
        return self.batch / self.records

    @property
    def sliced_part(self) -> SlicedPart | None:
        """The projections of this step, if it releases any."""
        first = self.parts[0]
        return first if isinstance(first, SLICED_PARTS) else None

    @property
    def fixed_parts(self) -> tuple[FixedPart, ...]:
        """The parts of fixed sensitivity (gradients, sums), in order of release."""
        return tuple(part for part in self.parts if isinstance(part, FIXED_PARTS))

    @property
    def rows_add_up(self) -> bool:
        """Whether the sliced part's shifts of three pairwise neighbours add up linearly (no sorting)."""
        return not isinstance(self.sliced_part, QuantileCoefficients)

    def sliced_shift(self) -> ShiftLaw:
        """The law of the squared shift of the sliced part alone (scale 0 where there is none)."""
        part = self.sliced_part
        if part is None:
            return ShiftLaw(feature_dimension=1, directions=1, scale=0.0, constant=0.0)
        d, k = part.feature_dimension, part.directions
        values = k
        weight = 1.0
        if isinstance(part, QuantileCoefficients):
            values = part.coefficients * k
            weight = min(1.0, (2 * part.coefficients - 1) / self.batch)
        rounding = part.grid_step**2 * values  # squared norm of the largest difference of two roundings
        variance = part.sigma**2
        if rounding == 0.0:
            return ShiftLaw(feature_dimension=d, directions=k, scale=weight / variance, constant=0.0)
        t = math.sqrt(rounding / (weight * k / d))
        return ShiftLaw(
            feature_dimension=d,
            directions=k,
            scale=(1.0 + t) * weight / variance,
            constant=(1.0 + 1.0 / t) * rounding / variance,
        )

    def shift(self) -> ShiftLaw:
        """The law of the squared shift of the whole step, in units of noise variance (one-record replacement)."""
        sliced = self.sliced_shift()
        constant = sliced.constant + math.fsum(fixed_shift(part) for part in self.fixed_parts)
        return ShiftLaw(
            feature_dimension=sliced.feature_dimension,
            directions=sliced.directions,
            scale=sliced.scale,
            constant=constant,
        )


@dataclass(frozen=True)
class RunEvent:
    """``steps`` repetitions of one step with fresh samples, directions and noise, committed before the first one.

    Attributes:
        step: the step.
        steps: T, at least 1.
    """

    step: StepEvent
    steps: int

    def __post_init__(self) -> None:
        if type(self.step) is not StepEvent:
            raise InvalidEvent(f"step is a {type(self.step).__name__}; it must be a StepEvent, runs do not nest")
        check_whole("steps", self.steps, 1, MAX_STEPS)

    @property
    def relation(self) -> NeighbouringRelation:
        """The neighbouring relation of the run's step."""
        return self.step.relation


@dataclass(frozen=True)
class LaplaceRelease:
    """Values with L1 sensitivity D (replace one) and Laplace noise of scale s, continuous or discrete.

    The discrete law is P(x) proportional to exp(-|x|/s) on the integers. Price (epsilon, delta) = (D/s, 0).

    Attributes:
        sensitivity: D. A histogram of labels moves by 2 when one record is replaced.
        scale: s.
        discrete: whether values and noise are integers.
        relation: the neighbouring relation.
    """

    sensitivity: float
    scale: float
    discrete: bool
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE_ONE

    def __post_init__(self) -> None:
        check_number(self, "sensitivity", MIN_SIGMA, MAX_SIGMA)
        check_number(self, "scale", MIN_SIGMA, MAX_SIGMA)
        if not isinstance(self.discrete, bool):
            raise InvalidEvent(f"discrete is {self.discrete!r}; it must be True or False")
        if self.discrete and not self.sensitivity.is_integer():
            raise InvalidEvent(f"sensitivity is {self.sensitivity}; integers have a whole sensitivity")
        _relation(self.relation)

    @property
    def epsilon(self) -> float:
        """D/s, rounded up."""
        return math.nextafter(self.sensitivity / self.scale, math.inf)

    @property
    def delta(self) -> float:
        """0: a pure charge."""
        return 0.0


@dataclass(frozen=True)
class ApproximateCharge:
    """Any mechanism that is (epsilon, delta)-differentially private by an argument of its own.

    Attributes:
        epsilon: at least 0.
        delta: from 0 to below 1.
        relation: the neighbouring relation.
    """

    epsilon: float
    delta: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE_ONE

    def __post_init__(self) -> None:
        check_number(self, "epsilon", 0.0, MAX_SIGMA)
        check_number(self, "delta", 0.0, math.nextafter(1.0, 0.0))
        _relation(self.relation)


Event: TypeAlias = RunEvent | LaplaceRelease | ApproximateCharge


def _relation(value: object) -> None:
    if value is not NeighbouringRelation.REPLACE_ONE:
        raise InvalidEvent(f"relation is {value!r}; this accountant prices NeighbouringRelation.REPLACE_ONE only")
