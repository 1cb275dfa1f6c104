"""Noise of each rung, so that all of them together cost what was asked, and what is not asked is not charged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpswd.public_client.curator.description import Description
from dpswd.public_client.evidence.certificate import composed
from dpswd.public_client.plans.plan import Plan
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import NeighbouringRelation, RunEvent
from dpswd.shared.core.privacy.filter import PrivacyFilter

_BISECTIONS = 12
_LEAST, _MOST = 0.25, 64.0
"""Times the noise by which each rung alone costs its share: beyond it the ledger counts what no noise lowers."""
_ROUNDED = 1e-9  # relative: a price is computed again where it is asked


def budgets_of(description: Description, *, epsilon: float) -> tuple[PrivacyBudget, ...]:
    """The budgets by whose filters the rungs are priced.

    A fresh budget gets its filter with the first charge, and it is known. Of a used one it is not public, and a fresh
    one's of the asked epsilon is taken.

    Args:
        description: of the hospital, before anything is asked.
        epsilon: that all rungs together may cost.
    """
    relation = NeighbouringRelation(description.neighbouring_relation)
    budgets = dict.fromkeys((description.data_set_budget, description.client_budget))
    wholes = {(epsilon if budget.spent > 0.0 else budget.epsilon, budget.delta) for budget in budgets}
    return tuple(PrivacyBudget(*whole, relation) for whole in sorted(wholes))


def priced_together(
    budgets: Sequence[PrivacyBudget], plans: Mapping[str, Plan], shares: Mapping[str, float], *, epsilon: float,
    asked: Sequence[Plan] = (),
) -> dict[str, Plan]:  # fmt: skip
    """Plans whose runs, all of them one after the other, cost epsilon, with their noise and the ledger's price alone.

    The squared shifts of the rungs have the ratios of `shares`, so that what a run costs at every order does, about:
    a run's epsilon goes with the root. One factor of all noises is solved for, by the filter that the hospital's
    ledger uses.

    Args:
        budgets: `budgets_of`.
        plans: by rung, in the order in which they are asked, for the model at hand (sizes known).
        shares: of the squared budget, by rung.
        epsilon: that all together, those that were asked too, may cost at the hospital's delta.
        asked: plans of runs that were charged before.

    Raises:
        InvalidValue: so small an epsilon does not bear so many rungs; nothing was spent.
    """
    total = math.fsum(shares[name] for name in plans)
    before = [plan.event() for plan in asked]
    unborne = InvalidValue(
        f"epsilon {epsilon:g} does not bear {len(plans)} releases ({', '.join(plans)}); ask for more, or for one "
        "method by name. Nothing was spent"
    )
    try:
        alone = {name: _with_epsilon(plan, epsilon * math.sqrt(shares[name] / total)) for name, plan in plans.items()}
    except InvalidValue:  # no noise makes a run so cheap
        raise unborne from None

    def at(factor: float) -> dict[str, Plan]:
        return {name: replace(plan, noise=factor * (plan.noise or 1.0)) for name, plan in alone.items()}

    def filters(events: Sequence[RunEvent]) -> list[PrivacyFilter]:
        return [filter_for(budget, plan=events[0]) for budget in budgets]

    low, high, best = _LEAST, _MOST, None
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        tried = at(middle)
        events = [*before, *(plan.event() for plan in tried.values())]
        costs = [composed(own, events) for own in filters(events)]
        if all(cost is not None and cost <= epsilon for cost in costs):
            high, best = middle, tried
        else:
            low = middle
    if best is None:
        raise unborne
    runs = {name: plan.event() for name, plan in best.items()}
    held = filters([*before, *runs.values()])
    prices = {name: max(own.alone(own.price(run)) for own in held) * (1.0 + _ROUNDED) for name, run in runs.items()}
    # At less the ledger's quote would raise the noise of each rung until it fits alone, and together they spend less.
    return {name: replace(plan, epsilon=prices[name]) for name, plan in best.items()}


def _with_epsilon(plan: Plan, epsilon: float) -> Plan:
    """The same run at another price, with its noise."""
    assert plan.feature_dimension is not None
    assert plan.gradient_parameters is not None
    sizes = {"feature_dimension": plan.feature_dimension, "gradient_parameters": plan.gradient_parameters}
    blank = replace(plan, epsilon=epsilon, feature_dimension=None, gradient_parameters=None, noise=None)
    return blank.for_model(**sizes)
