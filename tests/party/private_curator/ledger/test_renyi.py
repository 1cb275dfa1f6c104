"""The ledger with the real accountant: prices, restarts, extension and the refusal of what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpswd.private_curator.books.audit import verify_file
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import Request
from dpswd.shared.accounting.pricing import filter_for, filter_from_json
from dpswd.shared.core.errors import BudgetExhausted, InvalidEvent, InvalidValue
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import (
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
)

DIGEST = "d" * 64
BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-5)
ROWS = RunEvent(
    step=StepEvent(records=5000, batch=64, parts=(RowProjections(feature_dimension=64, directions=50, sigma=6.0),)),
    steps=200,
)
JOINT = RunEvent(
    step=StepEvent(
        records=5000,
        batch=256,
        parts=(
            QuantileCoefficients(feature_dimension=64, directions=50, coefficients=2, sigma=1.0),
            SanitizedGradient(parameters=112, clip_norm=1.0, sigma=16.0),
        ),
    ),
    steps=100,
)


@pytest.fixture
def real(location, key):
    with Ledger.create(location, key=key, records=5000, budget=BUDGET) as ledger:
        ledger.add_client("alice", "a" * 64)
        ledger.add_client("bob", "b" * 64, PrivacyBudget(epsilon=0.5, delta=1e-6))
        yield ledger


def open_run(ledger, event, request_id="run", client="alice"):
    return ledger.open_run(Request(client=client, request_id=request_id, digest=DIGEST), event=event, parameters=b"p")


def spend_all(ledger, event, client="alice", prefix="run"):
    """Runs until one is refused; returns how many were admitted and the refusal."""
    for number in range(1000):
        try:
            open_run(ledger, event, f"{prefix}-{number}", client)
        except BudgetExhausted as error:
            return number, error
    raise AssertionError("the budget never ended")


def test_a_quote_is_what_the_run_then_costs(real):
    quote = real.price_run(client="alice", event=ROWS)
    assert quote.fits
    assert real.status().data_set.epsilon_spent == 0
    run = open_run(real, ROWS)
    assert run.event == ROWS
    assert real.status().data_set.epsilon_spent == pytest.approx(quote.epsilon)
    assert 0 < quote.epsilon < BUDGET.epsilon


def test_the_budget_is_never_exceeded_and_what_fits_fits(real):
    admitted, refusal = spend_all(real, ROWS)
    assert admitted >= 1
    assert refusal.scope == "data set"
    assert refusal.spent <= BUDGET.epsilon
    assert 0 <= refusal.steps_that_fit < ROWS.steps
    if refusal.steps_that_fit:
        open_run(real, replace(ROWS, steps=refusal.steps_that_fit), "rest")
    assert real.status().data_set.epsilon_spent <= BUDGET.epsilon
    # No figure is on trust: the library's own filter, asked directly, says the same.
    filter_ = filter_for(BUDGET, plan=ROWS)
    spent = filter_.zero()
    for run in real.runs():
        spent = filter_.admit(spent, filter_.price(run.event))
    assert real.status().data_set.epsilon_spent == filter_.epsilon(spent)


@pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)
def test_a_restart_knows_everything(real, location, key):
    open_run(real, ROWS)
    open_run(real, JOINT, "joint", "bob")
    before = real.status()
    quote = real.price_run(client="bob", event=JOINT)
    real.close()
    with Ledger.open(location, key=key) as again:
        assert again.status() == before
        assert again.price_run(client="bob", event=JOINT) == quote
        assert again.run(client="bob", run_id=again.runs()[1].run_id).event == JOINT
        report = again.verify()
        assert report.ok, report.findings
        assert report.epsilon_spent == before.data_set.epsilon_spent
    assert verify_file(location, public_key=key.public_key().public_bytes_raw()).ok


def test_a_share_refuses_its_client_only(real):
    _, refusal = spend_all(real, JOINT, client="bob")
    assert refusal.scope == "client"
    open_run(real, JOINT)
    data_set, share = real.budget_of("bob")
    assert share.epsilon_spent <= 0.5
    assert data_set.epsilon_spent > 0


@pytest.mark.long
def test_extension_keeps_orders_prices_and_sums(real, location, key):
    admitted, _ = spend_all(real, ROWS)
    fixed = filter_from_json(next(e.payload["filter"] for e in real.history() if e.kind == "filter-fixed"))
    real.extend_budget(PrivacyBudget(epsilon=3.0, delta=2e-5), reason="second consent")
    extended = filter_from_json(list(real.history())[-1].payload["filter"])
    assert (extended.orders, extended.shares) == (fixed.orders, fixed.shares)
    assert extended.price(ROWS) == fixed.price(ROWS)
    more, refusal = spend_all(real, ROWS, prefix="more")
    assert more >= 1
    assert refusal.spent <= 3.0
    # The extended filter, had it stood from the beginning, would have admitted the whole history.
    spent = extended.zero()
    for _ in range(admitted + more):
        spent = extended.admit(spent, extended.price(ROWS))
    assert extended.epsilon(spent) == real.status().data_set.epsilon_spent
    real.close()
    with Ledger.open(location, key=key) as again:
        assert again.verify().ok


def test_lowering_below_what_is_spent_ends_admission(real):
    open_run(real, ROWS)
    spent = real.status().data_set.epsilon_spent
    real.lower_budget(PrivacyBudget(epsilon=spent / 2, delta=1e-5), reason="policy")
    with pytest.raises(BudgetExhausted) as caught:
        open_run(real, replace(ROWS, steps=1), "one")
    assert caught.value.steps_that_fit == 0
    assert real.status().data_set.epsilon_remaining == 0


def test_the_number_of_records_is_the_data_sets(real):
    with pytest.raises(InvalidEvent):
        open_run(real, replace(ROWS, step=replace(ROWS.step, records=50_000)))


def test_budgets_have_bounds(real):
    with pytest.raises(InvalidValue):
        real.accounting.budget(epsilon=0.0, delta=1e-5, relation="replace-one")
    with pytest.raises(InvalidValue):
        real.accounting.budget(epsilon=1.0, delta=1e-5, relation="add-remove")
