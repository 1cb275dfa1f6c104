"""Events: frozen values that describe a release completely enough for a stranger to price it.

**What must never change.** The ledger stores these values for the life of a data set. The meaning of a class, of a
field, and of the shift that ``StepEvent.shift`` derives from them must never change, because old charges would
silently be priced anew. To describe something new, add a class and a new kind in ``event_json``.

The parts of one step are computed from one secret, uniformly ordered sample of ``batch`` records out of ``records``,
drawn without replacement (batch = records: the full batch). They are one mechanism: their squared shifts add up,
and amplification by sampling is applied once. A later part may depend on the outputs of the earlier ones. A part is
either *sliced* (its shift follows the random directions, ``StepEvent.sliced_shift``) or of *fixed* sensitivity
(``fixed_shift``).

A part with ``grid_step`` g > 0 rounds the values before noising to the grid g Z and adds noise that is a rounded
N(0, sigma^2). A sensitivity D of m values becomes D + g sqrt(m); for the random D^2 = w H of a sliced part the square
is split with the fixed rule t = sqrt(g^2 m / (w k/d)) into (1 + t) w H + (1 + 1/t) g^2 m (docs/privacy/events.md).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import TypeAlias

from dpswd.shared.core.errors import InvalidEvent
from dpswd.shared.core.privacy.curves import MAX_DIRECTIONS, MAX_FEATURE_DIMENSION, ShiftLaw

MAX_RECORDS = 10_000_000_000
"""Largest n; beyond it float64 could not hold n and b exactly in every expression."""

MAX_STEPS = 1_000_000_000
"""Largest number of steps of one run."""

MAX_PARAMETERS = 10_000_000_000
"""Largest number of released gradient values."""

MIN_SIGMA, MAX_SIGMA = 1e-9, 1e12
"""Noise standard deviations between which every formula keeps its precision."""


@dataclass(frozen=True)
class RowProjections:
    """b noisy rows F U + V, rows of F clipped to norm 1/2, U in R^{d x k} with iid uniform unit columns.

    Squared shift: H / sigma^2 plus the grid's charge on k values (the replaced row).

    Attributes:
        feature_dimension: d, the dimension of the clipped rows.
        directions: k, the number of columns of U.
        sigma: standard deviation of V, absolute.
        grid_step: g, absolute; 0 for a continuous release.
    """

    feature_dimension: int
    directions: int
    sigma: float
    grid_step: float = 0.0

    def __post_init__(self) -> None:
        _check(self, feature_dimension=MAX_FEATURE_DIMENSION, directions=MAX_DIRECTIONS)


@dataclass(frozen=True)
class QuantileCoefficients:
    """L noisy cosine coefficients of the sorted projections in each direction (docs/privacy, 6).

    Squared shift: min(1, (2L - 1)/b) H / sigma^2 plus the grid's charge on L k values. The weight is the smaller of
    the L1 contraction's kappa/b, kappa = 1 + 2(L-1), and of an orthonormal basis' 1.

    Attributes:
        feature_dimension: d, the dimension of the rows, clipped to norm 1/2.
        directions: k, the number of columns of U.
        coefficients: L, from 1 to the batch size.
        sigma: standard deviation of the noise on each coefficient, absolute.
        grid_step: g, absolute; 0 for a continuous release.
    """

    feature_dimension: int
    directions: int
    coefficients: int
    sigma: float
    grid_step: float = 0.0

    def __post_init__(self) -> None:
        most = {"feature_dimension": MAX_FEATURE_DIMENSION, "directions": MAX_DIRECTIONS, "coefficients": MAX_RECORDS}
        _check(self, **most)


@dataclass(frozen=True)
class SanitizedGradient:
    """The sum over the sample of per-record gradients clipped to norm C, with Gaussian noise on the sum.

    Squared shift: (2C + g sqrt(p))^2 / sigma^2. A record's gradient may depend on the record, on public values and
    on the outputs of the earlier parts of the step, and on nothing else.

    Attributes:
        parameters: p, the number of values in the gradient.
        clip_norm: C, absolute.
        sigma: standard deviation of the noise on the sum, absolute.
        grid_step: g, absolute; 0 for a continuous release.
    """

    parameters: int
    clip_norm: float
    sigma: float
    grid_step: float = 0.0

    def __post_init__(self) -> None:
        _check_number(self, "clip_norm", MIN_SIGMA, MAX_SIGMA)
        _check(self, parameters=MAX_PARAMETERS)


@dataclass(frozen=True)
class BoundedSum:
    """The sum over the sample of one vector for each record, with Gaussian noise on every coordinate.

    Any two records' vectors are at most D apart in the Euclidean norm and differ in at most c coordinates (counts:
    D = sqrt(2), c = 2). A record's vector is a function of that record and of public values alone.

    Squared shift: (D + g sqrt(c))^2 / sigma^2. The *sum* is rounded to the grid: coordinates that are equal in two
    neighbouring data sets are rounded alike, so that rounding moves at most c of them, by at most g each.

    Attributes:
        values: m, the number of coordinates.
        sensitivity: D, absolute.
        changed: c, from 1 to m.
        sigma: standard deviation of the noise on each coordinate of the sum, absolute.
        grid_step: g, absolute; 0 for a continuous release.
    """

    values: int
    sensitivity: float
    changed: int
    sigma: float
    grid_step: float = 0.0

    def __post_init__(self) -> None:
        _check_number(self, "sensitivity", MIN_SIGMA, MAX_SIGMA)
        _check(self, values=MAX_PARAMETERS, changed=self.values)


@dataclass(frozen=True)
class ClippedVector:
    """Any function of the whole sample, clipped to norm C as one vector, with Gaussian noise on every coordinate.

    Squared shift: (2C + g sqrt(m))^2 / sigma^2. Besides the sample the vector may depend on public values and on the
    outputs of the earlier parts of the step, and on nothing else. Unlike a sum it may couple the records: two vectors
    of norm C are never further apart than 2C, and nothing else is used (docs/privacy/sinkhorn.md).

    Attributes:
        values: m, the number of coordinates.
        clip_norm: C, absolute.
        sigma: standard deviation of the noise on each coordinate, absolute.
        grid_step: g, absolute; 0 for a continuous release.
    """

    values: int
    clip_norm: float
    sigma: float
    grid_step: float = 0.0

    def __post_init__(self) -> None:
        _check_number(self, "clip_norm", MIN_SIGMA, MAX_SIGMA)
        _check(self, values=MAX_PARAMETERS)


SlicedPart: TypeAlias = RowProjections | QuantileCoefficients
FixedPart: TypeAlias = SanitizedGradient | BoundedSum | ClippedVector
Part: TypeAlias = SlicedPart | FixedPart

_SLICED_PARTS = (RowProjections, QuantileCoefficients)
_FIXED_PARTS = (SanitizedGradient, BoundedSum, ClippedVector)


def fixed_shift(part: FixedPart) -> float:
    """Squared shift of a part of fixed sensitivity, in units of its noise variance."""
    if isinstance(part, BoundedSum):
        return ((part.sensitivity + part.grid_step * math.sqrt(part.changed)) / part.sigma) ** 2
    values = part.values if isinstance(part, ClippedVector) else part.parameters
    return ((2.0 * part.clip_norm + part.grid_step * math.sqrt(values)) / part.sigma) ** 2


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
        _check_whole("records", self.records, 1, MAX_RECORDS)
        _check_whole("batch", self.batch, 1, self.records)
        if not isinstance(self.parts, tuple) or not self.parts:
            raise InvalidEvent("parts must be a tuple of at least one part")
        for part in self.parts:
            if type(part) not in (*_SLICED_PARTS, *_FIXED_PARTS):
                raise InvalidEvent(
                    f"parts holds a {type(part).__name__}; allowed are RowProjections, QuantileCoefficients, "
                    "SanitizedGradient, BoundedSum and ClippedVector, not nested"
                )
        sliced = [part for part in self.parts if isinstance(part, _SLICED_PARTS)]
        if len(sliced) > 1:
            raise InvalidEvent(f"parts holds {len(sliced)} sliced parts; at most one can be priced, use a second step")
        if sliced and self.parts[0] is not sliced[0]:
            raise InvalidEvent("the sliced part must be the first of parts: it is released before any other")
        for part in sliced:
            if isinstance(part, QuantileCoefficients) and part.coefficients > self.batch:
                raise InvalidEvent(f"coefficients is {part.coefficients}; it must be at most the batch {self.batch}")
        if self.relation is not NeighbouringRelation.REPLACE_ONE:
            raise InvalidEvent(
                f"relation is {self.relation!r}; this accountant prices NeighbouringRelation.REPLACE_ONE only"
            )

    @property
    def sampling_ratio(self) -> float:
        """The ratio gamma = b/n."""
        return self.batch / self.records

    @property
    def sliced_part(self) -> SlicedPart | None:
        """The projections of this step, if it releases any."""
        first = self.parts[0]
        return first if isinstance(first, _SLICED_PARTS) else None

    @property
    def fixed_parts(self) -> tuple[FixedPart, ...]:
        """The parts of fixed sensitivity (gradients, sums, clipped vectors), in order of release."""
        return tuple(part for part in self.parts if isinstance(part, _FIXED_PARTS))

    def sliced_shift(self) -> ShiftLaw:
        """The law of the squared shift of the sliced part alone (scale 0 where there is none)."""
        part = self.sliced_part
        if part is None:
            return ShiftLaw(1, 1, scale=0.0)
        d, k = part.feature_dimension, part.directions
        values, weight = k, 1.0
        if isinstance(part, QuantileCoefficients):
            values = part.coefficients * k
            weight = min(1.0, (2 * part.coefficients - 1) / self.batch)
        rounding = part.grid_step**2 * values  # squared norm of the largest difference of two roundings
        variance = part.sigma**2
        if rounding == 0.0:
            return ShiftLaw(d, k, scale=weight / variance)
        t = math.sqrt(rounding / (weight * k / d))
        return ShiftLaw(d, k, scale=(1.0 + t) * weight / variance, constant=(1.0 + 1.0 / t) * rounding / variance)

    def shift(self) -> ShiftLaw:
        """The law of the squared shift of the whole step, in units of noise variance (one-record replacement)."""
        sliced = self.sliced_shift()
        constant = sliced.constant + math.fsum(fixed_shift(part) for part in self.fixed_parts)
        return replace(sliced, constant=constant)

    def gaussian_shift(self) -> float:
        """Squared shift of a step at the full batch without random directions, which is Gaussian; ``inf`` of others."""
        return self.shift().constant if self.batch == self.records and self.sliced_part is None else math.inf


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
        _check_whole("steps", self.steps, 1, MAX_STEPS)

    @property
    def relation(self) -> NeighbouringRelation:
        """The neighbouring relation of the run's step."""
        return self.step.relation


def _check_whole(name: str, value: object, smallest: int, largest: int) -> None:
    """Raises InvalidEvent unless the value is a whole number in range."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise InvalidEvent(f"{name} is {value!r}; it must be a whole number from {smallest} to {largest}")


def _check_number(event: object, name: str, smallest: float, largest: float) -> None:
    """Checks a float field; a whole number is accepted and stored as the float it equals."""
    value = getattr(event, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not smallest <= value <= largest:
        raise InvalidEvent(f"{name} is {value!r}; it must be a number from {smallest:g} to {largest:g}")
    object.__setattr__(event, name, float(value))


def _check(part: Part, **largest: int) -> None:
    """Checks a part's whole numbers, from 1 to the largest that is given by name, and its noise."""
    for name, most in largest.items():
        _check_whole(name, getattr(part, name), 1, most)
    _check_number(part, "sigma", MIN_SIGMA, MAX_SIGMA)
    # A grid coarser than the noise would no longer be a Gaussian release in any useful sense.
    _check_number(part, "grid_step", 0.0, part.sigma)
