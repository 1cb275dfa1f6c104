"""Whether a budget bears a run and the evaluation after it, before either is charged; spends nothing.

The ledger adds Renyi costs, not epsilons, and its price of a small run *alone* has a floor that a second run never
pays. So both are priced together. A budget of which nothing is spent gets its filter with the run: that filter is made
here, by the ledger's code. A used budget's filter is not public: its curator is asked whether it admits the same run
with so much less noise that its cost is at every order at least that of both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpswd.public_client.curator.description import Budget, Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.plans.declarable import Declarable, within_quote
from dpswd.public_client.plans.plan import Plan
from dpswd.shared.accounting.costs import best_order, step_costs
from dpswd.shared.accounting.lanes import orders_for
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, PrivacyError, rounded
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import NeighbouringRelation, RunEvent
from dpswd.shared.core.privacy.filter import PrivacyFilter

_MARGIN = 1e-6
"""Relative: above the rounding of costs."""
_ANY_SIZE = 64


@dataclass(frozen=True)
class Together:
    """What a run and an evaluation are to a budget.

    Attributes:
        epsilon: that the data set's ledger will count as spent after both; None where it is not known.
        fits: whether both are admitted; None where only the curator can tell, and was not asked.
    """

    epsilon: float | None
    fits: bool | None

    def summary(self, run: Plan, evaluation: Plan) -> str:
        """One line for a terminal."""
        left, wished = rounded(run.remaining, up=False), rounded(run.epsilon + evaluation.epsilon, up=True)
        if self.fits is False:
            return f"together: does NOT fit: the run and the evaluation after it; epsilon {left} is left"
        if self.epsilon is not None:
            return f"together: epsilon {rounded(self.epsilon, up=True)} of the {left} that is left now"
        if self.fits:
            return f"together: the curator would admit both now (asked; epsilon {left} is left, nothing was spent)"
        return f"together: epsilon {wished} is asked for and {left} left; --ask tells whether the ledger admits both"

    def require(self, name: str, run: Plan, evaluation: Plan) -> None:
        """Refuses where both are not admitted.

        Args:
            name: of the site.
            run: that would be charged first.
            evaluation: that follows it.

        Raises:
            PrivacyError: there is no room for both; nothing was spent.
        """
        if self.fits is False:
            costs = f"a run of epsilon {rounded(run.epsilon, up=True)} and an evaluation of "
            costs += f"{rounded(evaluation.epsilon, up=True)} after it"
            raise PrivacyError(
                f"{name}: the budget has no room for {costs} (epsilon {rounded(run.remaining, up=False)} is left). "
                "Lower either, or ask for more; nothing was spent"
            )


def foreseen(description: Description, run: Plan, evaluation: Plan) -> Together:
    """What is known without asking the curator.

    Args:
        description: of the data set, now.
        run: whose model need not be known: sizes move a price by rounding only.
        evaluation: with its noise.
    """
    if any(budget.spent > 0.0 for budget in _budgets(description)):
        return Together(None, False if run.fits is False else None)
    try:
        run = within_quote(_of_any_size(run), lambda asked: _alone(description, asked.event()))
    except InvalidValue:  # a method that needs to know the model's sizes, or a price that no noise reaches
        return Together(None, False if run.fits is False else None)
    return _fresh(description, run.event(), evaluation.event())


def both(curator: Curator, declarable: Declarable, run: Plan, evaluation: Plan) -> Together:
    """The same, with the curator's own answer where something was spent.

    Args:
        curator: a connection.
        declarable: what the run's records go through.
        run: from `declarable.quoted`, as it would be opened now.
        evaluation: with its noise.
    """
    description = curator.describe()
    if run.fits is False:
        return Together(None, False)
    fresh = _fresh(description, run.event(), evaluation.event())
    used = [budget for budget in _budgets(description) if budget.spent > 0.0]
    if not used or not fresh.fits:
        return fresh
    heavy = covering(run, evaluation.event(), budget=max(budget.epsilon for budget in used))
    return Together(None, curator.price_run(heavy.parameters(declarable.uploaded(curator), declarable.names)).fits)


def covering(run: Plan, other: RunEvent, *, budget: float) -> Plan:
    """The run with so much less noise that at every order it costs at least as much as itself and another.

    Args:
        run: with its noise.
        other: the event that follows.
        budget: epsilon, for the range of orders.
    """
    event = run.event()
    orders = orders_for(budget, run.delta, min(best_order(event, run.delta), 4096.0))
    own = _costs(event, orders)
    needed = [(a + b) * (1.0 + _MARGIN) for a, b in zip(own, _costs(other, orders), strict=True)]
    assert run.noise is not None
    factor = max(b / a for a, b in zip(own, needed, strict=True)) ** -0.5
    while True:
        heavy = replace(run, noise=run.noise * factor)
        if all(a >= b for a, b in zip(_costs(heavy.event(), orders), needed, strict=True)):
            return heavy
        factor *= 0.99


def _of_any_size(run: Plan) -> Plan:
    try:
        return run.for_model(feature_dimension=_ANY_SIZE, gradient_parameters=0)
    except InvalidValue:  # of a method that adapts weights by gradients
        return run.for_model(feature_dimension=_ANY_SIZE, gradient_parameters=_ANY_SIZE)


def _costs(event: RunEvent, orders: tuple[float, ...]) -> list[float]:
    return [event.steps * cost for cost in step_costs(event.step, orders, committed=event.steps > 1)]


def _budgets(description: Description) -> tuple[Budget, ...]:
    return description.data_set_budget, description.client_budget


def _accountant(description: Description, budget: Budget, first: RunEvent) -> PrivacyFilter:
    """The filter that the first charge gives to an unused budget."""
    relation = NeighbouringRelation(description.neighbouring_relation)
    return filter_for(PrivacyBudget(budget.epsilon, budget.delta, relation), plan=first)


def _alone(description: Description, event: RunEvent) -> float:
    own = _accountant(description, description.data_set_budget, event)
    return own.alone(own.price(event))


def _fresh(description: Description, run: RunEvent, evaluation: RunEvent) -> Together:
    """Both in the budgets that nothing was spent of; such as are used are left out."""
    epsilon = None
    for budget in dict.fromkeys(_budgets(description)):
        if budget.spent > 0.0:
            continue
        own = _accountant(description, budget, run)
        try:
            total = own.admit(own.admit(own.zero(), own.price(run)), own.price(evaluation))
        except BudgetExhausted:
            return Together(None, False)
        if budget == description.data_set_budget:
            epsilon = own.epsilon(total)
    return Together(epsilon, True)
