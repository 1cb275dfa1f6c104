"""The values of a Renyi filter: a budget, a price, and what was spent.

**What must never change.** The ledger stores budgets and prices; the meaning of their fields is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.events import NeighbouringRelation
from dpswd.shared.core.privacy.filter_json import dump, load, numbers

MIN_EPSILON, MAX_EPSILON = 1e-6, 1e4  # beyond which a guarantee is either unreachable or empty
MIN_DELTA, MAX_DELTA = 1e-300, 0.5
"""Below the first, logarithms of products leave float64's range; above the second a guarantee says little."""

_PRICED = ("renyi", "infinity", "run_delta", "gaussian")


def check_delta(delta: float) -> None:
    """Refuse a delta outside [1e-300, 0.5].

    Raises:
        InvalidValue: it names delta and the allowed range.
    """
    if isinstance(delta, bool) or not MIN_DELTA <= delta <= MAX_DELTA:  # also refuses NaN
        raise InvalidValue(f"delta is {delta!r}; it must be from {MIN_DELTA:g} to {MAX_DELTA:g}")


@dataclass(frozen=True)
class PrivacyBudget:
    """What a data set, or a client's share of it, may lose over its whole life.

    Attributes:
        epsilon: from 1e-6 to 1e4.
        delta: from 1e-300 to 0.5.
        relation: the neighbouring relation of the guarantee.
    """

    epsilon: float
    delta: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE_ONE

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not MIN_EPSILON <= self.epsilon <= MAX_EPSILON:
            raise InvalidValue(f"epsilon is {self.epsilon!r}; it must be from {MIN_EPSILON:g} to {MAX_EPSILON:g}")
        check_delta(self.delta)
        if not isinstance(self.relation, NeighbouringRelation):
            raise InvalidValue(f"relation is {self.relation!r}; it must be a NeighbouringRelation")


@dataclass(frozen=True)
class _Lanes:
    """What lanes of one filter hold. Rounded up.

    Attributes:
        renyi: cost at each order of the filter.
        infinity: epsilon in the lane of infinity, ``inf`` if that lane does not take it, or is closed.
        run_delta: delta that goes with ``infinity`` in that lane only (runs priced by their PLD).
        gaussian: squared shift of the whole, in units of its noise's variance; ``inf`` if it is not Gaussian.
    """

    renyi: tuple[float, ...]
    infinity: float
    run_delta: float
    gaussian: float


class Price(_Lanes):
    """What one event adds to the lanes of one filter."""

    def to_json(self) -> str:
        """Canonical JSON."""
        return dump("price", **{name: getattr(self, name) for name in _PRICED})

    @classmethod
    def from_json(cls, text: str) -> Price:
        """The inverse of ``to_json``; refuses anything else with InvalidValue."""
        body = load(text, "price", _PRICED)
        return cls(numbers(body, "renyi"), *(numbers(body, name)[0] for name in _PRICED[1:]))


class Spent(_Lanes):
    """Sums of accepted prices, lane by lane."""
