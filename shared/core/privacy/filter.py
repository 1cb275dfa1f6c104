"""The Renyi filter: admits or refuses adaptively chosen runs under one (epsilon, delta) for the whole session.

Fixed before the first charge: orders alpha with shares w_alpha of delta, a share f for the lane of infinity and g for
the Gaussian one, sum w_alpha + f + g <= 1. After each accepted run the sums S_alpha of the Renyi costs grow, as do
S_inf, the sum of the epsilons of the runs' PLD prices, the sum of the deltas at which these were computed, and S_g, the
sum of the squared shifts of Gaussian releases. A run is accepted iff afterwards

    deltas of runs in the lane of infinity  <=  f delta, and at least one lane holds:
        S_alpha <= epsilon - log(1 - 1/alpha) + (log(w_alpha delta) + log alpha) / (alpha - 1)     for some alpha, or
        S_inf <= epsilon, or
        Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m) <= g delta                          with m^2 = S_g.

A run that the lane of infinity cannot take (its PLD price does not fit) closes that lane and leaves its delta unused.
Then the whole session is (epsilon, delta)-differentially private against a client that chooses each run after
seeing all earlier replies; the argument stands in docs/privacy/filter-and-composition.md. Every run is added to
every lane, whichever lane accepted it. A price depends on the event and the filter, never on what was spent.

**What must never change.** Filters and prices are stored by the ledger; the meaning of their fields is fixed.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, replace
from typing import Protocol

from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, RelationMismatch
from dpswd.shared.core.privacy import bracket, gaussian
from dpswd.shared.core.privacy.budget import Price, PrivacyBudget, Spent
from dpswd.shared.core.privacy.events import MAX_STEPS, NeighbouringRelation, RunEvent, StepEvent
from dpswd.shared.core.privacy.filter_json import dump, load, numbers

MAX_ORDER = 4096.0
"""Of a new filter: enough for epsilon down to about log(1/delta)/2000; the lane of infinity serves below."""

WORTHLESS_EPSILON = 1000.0
"""Above it a run's Renyi price is left alone: a PLD of such shifts takes long, and nobody would run it."""

MAX_CACHED_PRICES = 4096
"""Prices remembered by one filter; a client that varies its requests must not fill the memory."""

_STORED = ("orders", "shares", "infinity_share", "run_delta", "gaussian_share")  # besides the budget

_INEXACT = 1e-12  # relative margin by which a lane's limit is rounded down: many times float64's error in it


class Pricing(Protocol):
    """What runs cost, and the lanes of a new filter: handed in, since no answer of it is believed.

    `PrivacyFilter.hold` refuses a price that is too low, and a filter refuses shares that use delta twice.
    """

    def step_costs(self, step: StepEvent, orders: tuple[float, ...], *, committed: bool) -> tuple[float, ...]:
        """Upper bounds on the Renyi divergence of one step at increasing orders; committed: repeated in one run."""

    def pld_epsilon(self, run: RunEvent, delta: float) -> float:
        """Epsilon of a committed run at delta by its privacy loss distribution; ``inf`` where there is none."""

    def filter_for(self, budget: PrivacyBudget, plan: RunEvent) -> PrivacyFilter:
        """A filter for a budget, from the session's first run: from public values, before the first charge."""


@dataclass(frozen=True)
class PrivacyFilter:
    """A budget with orders and shares fixed before the first charge. Pure: it holds no sums.

    Attributes:
        budget: what may be lost in total.
        orders: increasing orders > 1.
        shares: w_alpha for each order; 0 closes the lane.
        infinity_share: f.
        run_delta: delta at which the lane of infinity prices a committed run; 0: it takes no runs.
        gaussian_share: g; 0: that lane is closed.
        pricing: what runs cost.
    """

    budget: PrivacyBudget
    orders: tuple[float, ...]
    shares: tuple[float, ...]
    infinity_share: float
    run_delta: float
    gaussian_share: float
    pricing: Pricing = field(repr=False, compare=False)
    _largest_shift: float = field(init=False, repr=False, compare=False)
    _share: float = field(init=False, repr=False, compare=False)
    _limits: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _prices: dict[RunEvent, Price] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.orders) != len(self.shares) or not self.orders:
            raise InvalidValue("orders and shares must have the same length, at least 1")
        if not all(1.0 < order <= 2.0 * MAX_ORDER for order in self.orders):
            raise InvalidValue(f"orders must be above 1 and at most {2.0 * MAX_ORDER:g}")
        if any(low >= high for low, high in zip(self.orders, self.orders[1:], strict=False)):
            raise InvalidValue("orders must increase")
        others = self.infinity_share, self.gaussian_share
        if not all(0.0 <= share < 1.0 for share in (*self.shares, *others)):
            raise InvalidValue("shares must be from 0 to below 1")
        if math.fsum((*self.shares, *others)) > 1.0:
            raise InvalidValue("shares add up to more than 1; the lanes together may use delta only once")
        if not 0.0 <= self.run_delta <= self.infinity_share * self.budget.delta:
            raise InvalidValue("run_delta must be from 0 to infinity_share times delta")
        object.__setattr__(self, "_share", self.infinity_share * self.budget.delta)
        largest = gaussian.largest_shift(self.budget.epsilon, self.gaussian_share * self.budget.delta)
        object.__setattr__(self, "_largest_shift", largest)
        object.__setattr__(self, "_limits", tuple(map(self.limit, self.orders, self.shares)))

    def limit(self, order: float, share: float) -> float:
        """Largest S_alpha of a lane (Canonne, Kamath, Steinke 2020, Proposition 12), rounded down; -inf: share 0."""
        if share == 0.0:
            return -math.inf
        log_delta = math.log(share) + math.log(self.budget.delta)
        gain = (log_delta + math.log(order)) / (order - 1.0)
        limit = self.budget.epsilon - math.log1p(-1.0 / order) + gain
        return limit - _INEXACT * (self.budget.epsilon + abs(gain) + 1.0)

    def alone(self, price: Price) -> float:
        """Epsilon of one charge by itself, at the budget's delta, also where the budget does not admit it."""
        return self.epsilon(self.add(self.zero(), price))

    def with_budget(self, budget: PrivacyBudget) -> PrivacyFilter:
        """The same orders and shares under another budget; prices and sums keep their meaning.

        Raises:
            RelationMismatch: the other budget has another neighbouring relation.
            InvalidValue: delta became so small that ``run_delta`` no longer fits its share.
        """
        if budget.relation is not self.budget.relation:
            raise RelationMismatch(
                f"the budget's relation is {self.budget.relation.value}, not {budget.relation.value}"
            )
        if self.run_delta > self.infinity_share * budget.delta:
            least = self.run_delta / self.infinity_share
            raise InvalidValue(
                f"delta {budget.delta:g} is too small: since the first charge every run is priced at delta "
                f"{self.run_delta:g}, so delta can be lowered to {least:.4g} and no further; lower epsilon "
                "instead, or end the data set"
            )
        return replace(self, budget=budget)

    def price(self, event: RunEvent) -> Price:
        """What the event adds to each lane; the same for ever, whatever was spent.

        Raises:
            RelationMismatch: the event is under another neighbouring relation than the budget.
        """
        price = self._prices.get(event)
        if price is None:
            if len(self._prices) >= MAX_CACHED_PRICES:
                self._prices.clear()
            price = self._prices[event] = self._price(event)
        return price

    def _price(self, event: RunEvent) -> Price:
        if event.relation is not self.budget.relation:
            raise RelationMismatch(
                f"the charge is under {event.relation.value}, the budget under {self.budget.relation.value}"
            )
        costs = self.pricing.step_costs(event.step, self.orders, committed=event.steps > 1)
        renyi = tuple(_up(event.steps * cost) for cost in costs)
        priced = self.run_delta > 0.0 and min(renyi) <= WORTHLESS_EPSILON
        infinity = self.pricing.pld_epsilon(event, self.run_delta) if priced else math.inf  # the other lanes decide
        run_delta = self.run_delta if math.isfinite(infinity) else 0.0
        return Price(renyi, infinity, run_delta, gaussian=_up(event.steps * event.step.gaussian_shift()))

    def hold(self, event: RunEvent, price: Price) -> None:
        """Checks a price against an independent bracket (``bracket``), before it is admitted.

        Raises:
            AccountantsDisagree: it is less than two neighbours lose, or more than a plain theorem allows.
        """

        def probe(orders: tuple[float, ...]) -> tuple[float, ...]:
            none = (0.0,) * len(orders)
            return replace(self, orders=orders, shares=none, run_delta=0.0, gaussian_share=0.0)._price(event).renyi

        bracket.hold(event, self.orders, price, probe)

    def zero(self) -> Spent:
        """Nothing spent."""
        return Spent(renyi=(0.0,) * len(self.orders), infinity=0.0, run_delta=0.0, gaussian=0.0)

    def admit(self, spent: Spent, price: Price) -> Spent:
        """What is spent after the charge. Nothing else happens; the caller stores it before any record is read.

        Raises:
            BudgetExhausted: no lane holds after the charge. Nothing was spent.
            InvalidValue: the sums or the price belong to a filter with other orders.
        """
        total = self.add(spent, price)
        if self._holds(total):
            return total
        before = self.epsilon(spent)
        raise BudgetExhausted(
            requested=self.alone(price), spent=before, remaining=max(0.0, self.budget.epsilon - before)
        )

    def add(self, spent: Spent, price: Price) -> Spent:
        """The sums after a charge, admitted or not; the lane of infinity closes for ever where it cannot take it.

        Raises:
            InvalidValue: the sums or the price belong to a filter with other orders.
        """
        if len(spent.renyi) != len(self.orders) or len(price.renyi) != len(self.orders):
            raise InvalidValue("the sums or the price belong to a filter with other orders")
        renyi = tuple([_sum_up(a, b) for a, b in zip(spent.renyi, price.renyi, strict=True)])
        infinity, run_delta = spent.infinity, spent.run_delta
        if infinity != math.inf:
            infinity, with_run = _sum_up(infinity, price.infinity), _sum_up(run_delta, price.run_delta)
            if infinity <= self.budget.epsilon and with_run <= self._share:
                run_delta = with_run
            else:  # a run that this lane does not take must not use up delta for it
                infinity = math.inf
        return Spent(renyi, infinity, run_delta, gaussian=_sum_up(spent.gaussian, price.gaussian))

    def _holds(self, total: Spent) -> bool:
        open_lane = total.infinity <= self.budget.epsilon or total.gaussian <= self._largest_shift
        return (open_lane or any(map(operator.le, total.renyi, self._limits))) and total.run_delta <= self._share

    def epsilon(self, spent: Spent) -> float:
        """The smallest epsilon that the lanes certify for these sums, at the budget's delta: information.

        Returns:
            Epsilon; ``inf`` if the runs' deltas exceed their share of a budget that was lowered.
        """
        if spent.run_delta > self._share:
            return math.inf
        excess = min([a - b for a, b in zip(spent.renyi, self._limits, strict=True)])
        gaussian_lane = gaussian.epsilon(spent.gaussian, self.gaussian_share * self.budget.delta)
        return min(max(0.0, self.budget.epsilon + excess), spent.infinity, gaussian_lane)

    def fits(self, spent: Spent, event: RunEvent) -> int:
        """The largest number of steps like those of ``event`` that would be admitted as one run now.

        Args:
            spent: what is spent so far.
            event: a run; its own number of steps does not matter.
        """
        costs = self.pricing.step_costs(event.step, self.orders, committed=True)
        lanes = [*zip(self._limits, spent.renyi, costs, strict=True)]
        lanes.append((self._largest_shift, spent.gaussian, event.step.gaussian_shift()))
        rooms = [(limit - used) / max(cost, 1e-300) for limit, used, cost in lanes]
        # The quotient may be rounded up; one step alone may be dearer than two, and the lane of infinity admit more.
        low = max(0, int(min([MAX_STEPS, max([0.0, *rooms])])) - 2) if spent.run_delta <= self._share else 0
        high = low + 2
        while self._admits(spent, event, high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._admits(spent, event, middle) else (low, middle)
        return low

    def _admits(self, spent: Spent, event: RunEvent, steps: int) -> bool:
        if steps > MAX_STEPS:
            return False
        return self._holds(self.add(spent, self._price(replace(event, steps=steps))))  # not cached: a search's trials

    def to_json(self) -> str:
        """Canonical JSON."""
        own = {name: getattr(self, name) for name in _STORED}
        budget = self.budget
        return dump("filter", epsilon=budget.epsilon, delta=budget.delta, relation=budget.relation.value, **own)

    @classmethod
    def from_json(cls, text: str, pricing: Pricing) -> PrivacyFilter:
        """The inverse of ``to_json``; refuses anything else with InvalidValue."""
        body = load(text, "filter", ("epsilon", "delta", "relation", *_STORED))
        try:
            relation = NeighbouringRelation(body["relation"])
        except ValueError as error:
            raise InvalidValue(f"relation is {body['relation']!r}, which this accountant does not know") from error
        budget = PrivacyBudget(numbers(body, "epsilon")[0], numbers(body, "delta")[0], relation)
        shares = {name: numbers(body, name)[0] for name in _STORED[2:]}
        return cls(budget, numbers(body, "orders"), numbers(body, "shares"), **shares, pricing=pricing)


def _up(value: float) -> float:
    return math.nextafter(value, math.inf) if value > 0.0 else value


def _sum_up(total: float, part: float) -> float:
    """Rounded up; adding to or of 0 is exact."""
    return math.nextafter(total + part, math.inf) if part > 0.0 and total > 0.0 else total + part
