"""Books with caps on what one client's runs of a day, or of a year, may cost together.

A cap is a brake and no promise, since it rests on the curator's clock: whoever has stolen a client's key cannot spend
all at once, and a team that watches its model over the years spends no more in one of them than it was allowed. What
has been promised to the persons in the data set is held by `Books` alone.

A year begins on the day on which the cap was first set, and again on each return of that day; a cap that is changed
keeps the year that has begun, and what was spent in it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from dpswd.private_curator.core.ledger.accounts import DATA_SET, Account, Charge
from dpswd.private_curator.core.ledger.budget import Books
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.shared.core.privacy.budget import Price

DAY, YEAR = "day", "year"
"""What a cap is of, and the scope of its refusals."""


@dataclass
class CappedBooks(Books):
    """`Books` that hold clients to their caps as well."""

    # By client, and DAY or YEAR: epsilon and the day since when; the first day of the last one, and its prices' sum.
    caps: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    lately: dict[tuple[str, str], tuple[str, Any]] = field(default_factory=dict)

    def snapshot(self) -> Self:
        """See `Books`."""
        return replace(super().snapshot(), caps=copy.copy(self.caps), lately=copy.copy(self.lately))

    def bearing(self, client: str, charges: tuple[Charge, ...], day: str) -> list[tuple[str, Account, Price]]:
        """See `Books`; a cap is a budget of the data set's filter."""
        bearing = super().bearing(client, charges, day)
        for scope in (DAY, YEAR):
            if (client, scope) in self.caps:
                budget = replace(self.account.budget, epsilon=self.caps[client, scope][0])
                filter_, spent = charges[0].filter.with_budget(budget), self._spent(client, scope, day)
                bearing.append((scope, Account(budget, filter_, spent or filter_.zero()), charges[0].price))
        return bearing

    def caps_of(self, client: str, day: str) -> dict[str, tuple[float, float]]:
        """A client's caps by `DAY` and `YEAR`, and what its runs cost in those that a day belongs to, in epsilon."""
        spent = {scope: self._spent(client, scope, day) for scope in (DAY, YEAR) if (client, scope) in self.caps}
        cost = {
            scope: 0.0 if sums is None else self.account.fixed_filter.epsilon(sums) for scope, sums in spent.items()
        }
        return {scope: (self.caps[client, scope][0], cost[scope]) for scope in cost}

    def _spent(self, client: str, scope: str, day: str) -> Any:
        began, spent = self.lately.get((client, scope), ("", None))
        return spent if began == self._began(client, scope, day) else None

    def _began(self, client: str, scope: str, day: str) -> str:
        """The first day of what a day belongs to; "" where there is no year, for want of a cap."""
        _, first = self.caps.get((client, YEAR), (0.0, ""))
        if scope == DAY or not first:
            return day if scope == DAY else ""
        return f"{int(day[:4]) - (day[4:] < first[4:])}{first[4:]}"

    def _capped(self, payload: Mapping[str, Any], scope: str) -> None:
        client = self.clients[payload["client"]].name
        _, first = self.caps.pop((client, scope), (0.0, self.day))
        if payload["epsilon"] is not None:
            self.caps[client, scope] = payload["epsilon"], first

    def _charged(self, payload: Mapping[str, Any]) -> None:
        super()._charged(payload)
        client, filter_ = payload["client"], self.account.fixed_filter
        price = self.accounting.price_from_json(payload["prices"][DATA_SET])
        for scope in (DAY, YEAR):
            if began := self._began(client, scope, self.day):
                total = filter_.add(self._spent(client, scope, self.day) or filter_.zero(), price)
                self.lately[client, scope] = began, total


CappedBooks.handlers = {
    **Books.handlers,
    Kind.CAP_SET: lambda books, payload: books._capped(payload, DAY),
    Kind.YEAR_CAP_SET: lambda books, payload: books._capped(payload, YEAR),
    Kind.RUN_OPENED: CappedBooks._charged,
}
