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


@dataclass(frozen=True)
class Cap:
    """The most that a client's runs of one day, or one year, may cost together.

    Attributes:
        epsilon: at the data set's delta.
        began: the day (UTC, YYYY-MM-DD) on which it was first set, or set again after it had been taken away.
    """

    epsilon: float
    began: str


@dataclass
class CappedBooks(Books):
    """`Books` that hold clients to their caps as well."""

    caps: dict[tuple[str, str], Cap] = field(default_factory=dict)  # by client, and DAY or YEAR
    lately: dict[tuple[str, str], tuple[str, Any]] = field(default_factory=dict)  # first day, and sum of prices since

    def snapshot(self) -> Self:
        """See `Books`."""
        return replace(super().snapshot(), caps=copy.copy(self.caps), lately=copy.copy(self.lately))

    def bearing(self, client: str, charges: tuple[Charge, ...], day: str) -> list[tuple[str, Account, Price]]:
        """See `Books`; a cap is a budget of the data set's filter."""
        bearing = super().bearing(client, charges, day)
        for scope in (DAY, YEAR):
            if (client, scope) in self.caps:
                budget = replace(self.account.budget, epsilon=self.caps[client, scope].epsilon)
                filter_, spent = charges[0].filter.with_budget(budget), self._spent(client, scope, day)
                bearing.append((scope, Account(budget, filter_, spent or filter_.zero()), charges[0].price))
        return bearing

    def caps_of(self, client: str, day: str) -> dict[str, tuple[float, float]]:
        """A client's caps by `DAY` and `YEAR`, and what its runs cost in those that a day belongs to, in epsilon."""
        caps = {}
        for scope in (DAY, YEAR):
            if (client, scope) in self.caps:
                spent = self._spent(client, scope, day)
                cost = 0.0 if spent is None else self.account.fixed_filter.epsilon(spent)
                caps[scope] = (self.caps[client, scope].epsilon, cost)
        return caps

    def _spent(self, client: str, scope: str, day: str) -> Any:
        began, spent = self.lately.get((client, scope), ("", None))
        return spent if began == self._began(client, scope, day) else None

    def _began(self, client: str, scope: str, day: str) -> str:
        """The first day of what a day belongs to; "" where there is no year, for want of a cap."""
        cap = self.caps.get((client, scope))
        if scope == DAY or cap is None:
            return day if scope == DAY else ""
        return f"{int(day[:4]) - (day[4:] < cap.began[4:])}{cap.began[4:]}"

    def _capped(self, payload: Mapping[str, Any], scope: str) -> None:
        client = self.clients[payload["client"]].name
        old = self.caps.pop((client, scope), None)
        if payload["epsilon"] is not None:
            self.caps[client, scope] = Cap(payload["epsilon"], old.began if old else self.day)

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
