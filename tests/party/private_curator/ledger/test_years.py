"""A data set over years: the cap on a client's year, and records that were updated; the promise is kept in sum."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from set_clock import SetClock
from toy_accounting import ToyAccounting, ToyBudget, toy_run

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.caps.books import DAY, YEAR
from dpswd.private_curator.core.ledger.statements import Kind, Request
from dpswd.shared.core.errors import (
    BudgetExhausted,
    InvalidEvent,
    InvalidValue,
    LedgerUnavailable,
    RequestInProgress,
    RunFinished,
)

BEGIN = datetime(2028, 2, 29, 12, 0, tzinfo=UTC)
"""A leap day: its year ends with February."""


@pytest.fixture
def clock():
    return SetClock(BEGIN)


@pytest.fixture
def watched(location, key, clock):
    with Ledger.create(
        location, key=key, records=100, budget=ToyBudget(1.0), accounting=ToyAccounting(), clock=clock
    ) as ledger:
        ledger.add_client("alice", "f" * 64)
        ledger.add_client("bob", "b" * 64)
        yield ledger


def step(request_id: str) -> Request:
    return Request(client="alice", request_id=request_id, digest="d" * 64)


@pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)
def test_a_year_is_bounded_from_the_day_of_its_cap_and_the_next_one_is_free(watched, open_run, clock, reopen):
    open_run(watched, request_id="before", steps=300)  # what was spent before the cap is not of its year
    watched.set_cap("alice", 0.04, reason="watching alone", year=True)
    open_run(watched, request_id="1", steps=20)
    clock.now += timedelta(days=300)
    open_run(watched, request_id="2", steps=20)
    with pytest.raises(BudgetExhausted, match="the year's privacy budget") as refused:
        open_run(watched, request_id="3", steps=1)
    assert (refused.value.scope, refused.value.steps_that_fit) == (YEAR, 0)
    assert refused.value.spent == pytest.approx(0.04)
    open_run(watched, client="bob", request_id="4", steps=100)  # another client's year is its own
    clock.now = datetime(2029, 2, 28, 23, 59, tzinfo=UTC)
    with pytest.raises(BudgetExhausted, match="the year's"):
        open_run(watched, request_id="3", steps=1)
    clock.now += timedelta(minutes=1)
    open_run(watched, request_id="3", steps=40)
    clock.now -= timedelta(days=1)  # a clock that was put back gives no old year again
    with pytest.raises(BudgetExhausted, match="the year's"):
        open_run(watched, request_id="5", steps=1)
    watched.close()
    again = reopen(clock=clock)
    with pytest.raises(BudgetExhausted, match="the year's"):
        open_run(again, request_id="5", steps=1)
    assert again.verify().ok


def test_a_changed_cap_keeps_its_year_and_one_that_was_taken_away_begins_another(watched, open_run, clock):
    watched.set_cap("alice", 0.04, reason="x", year=True)
    open_run(watched, request_id="1", steps=30)
    clock.now += timedelta(days=100)
    watched.set_cap("alice", 0.035, reason="less", year=True)
    assert not watched.price_run(client="alice", event=toy_run(steps=6)).fits
    assert watched.price_run(client="alice", event=toy_run(steps=5)).fits
    watched.set_cap("alice", None, reason="over", year=True)
    open_run(watched, request_id="2", steps=200)
    watched.set_cap("alice", 0.035, reason="again", year=True)
    assert watched.price_run(client="alice", event=toy_run(steps=35)).fits


def test_day_and_year_hold_both(watched, open_run):
    watched.set_cap("alice", 0.04, reason="x", year=True)
    watched.set_cap("alice", 0.03, reason="x")
    with pytest.raises(BudgetExhausted) as refused:
        open_run(watched, request_id="1", steps=31)
    assert (refused.value.scope, refused.value.steps_that_fit) == (DAY, 30)
    with pytest.raises(BudgetExhausted) as refused:
        open_run(watched, request_id="1", steps=2000)
    assert refused.value.steps_that_fit == 30


@pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)
def test_whoever_stays_is_charged_in_sum_over_updated_records(watched, open_run, answer, reopen, clock):
    answer(watched, open_run(watched, request_id="old", steps=600), "old 1")
    watched.update_records(140, reason="the year's admissions")
    watched.close()
    again = reopen(clock=clock)
    assert again.records == 140
    with pytest.raises(InvalidEvent, match="has 140 records, the run was priced for 100"):
        open_run(again, request_id="stale", steps=1)
    with pytest.raises(BudgetExhausted) as refused:
        again.open_run(step("new"), event=toy_run(steps=401, records=140), parameters=b"p")
    assert refused.value.steps_that_fit == 400  # of 1,000, with 600 charged before the update
    again.open_run(step("new"), event=toy_run(steps=400, records=140), parameters=b"p")
    assert again.verify().ok
    assert [entry.payload["records"] for entry in again.history() if entry.kind == Kind.RECORDS_UPDATED] == [140]


@pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)
def test_a_run_of_earlier_records_ends_and_what_it_released_is_repeated(watched, open_run, answer, reopen, clock):
    run = open_run(watched, request_id="old", steps=3)
    stored = answer(watched, run, "old 1")
    watched.update_records(100, reason="others, and as many")
    watched.close()
    again = reopen(clock=clock)
    assert again.stored_reply(step("old 1"), run_id=run.run_id) == stored
    with pytest.raises(RunFinished, match="updated the records since this run was opened"):
        again.begin_step(step("old 2"), run_id=run.run_id)
    assert again.verify().ok


@pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)
def test_a_curator_that_holds_the_old_records_charges_and_computes_nothing(watched, open_run, location, key, clock):
    """It may be another replica, or a server that nobody has restarted yet; a step under way was begun before."""
    run = open_run(watched, request_id="1", steps=3)
    grant = watched.begin_step(step("1 1"), run_id=run.run_id)
    with Ledger.open(location, key=key, accounting=ToyAccounting(), clock=clock) as other:
        other.update_records(100, reason="x")
    with pytest.raises(LedgerUnavailable, match="updated since this curator started"):
        open_run(watched, request_id="2", steps=1)
    with pytest.raises((LedgerUnavailable, RequestInProgress)):
        watched.begin_step(step("1 2"), run_id=run.run_id)
    watched.finish_step(grant, reply=b"of the old records", audit={})
    assert watched.verify().ok


def test_an_update_between_a_price_and_its_charge_is_noticed(watched):
    """The price was made outside of the lock, for as many records as there were."""
    books = watched._snapshot()
    charges = books.charges("alice", toy_run(steps=2))
    watched.update_records(101, reason="x")
    fresh = watched._snapshot()
    assert not fresh.admits("alice", toy_run(steps=2), charges, day="2028-02-29")
    assert books.admits("alice", toy_run(steps=2), charges, day="2028-02-29")


@pytest.mark.parametrize("records", [0, -1, 1.5, True])
def test_a_number_that_is_none_is_refused(watched, records):
    with pytest.raises(InvalidValue, match="cannot become"):
        watched.update_records(records, reason="x")


def test_a_data_set_that_has_ended_is_not_updated(watched):
    watched.end(reason="x")
    with pytest.raises(InvalidValue, match="ended"):
        watched.update_records(120, reason="x")
