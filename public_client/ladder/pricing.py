"""Epsilon of each rung, so that all of them together cost what was asked, and what is not asked is not charged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpswd.public_client.curator.description import Description
from dpswd.public_client.plans.plan import Plan
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import NeighbouringRelation, RunEvent
from dpswd.shared.core.privacy.filter import PrivacyFilter

_BISECTIONS = 10
_LEAST = 1e-3
"""Of the epsilon that a rung would have alone: below it nothing is worth asking."""


def priced_together(
    told: Description, plans: Mapping[str, Plan], shares: Mapping[str, float], *, epsilon: float
) -> dict[str, Plan]:
    """Plans whose runs, all of them one after the other, cost at most epsilon.

    The squared shifts of the rungs have the ratios of `shares`, so that what a run costs at every order does, about:
    a run's epsilon goes with the root. One factor of all is solved for, by the filter that the hospital's ledger would
    use. Where something was spent already that filter is not public, and another budget's of this epsilon is taken.

    Args:
        told: of the hospital, now.
        plans: by rung, in the order in which they are asked, for the model at hand (sizes known).
        shares: of the squared budget, by rung.
        epsilon: that all together may cost at the hospital's delta.

    Raises:
        InvalidValue: so small an epsilon does not bear so many rungs; nothing was spent.
    """
    total = math.fsum(shares[name] for name in plans)

    def at(factor: float) -> dict[str, Plan]:
        return {
            name: _with_epsilon(plan, epsilon * factor * math.sqrt(shares[name] / total))
            for name, plan in plans.items()
        }

    if len(plans) == 1:
        return at(1.0)
    low, high, found = _LEAST, 1.0, None
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        try:
            tried = at(middle)
        except InvalidValue:  # no noise makes a run so cheap
            low = middle
            continue
        if _fits(told, [plan.event() for plan in tried.values()], epsilon):
            low, found = middle, tried
        else:
            high = middle
    if found is None:
        raise InvalidValue(
            f"epsilon {epsilon:g} does not bear {len(plans)} releases ({', '.join(plans)}); ask for more, or for one "
            "method by name. Nothing was spent"
        )
    return found


def _with_epsilon(plan: Plan, epsilon: float) -> Plan:
    """The same run at another price, with its noise."""
    assert plan.feature_dimension is not None
    assert plan.gradient_parameters is not None
    sizes = {"feature_dimension": plan.feature_dimension, "gradient_parameters": plan.gradient_parameters}
    blank = replace(plan, epsilon=epsilon, feature_dimension=None, gradient_parameters=None, noise=None)
    return blank.for_model(**sizes)


def _fits(told: Description, events: Sequence[RunEvent], epsilon: float) -> bool:
    """Whether a filter admits all, and certifies at most epsilon afterwards."""
    for own in _filters(told, events[0], epsilon):
        spent = own.zero()
        try:
            for event in events:
                spent = own.admit(spent, own.price(event))
        except BudgetExhausted:
            return False
        if own.epsilon(spent) > epsilon:
            return False
    return True


def _filters(told: Description, first: RunEvent, epsilon: float) -> list[PrivacyFilter]:
    """What the first charge fixes in budgets that are fresh; of a used one, as if it were for the ladder alone."""
    relation = NeighbouringRelation(told.neighbouring_relation)
    budgets = dict.fromkeys((told.data_set_budget, told.client_budget))
    wholes = {(epsilon if budget.spent > 0.0 else budget.epsilon, budget.delta) for budget in budgets}
    return [filter_for(PrivacyBudget(*whole, relation), plan=first) for whole in sorted(wholes)]
