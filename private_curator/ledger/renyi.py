"""The accountant that the ledger uses: the Renyi filter of `shared.privacy`."""

from __future__ import annotations

import functools

from shared.errors import InvalidEvent, InvalidValue
from shared.privacy.events import NeighbouringRelation, RunEvent, event_from_json, event_to_json
from shared.privacy.filter import Price, PrivacyBudget, PrivacyFilter


class RenyiAccounting:
    """`private_curator.ledger.accounting.Accounting` by `shared.privacy`."""

    def budget(self, *, epsilon: float, delta: float, relation: str) -> PrivacyBudget:
        """A budget as an entry states it."""
        known = [member.value for member in NeighbouringRelation]
        if relation not in known:
            raise InvalidValue(f"{relation!r} is no neighbouring relation of this accountant; it knows {known}")
        return PrivacyBudget(epsilon=epsilon, delta=delta, relation=NeighbouringRelation(relation))

    def filter_for(self, budget: PrivacyBudget, plan: RunEvent) -> PrivacyFilter:
        """Orders and weights chosen for the first run."""
        return PrivacyFilter.for_budget(budget, plan=plan)

    def filter_with_budget(self, old: PrivacyFilter, budget: PrivacyBudget) -> PrivacyFilter:
        """The orders and weights of ``old`` under another budget."""
        return old.with_budget(budget)

    def filter_from_json(self, text: str) -> PrivacyFilter:
        """The filter that an entry holds."""
        return PrivacyFilter.from_json(text)

    def price_from_json(self, text: str) -> Price:
        """The price that an entry holds."""
        return Price.from_json(text)

    def event_to_json(self, event: RunEvent) -> str:
        """The event as entries hold it."""
        return event_to_json(event)

    def event_from_json(self, text: str) -> RunEvent:
        """The event that an entry holds."""
        event = _known_event(text)
        if not isinstance(event, RunEvent):
            raise InvalidEvent(f"the ledger charges runs, not {type(event).__name__}")
        return event


# Each step of a run reads the run's event several times; its text never changes.
_known_event = functools.lru_cache(maxsize=256)(event_from_json)
