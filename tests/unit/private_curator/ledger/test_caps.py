"""The cap on what one client's runs of a day may cost: kept where a run is charged, by a clock that only advances."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from set_clock import SetClock
from toy_accounting import ToyAccounting, ToyBudget, toy_run

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.caps.books import DAY
from dpswd.shared.core.errors import BudgetExhausted

MONDAY = datetime(2026, 6, 1, 23, 0, tzinfo=UTC)


@pytest.fixture
def clock():
    return SetClock(MONDAY)


@pytest.fixture
def capped(path, key, clock):
    with Ledger.create(
        path, key=key, records=100, budget=ToyBudget(1.0), accounting=ToyAccounting(), clock=clock
    ) as ledger:
        ledger.add_client("alice", "f" * 64)
        ledger.add_client("bob", "b" * 64)
        ledger.set_cap("alice", 0.025, reason="a stolen key must not spend all")
        yield ledger


def test_a_day_is_bounded_and_the_next_one_is_free(capped, open_run, clock, reopen):
    open_run(capped, request_id="1", steps=20)
    with pytest.raises(BudgetExhausted, match="the day's privacy budget") as refused:
        open_run(capped, request_id="2", steps=10)
    assert (refused.value.scope, refused.value.steps_that_fit) == (DAY, 5)
    assert refused.value.spent == pytest.approx(0.02)
    open_run(capped, client="bob", request_id="3", steps=100)  # another client's day is its own
    clock.now += timedelta(hours=2)
    open_run(capped, request_id="4", steps=20)
    clock.now -= timedelta(hours=2)  # a clock that was put back begins no new day
    with pytest.raises(BudgetExhausted, match="the day's"):
        open_run(capped, request_id="5", steps=10)
    capped.close()
    again = reopen(clock=clock)
    with pytest.raises(BudgetExhausted, match="the day's"):
        open_run(again, request_id="5", steps=10)
    clock.now += timedelta(hours=3)
    again.set_cap("alice", None, reason="over")
    open_run(again, request_id="5", steps=10)
    assert again.verify().ok


def test_a_quote_knows_the_cap(capped):
    quote = capped.price_run(client="alice", event=toy_run(steps=30))
    assert (quote.fits, quote.steps_that_fit) == (False, 25)
    assert capped.price_run(client="alice", event=toy_run(steps=25)).fits


def test_requests_at_one_moment_do_not_pass_it_together(capped, open_run):
    admitted, refused, start = [], [], threading.Barrier(8)

    def ask(number: int) -> None:
        start.wait()
        try:
            admitted.append(open_run(capped, request_id=f"at once {number}", steps=10))
        except BudgetExhausted as error:
            refused.append(error.scope)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 2  # 0.02 of 0.025
    assert refused == [DAY] * 6


def test_two_programs_do_not_pass_it_together(capped, open_run, path, key, clock):
    """Another process's ledger has older books; the transaction brings them up to date first."""
    with Ledger.open(path, key=key, accounting=ToyAccounting(), clock=clock) as other:
        open_run(capped, request_id="1", steps=20)
        capped._database._claimed.close()  # the right to charge goes over
        capped._database._claims = False
        with pytest.raises(BudgetExhausted, match="the day's"):
            open_run(other, request_id="2", steps=10)
