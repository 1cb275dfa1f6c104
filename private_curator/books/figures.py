"""What operators and clients are told of a ledger, and what they ask of each other: frozen values."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from dpswd.private_curator.core.ledger.statements import Client, DataSetState, Kind
from dpswd.shared.core.errors import BudgetExhausted
from dpswd.shared.core.privacy.budget import PrivacyBudget

ASKED_BY_CLIENTS = frozenset(
    {Kind.RUN_OPENED, Kind.STEP_CONSUMED, Kind.STEP_RESUMED, Kind.STEP_ANSWERED, Kind.BUDGET_REQUESTED}
)
"""What a client's request writes, and of which somebody is told; all other kinds are acts of an operator."""
GO_WITH_A_CHARGE = frozenset({Kind.FILTER_FIXED, Kind.QUANTUM_FIXED})
"""Except these."""

MIN_ACCEPTANCE_LENGTH = 30
"""Characters of an acceptance: short enough for a sentence, too long for a "yes"."""


class Decision(enum.StrEnum):
    """What an operator makes of a client's request for budget."""

    APPROVED = "approved"
    CUT = "cut"
    DENIED = "denied"


@dataclass(frozen=True, kw_only=True)
class BudgetRequest:
    """A client's message to the operator: it wants more epsilon.

    Attributes:
        number: the entry that holds it.
        time: of the request, UTC.
        client: who asks.
        epsilon: that it asks for, on top of what it may spend.
        purpose: why, in its words.
        decision: the operator's; None while it waits.
        granted: epsilon that was added; 0 while it waits, and where it was denied.
        reason: the operator's words.
        decided_by: who decided.
    """

    number: int
    time: str
    client: str
    epsilon: float
    purpose: str
    decision: Decision | None = None
    granted: float = 0.0
    reason: str = ""
    decided_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What an operator stated for the record, in words that no program can check.

    Attributes:
        words: the statement's.
        time: UTC.
        by: who stated it.
    """

    words: str
    time: str
    by: str


@dataclass(frozen=True, kw_only=True)
class AccountStatus:
    """One budget and what is used of it.

    Attributes:
        epsilon: the budget's epsilon.
        delta: the budget's delta.
        relation: the neighbouring relation's value.
        epsilon_spent: at the budget's delta; information, the filter decides.
        epsilon_remaining: at the budget's delta; 0 for an account that nothing may be spent from any more.
        runs: how many runs were charged.
    """

    epsilon: float
    delta: float
    relation: str
    epsilon_spent: float
    epsilon_remaining: float
    runs: int


@dataclass(frozen=True, kw_only=True)
class LedgerStatus:
    """What an operator sees.

    Attributes:
        ledger_id: 32 hexadecimal digits, chosen when the ledger was created.
        records: n, public.
        records_per_person: k, how many of them one person has at most; public.
        state: whether the data set may be spent on.
        data_set: the data set's account.
        clients: every client with its account; None for one without a share of its own.
        runs: number of runs.
        steps_charged: steps of all runs.
        steps_used: steps that were begun.
        steps_repeated: attempts beyond a step's first one, after crashes and errors.
        entries: length of the chain.
        head: hash of the last entry; an operator who notes it elsewhere can later prove a rollback.
    """

    ledger_id: str
    records: int
    records_per_person: int
    state: DataSetState
    data_set: AccountStatus
    clients: tuple[tuple[Client, AccountStatus | None], ...]
    runs: int
    steps_charged: int
    steps_used: int
    steps_repeated: int
    entries: int
    head: str


@dataclass(frozen=True, kw_only=True)
class Quote:
    """What a run would cost now. Nothing is spent.

    Attributes:
        epsilon: of this run alone, at the data set's delta.
        adds_to_data_set: what it would add to the data set's epsilon.
        adds_to_share: the same of the client's share; None without one.
        data_set: the data set's account as it stands.
        client: the client's own account as it stands; None without a share.
        refusal: of the first account that does not admit the whole run now; None where all do.
        steps_that_fit: how many such steps every account still admits, at most the declared number.
    """

    epsilon: float
    adds_to_data_set: float
    adds_to_share: float | None
    data_set: AccountStatus
    client: AccountStatus | None
    refusal: BudgetExhausted | None
    steps_that_fit: int

    @property
    def fits(self) -> bool:
        """Whether every account admits the whole run now."""
        return self.refusal is None


def budget_payload(budget: PrivacyBudget) -> dict[str, Any]:
    """A budget as entries state it."""
    return {"epsilon": budget.epsilon, "delta": budget.delta, "relation": budget.relation.value}
