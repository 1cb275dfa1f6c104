"""What the ledger asks of the privacy accountant, and nothing more.

The ledger decides *when* a charge is made and that it lasts; `dpswd.shared.core.privacy` decides *what* it costs. Tests
of crashes and races give the ledger another `Accounting`, whose arithmetic a reader can follow.

Every method is a pure function of public parameters. Objects are frozen and their JSON never changes meaning.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.budget import Price, PrivacyBudget
from dpswd.shared.core.privacy.event_json import event_from_json, event_to_json
from dpswd.shared.core.privacy.events import NeighbouringRelation, RunEvent
from dpswd.shared.core.privacy.filter import Pricing, PrivacyFilter


@dataclass(frozen=True)
class Accounting:
    """Makes budgets and filters, and reads what entries hold: the Renyi filter of `dpswd.shared.core.privacy`.

    Attributes:
        pricing: what runs cost; `dpswd.private_curator.books.renyi.RENYI` has the curator's.
    """

    pricing: Pricing

    def budget(self, *, epsilon: float, delta: float, relation: str) -> PrivacyBudget:
        """A budget as an entry states it.

        Raises:
            InvalidValue: outside of the accountant's range, or under a neighbouring relation that it does not know.
        """
        relations = [member.value for member in NeighbouringRelation]
        if relation not in relations:
            raise InvalidValue(f"{relation!r} is no neighbouring relation of this accountant; it knows {relations}")
        return PrivacyBudget(epsilon=epsilon, delta=delta, relation=NeighbouringRelation(relation))

    def filter_for(self, budget: PrivacyBudget, plan: RunEvent) -> PrivacyFilter:
        """The filter of an account, fixed before its first charge from the first run's public parameters."""
        return self.pricing.filter_for(budget, plan)

    def filter_from_json(self, text: str) -> PrivacyFilter:
        """The filter that an entry holds."""
        return PrivacyFilter.from_json(text, self.pricing)

    def price(self, filter_: PrivacyFilter, event: RunEvent) -> Price:
        """What a filter charges for a run, held from below and from above by code of its own.

        Raises:
            AccountantsDisagree: the price is less than two neighbours lose by the run, or implausibly high.
            RelationMismatch: see `PrivacyFilter.price`.
        """
        price = filter_.price(event)
        _hold(filter_, event, price)
        return price

    def price_from_json(self, text: str) -> Price:
        """The price that an entry holds."""
        return _price(text)

    def event_to_json(self, event: RunEvent) -> str:
        """The event as entries hold it."""
        return event_to_json(event)

    def event_from_json(self, text: str) -> RunEvent:
        """The event that an entry holds."""
        return _event(text)


@functools.lru_cache(maxsize=1024)
def _hold(filter_: PrivacyFilter, event: RunEvent, price: Price) -> None:
    """A price that held is remembered; one that did not raises each time."""
    filter_.hold(event, price)


# Each step of a run reads the run's event several times, and runs of one plan have one price; a text never changes.
_price = functools.lru_cache(maxsize=256)(Price.from_json)
_event = functools.lru_cache(maxsize=256)(event_from_json)
