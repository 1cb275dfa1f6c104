"""The parts of one step: what is released from its sample, and the squared shift that each part stands for.

**What must never change.** See ``event_types``: the ledger stores these values for the life of a data set. The meaning
of a class, of a field and of its shift must never change; to describe something new, add a class and a new kind in
``serialisation``.

A part is either *sliced* (its shift follows the random directions, ``StepEvent.sliced_shift``) or of *fixed*
sensitivity (``fixed_shift``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from shared.errors import InvalidEvent
from shared.privacy.curves import MAX_DIRECTIONS, MAX_FEATURE_DIMENSION

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
        check_whole("feature_dimension", self.feature_dimension, 1, MAX_FEATURE_DIMENSION)
        check_whole("directions", self.directions, 1, MAX_DIRECTIONS)
        _noise(self)


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
        check_whole("feature_dimension", self.feature_dimension, 1, MAX_FEATURE_DIMENSION)
        check_whole("directions", self.directions, 1, MAX_DIRECTIONS)
        check_whole("coefficients", self.coefficients, 1, MAX_RECORDS)
        _noise(self)


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
        check_whole("parameters", self.parameters, 1, MAX_PARAMETERS)
        check_number(self, "clip_norm", MIN_SIGMA, MAX_SIGMA)
        _noise(self)


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
        check_whole("values", self.values, 1, MAX_PARAMETERS)
        check_number(self, "sensitivity", MIN_SIGMA, MAX_SIGMA)
        check_whole("changed", self.changed, 1, self.values)
        _noise(self)


SlicedPart: TypeAlias = RowProjections | QuantileCoefficients
FixedPart: TypeAlias = SanitizedGradient | BoundedSum
Part: TypeAlias = SlicedPart | FixedPart

SLICED_PARTS = (RowProjections, QuantileCoefficients)
FIXED_PARTS = (SanitizedGradient, BoundedSum)


def fixed_shift(part: FixedPart) -> float:
    """Squared shift of a part of fixed sensitivity, in units of its noise variance."""
    if isinstance(part, BoundedSum):
        return ((part.sensitivity + part.grid_step * math.sqrt(part.changed)) / part.sigma) ** 2
    return ((2.0 * part.clip_norm + part.grid_step * math.sqrt(part.parameters)) / part.sigma) ** 2


def check_whole(name: str, value: object, smallest: int, largest: int) -> None:
    """Raises InvalidEvent unless the value is a whole number in range."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise InvalidEvent(f"{name} is {value!r}; it must be a whole number from {smallest} to {largest}")


def check_number(event: object, name: str, smallest: float, largest: float) -> None:
    """Checks a float field; a whole number is accepted and stored as the float it equals."""
    value = getattr(event, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not smallest <= value <= largest:
        raise InvalidEvent(f"{name} is {value!r}; it must be a number from {smallest:g} to {largest:g}")
    object.__setattr__(event, name, float(value))


def _noise(part: Part) -> None:
    check_number(part, "sigma", MIN_SIGMA, MAX_SIGMA)
    # A grid coarser than the noise would no longer be a Gaussian release in any useful sense.
    check_number(part, "grid_step", 0.0, part.sigma)
