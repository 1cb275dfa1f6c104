"""An account: the sum of its charges, and how many there were."""

from __future__ import annotations

import pytest

from dpswd.private_curator.core.ledger.accounts import Account
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core.errors import BudgetExhausted, LedgerCorrupt
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import RowProjections, RunEvent, StepEvent

BUDGET = PrivacyBudget(1.0, 1e-5)
RUN = RunEvent(StepEvent(500, 500, (RowProjections(32, 10, 40.0, 40.0 / 2048),)), steps=3)


def test_each_charge_counts_once_and_a_refused_one_not_at_all():
    own = filter_for(BUDGET, plan=RUN)
    account, price = Account(BUDGET, own, own.zero()), own.price(RUN)
    for number in range(1, 4):
        account = account.admit(price)
        assert account.runs == number
    assert account.spent == own.add(own.add(own.add(own.zero(), price), price), price)
    loud = RunEvent(StepEvent(500, 500, (RowProjections(32, 10, 0.1, 0.1 / 2048),)), steps=3)
    with pytest.raises(BudgetExhausted):
        account.admit(own.price(loud))
    assert account.runs == 3


def test_an_account_without_a_filter_charges_nothing():
    with pytest.raises(LedgerCorrupt):
        Account(BUDGET).fixed_filter  # noqa: B018 - it is what raises
