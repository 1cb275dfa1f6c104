"""What the ledger needs from the privacy accountant, and nothing more.

The ledger decides *when* a charge is made and that it lasts; `shared.privacy` decides *what* it costs. The seam is
`Accounting`: its default is `private_curator.ledger.renyi.RenyiAccounting`, and tests of crashes and races pass one
whose arithmetic a reader can follow.

Every method is a pure function of public parameters. Objects are frozen and their JSON never changes meaning.
"""

from __future__ import annotations

import enum
from typing import Any, Protocol


class Budget(Protocol):
    """(epsilon, delta) under one neighbouring relation: `shared.privacy.filter.PrivacyBudget`."""

    @property
    def epsilon(self) -> float:
        """The bound on the privacy loss of the data set's whole life."""

    @property
    def delta(self) -> float:
        """The probability with which the bound may fail."""

    @property
    def relation(self) -> enum.Enum:
        """The neighbouring relation; its value is a string."""


class Step(Protocol):
    """What the ledger reads of a step event: `shared.privacy.events.StepEvent`."""

    @property
    def records(self) -> int:
        """n, the number of records of the data set; public."""

    @property
    def relation(self) -> enum.Enum:
        """The neighbouring relation under which the event is priced."""


class Run(Protocol):
    """What the ledger reads of a run event: `shared.privacy.events.RunEvent`."""

    @property
    def step(self) -> Any:
        """The event of one step; see `Step`."""

    @property
    def steps(self) -> int:
        """The number of steps that are charged."""


class Price(Protocol):
    """The cost of one run under one filter, independent of what was spent."""

    def to_json(self) -> str:
        """Canonical JSON."""


class BudgetFilter(Protocol):
    """A privacy filter with fixed orders and weights: `shared.privacy.filter.PrivacyFilter`.

    ``Spent`` values are opaque: they come from `zero` and `admit` only.
    """

    @property
    def budget(self) -> Any:
        """The `Budget` that the filter enforces."""

    def price(self, event: Any) -> Any:
        """The `Price` of a run."""

    def zero(self) -> Any:
        """Nothing spent."""

    def admit(self, spent: Any, price: Any) -> Any:
        """What is spent after the charge.

        Raises:
            shared.errors.BudgetExhausted: the charge does not fit.
        """

    def epsilon(self, spent: Any) -> float:
        """Epsilon spent, at the budget's delta; information, not the guarantee."""

    def fits(self, spent: Any, event: Any) -> int:
        """The largest number of steps like those of ``event`` that would still be admitted."""

    def to_json(self) -> str:
        """Canonical JSON."""


class Accounting(Protocol):
    """Makes budgets, filters, events and prices, and reads them back from the ledger's entries."""

    def budget(self, *, epsilon: float, delta: float, relation: str) -> Any:
        """A `Budget`; raises `shared.errors.InvalidValue` outside of epsilon > 0, 0 < delta < 1."""

    def filter_for(self, budget: Any, plan: Any) -> BudgetFilter:
        """The filter of an account, fixed before its first charge from the first run's public parameters."""

    def filter_with_budget(self, old: Any, budget: Any) -> BudgetFilter:
        """The same orders and weights under another budget.

        Prices and spent amounts of ``old`` keep their meaning under the new filter, and a larger epsilon and
        delta admit whatever the old ones admitted (docs/ledger.md, "Extending a budget").
        """

    def filter_from_json(self, text: str) -> BudgetFilter:
        """The inverse of `BudgetFilter.to_json`."""

    def price_from_json(self, text: str) -> Any:
        """The inverse of `Price.to_json`."""

    def event_to_json(self, event: Any) -> str:
        """Canonical JSON of a run event."""

    def event_from_json(self, text: str) -> Any:
        """The inverse of `event_to_json`."""
