"""What runs cost, handed to filters: `PRICING` is the one that curators and clients use.

`filter_for` chooses a filter's orders and shares; a filter that fits badly costs budget, and never a promise.
"""

from __future__ import annotations

import math

from dpswd.shared.accounting import calibration, costs, lanes
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import RunEvent, StepEvent
from dpswd.shared.core.privacy.filter import MAX_ORDER, PrivacyFilter


class RenyiPricing:
    """A `dpswd.shared.core.privacy.filter.Pricing`: the smaller of HYB and C_gamma, and the PLD of C_gamma."""

    def step_costs(self, step: StepEvent, orders: tuple[float, ...], *, committed: bool) -> tuple[float, ...]:
        """See `costs.step_costs`."""
        return costs.step_costs(step, orders, committed=committed)

    def pld_epsilon(self, run: RunEvent, delta: float) -> float:
        """See `calibration.pld_epsilon`."""
        return calibration.pld_epsilon(run, delta)

    def filter_for(self, budget: PrivacyBudget, plan: RunEvent) -> PrivacyFilter:
        """See `filter_for`."""
        return filter_for(budget, plan)


PRICING = RenyiPricing()


def filter_from_json(text: str) -> PrivacyFilter:
    """A stored filter, with `PRICING`.

    Raises:
        InvalidValue: the text is no filter's.
    """
    return PrivacyFilter.from_json(text, PRICING)


def filter_for(budget: PrivacyBudget, plan: RunEvent) -> PrivacyFilter:
    """Chooses orders and shares from public values, before the first charge.

    Args:
        budget: what may be lost in total.
        plan: the first, or the typical, run of the session.

    Raises:
        RelationMismatch: the plan is under another neighbouring relation.
    """
    own = min(costs.best_order(plan, budget.delta), MAX_ORDER)
    orders = lanes.orders_for(budget.epsilon, budget.delta, own)
    count = len(orders)
    often, gaussian = _most_often(budget, orders, plan), math.isfinite(plan.step.gaussian_shift())
    balanced = _laid_out(budget, orders, lanes.balanced(count, often, gaussian=gaussian))
    if balanced.alone(balanced.price(plan)) <= budget.epsilon:
        return balanced
    centre = orders.index(own)
    tried = []
    for share in (lanes.CAUTIOUS, lanes.ALL):
        for layout in (lanes.one_order(count, centre, share), lanes.one_run(count, centre, share)):
            candidate = _laid_out(budget, orders, layout)
            tried.append((candidate.alone(candidate.price(plan)), candidate))
            if tried[-1][0] <= budget.epsilon:
                return candidate
    return min(tried, key=lambda pair: pair[0])[1]


def _most_often(budget: PrivacyBudget, orders: tuple[float, ...], plan: RunEvent) -> int:
    """The order, by its index, at which the plan could be repeated most often with a centre's share of delta."""
    first = _laid_out(budget, orders, lanes.balanced(len(orders), 0))
    prices, share = first.price(plan).renyi, first.shares[0]

    def repetitions(index: int) -> float:
        limit = first.limit(orders[index], share)
        return limit / prices[index] if prices[index] > 0.0 and limit > 0.0 else limit

    return max(range(len(orders)), key=repetitions)


def _laid_out(budget: PrivacyBudget, orders: tuple[float, ...], layout: lanes.Layout) -> PrivacyFilter:
    infinity, gaussian = layout.infinity_share, layout.gaussian_share
    return PrivacyFilter(budget, orders, layout.shares, infinity, infinity * budget.delta, gaussian, PRICING)
