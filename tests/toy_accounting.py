"""An accountant whose arithmetic a reader can follow: costs add up, in whole millionths of epsilon.

It does what `dpswd.private_curator.core.ledger.accounting.Accounting` does, so the ledger's own rules (durability,
idempotence, order) are tested without scipy's start-up time. tests/party/private_curator/ledger/test_renyi.py runs the
same ledger with the real filter.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass

from dpswd.shared.core.errors import BudgetExhausted, InvalidValue

MICRO = 1_000_000


class Relation(enum.Enum):
    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"


@dataclass(frozen=True)
class ToyBudget:
    epsilon: float
    delta: float = 1e-5
    relation: Relation = Relation.REPLACE_ONE


@dataclass(frozen=True)
class ToyStep:
    records: int = 100
    cost: int = 1000  # millionths of epsilon
    relation: Relation = Relation.REPLACE_ONE


@dataclass(frozen=True)
class ToyRun:
    step: ToyStep
    steps: int


def toy_run(*, steps: int = 10, cost: int = 1000, records: int = 100) -> ToyRun:
    return ToyRun(ToyStep(records=records, cost=cost), steps)


@dataclass(frozen=True)
class ToyPrice:
    micro: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class ToyFilter:
    budget: ToyBudget
    plan_cost: int  # fixed by the first plan, like the real filter's orders; changes nothing here

    def price(self, event: ToyRun) -> ToyPrice:
        return ToyPrice(event.step.cost * event.steps)

    def zero(self) -> int:
        return 0

    def add(self, spent: int, price: ToyPrice) -> int:
        return spent + price.micro

    def admit(self, spent: int, price: ToyPrice) -> int:
        if spent + price.micro > round(self.budget.epsilon * MICRO):
            raise BudgetExhausted(price.micro / MICRO, spent / MICRO, max(0.0, self.budget.epsilon - spent / MICRO))
        return spent + price.micro

    def epsilon(self, spent: int) -> float:
        return spent / MICRO

    def alone(self, price: ToyPrice) -> float:
        return price.micro / MICRO

    def fits(self, spent: int, event: ToyRun) -> int:
        return max(0, round(self.budget.epsilon * MICRO) - spent) // event.step.cost

    def with_budget(self, budget: ToyBudget) -> ToyFilter:
        return ToyFilter(budget, self.plan_cost)

    def to_json(self) -> str:
        return json.dumps({"epsilon": self.budget.epsilon, "delta": self.budget.delta, "plan_cost": self.plan_cost})


class ToyAccounting:
    def budget(self, *, epsilon: float, delta: float, relation: str) -> ToyBudget:
        if not epsilon > 0:
            raise InvalidValue("epsilon is positive")
        return ToyBudget(epsilon, delta, Relation(relation))

    def price(self, filter_: ToyFilter, event: ToyRun):
        return filter_.price(event)

    def filter_for(self, budget: ToyBudget, plan: ToyRun) -> ToyFilter:
        return ToyFilter(budget, plan.step.cost)

    def filter_from_json(self, text: str) -> ToyFilter:
        value = json.loads(text)
        return ToyFilter(ToyBudget(value["epsilon"], value["delta"]), value["plan_cost"])

    def price_from_json(self, text: str) -> ToyPrice:
        return ToyPrice(**json.loads(text))

    def event_to_json(self, event: ToyRun) -> str:
        return json.dumps([event.step.records, event.step.cost, event.steps])

    def event_from_json(self, text: str) -> ToyRun:
        records, cost, steps = json.loads(text)
        return toy_run(steps=steps, cost=cost, records=records)
