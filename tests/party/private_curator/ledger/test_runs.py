"""Charges, steps and repeats."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from toy_accounting import Relation, ToyBudget, ToyRun, ToyStep, toy_run

from dpswd.private_curator.books.figures import Quote
from dpswd.private_curator.books.sqlite_file import SqliteFile
from dpswd.private_curator.core.ledger.statements import Kind, Request, StepGranted, StoredReply
from dpswd.shared.core.errors import (
    BudgetExhausted,
    GrantNotHeld,
    InvalidEvent,
    InvalidValue,
    LedgerUnavailable,
    RelationMismatch,
    RequestIdReused,
    RequestInProgress,
    RunFinished,
)
from dpswd.shared.core.ledger.receipts import sha256
from dpswd.shared.protocol.receipts import receipt_problems

DIGEST, OTHER = "d" * 64, "e" * 64

both = pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)


def kinds(ledger):
    return [entry.kind for entry in ledger.history()]


def begin(ledger, run, request_id="step", digest=DIGEST, client="alice"):
    return ledger.begin_step(Request(client=client, request_id=request_id, digest=digest), run_id=run.run_id)


@both
class TestOpenRun:
    def test_charges_all_steps_at_once(self, ledger, open_run):
        run = open_run(ledger, steps=40)
        assert (run.steps, run.steps_used, run.parameters) == (40, 0, b"parameters")
        assert ledger.status().data_set.epsilon_spent == pytest.approx(0.04)
        assert run.receipt.entry.signed_by(ledger.public_key)
        assert run.receipt.run_id == run.run_id

    def test_repeat_returns_the_same_run_free(self, ledger, open_run, reopen):
        run = open_run(ledger, steps=40)
        assert open_run(ledger, steps=40) == run
        ledger.close()
        again = reopen()
        assert open_run(again, steps=40) == run
        assert again.status().data_set.epsilon_spent == pytest.approx(0.04)
        assert kinds(again).count("run-opened") == 1

    def test_repeat_is_free_even_when_nothing_is_left(self, ledger, open_run):
        run = open_run(ledger, steps=1000)
        assert ledger.status().data_set.epsilon_remaining == 0
        assert open_run(ledger, steps=1000) == run

    def test_same_id_with_other_content_is_refused(self, ledger, open_run):
        open_run(ledger)
        with pytest.raises(RequestIdReused):
            open_run(ledger, digest=OTHER)
        assert kinds(ledger).count("run-opened") == 1

    def test_ids_of_different_clients_do_not_meet(self, ledger, open_run):
        ledger.add_client("bob", "b" * 64)
        assert open_run(ledger).run_id != open_run(ledger, client="bob", digest=OTHER).run_id

    def test_refusal_names_figures_and_spends_nothing(self, ledger, open_run):
        open_run(ledger, steps=900)
        with pytest.raises(BudgetExhausted) as caught:
            open_run(ledger, request_id="second", steps=101)
        error = caught.value
        assert (error.scope, error.steps_that_fit) == ("data set", 100)
        assert (error.requested, error.spent, error.remaining) == pytest.approx((0.101, 0.9, 0.1))
        assert kinds(ledger).count("run-opened") == 1
        open_run(ledger, request_id="third", steps=100)  # exactly what was left

    def test_clients_together_cannot_exceed_the_data_set(self, ledger, open_run):
        ledger.add_client("bob", "b" * 64, ToyBudget(0.8))
        open_run(ledger, steps=600)
        with pytest.raises(BudgetExhausted) as caught:
            open_run(ledger, client="bob", steps=500)
        assert caught.value.scope == "data set"
        assert caught.value.steps_that_fit == 400

    def test_a_share_limits_its_client_only(self, ledger, open_run):
        ledger.add_client("bob", "b" * 64, ToyBudget(0.05))
        with pytest.raises(BudgetExhausted) as caught:
            open_run(ledger, client="bob", steps=51)
        assert (caught.value.scope, caught.value.steps_that_fit) == ("client", 50)
        assert ledger.status().data_set.epsilon_spent == 0  # refused by one, charged to none
        open_run(ledger, client="bob", steps=50)
        open_run(ledger, steps=900)
        data_set, share = ledger.budget_of("bob")
        assert (data_set.epsilon_spent, share.epsilon_spent) == pytest.approx((0.95, 0.05))

    def test_another_number_of_records_is_refused(self, ledger, open_run):
        with pytest.raises(InvalidEvent, match="100 records"):
            open_run(ledger, records=101)

    def test_another_relation_is_refused(self, ledger):
        event = ToyRun(ToyStep(relation=Relation.ADD_REMOVE), 5)
        with pytest.raises(RelationMismatch):
            ledger.open_run(Request(client="alice", request_id="1", digest=DIGEST), event=event, parameters=b"")

    @pytest.mark.parametrize("client", ["mallory", "", "Alice"])
    def test_unknown_client_is_refused(self, ledger, open_run, client):
        with pytest.raises(GrantNotHeld):
            open_run(ledger, client=client)

    @pytest.mark.parametrize(
        ("request_id", "digest"),
        [("", DIGEST), ("x" * 129, DIGEST), ("a\0b", DIGEST), ("\ud800", DIGEST), ("x", "D" * 64), ("x", "")],
    )
    def test_malformed_ids_are_refused(self, ledger, open_run, request_id, digest):
        with pytest.raises(InvalidValue):
            open_run(ledger, request_id=request_id, digest=digest)

    def test_the_filter_is_fixed_with_the_first_charge_and_never_again(self, ledger, open_run):
        ledger.add_client("bob", "b" * 64, ToyBudget(0.5))
        open_run(ledger, cost=7)
        open_run(ledger, request_id="second", cost=9)
        open_run(ledger, client="bob", cost=11)
        fixed = [entry.payload for entry in ledger.history() if entry.kind == Kind.FILTER_FIXED]
        assert [(payload["scope"], payload["client"]) for payload in fixed] == [("data set", None), ("client", "bob")]
        assert '"plan_cost": 7' in fixed[0]["filter"]
        assert '"plan_cost": 11' in fixed[1]["filter"]


@both
class TestPriceRun:
    def test_spends_nothing(self, ledger):
        before = ledger.status()
        quote = ledger.price_run(client="alice", event=toy_run(steps=40))
        assert isinstance(quote, Quote)
        assert quote.fits
        assert (quote.epsilon, quote.steps_that_fit) == (pytest.approx(0.04), 40)
        assert ledger.status() == before

    def test_says_what_still_fits(self, ledger, open_run):
        open_run(ledger, steps=990)
        quote = ledger.price_run(client="alice", event=toy_run(steps=40))
        assert not quote.fits
        assert (quote.epsilon, quote.steps_that_fit) == (pytest.approx(0.04), 10)

    def test_a_run_beyond_the_whole_budget_has_a_price_too(self, ledger):
        quote = ledger.price_run(client="alice", event=toy_run(steps=4000))
        assert not quote.fits
        assert (quote.epsilon, quote.steps_that_fit) == (pytest.approx(4.0), 1000)

    def test_nothing_fits_a_frozen_data_set(self, ledger):
        ledger.freeze(reason="audit")
        quote = ledger.price_run(client="alice", event=toy_run(steps=4))
        assert not quote.fits
        assert (quote.steps_that_fit, quote.data_set.epsilon_remaining) == (0, 0.0)


@both
class TestSteps:
    def test_numbers_and_receipts(self, ledger, open_run, answer):
        run = open_run(ledger, steps=3)
        for number in (1, 2, 3):
            stored = answer(ledger, run, f"step-{number}", reply=b"noise %d" % number)
            receipt = stored.receipt
            assert (receipt.step, receipt.run_id, receipt.client) == (number, run.run_id, "alice")
            assert receipt.reply_digest == sha256(stored.reply)
            assert not receipt_problems(
                receipt,
                public_key=ledger.public_key,
                run_id=run.run_id,
                request_id=f"step-{number}",
                reply=stored.reply,
                step=number,
            )
        with pytest.raises(RunFinished):
            begin(ledger, run, "step-4")
        assert ledger.run(client="alice", run_id=run.run_id).steps_used == 3

    def test_repeat_gets_identical_bytes_and_receipt(self, ledger, open_run, answer, reopen):
        run = open_run(ledger)
        stored = answer(ledger, run, "step")
        assert begin(ledger, run) == stored
        ledger.close()
        again = reopen()
        assert begin(again, run) == stored
        assert again.status().steps_used == 1

    def test_stored_reply_costs_no_entry(self, ledger, open_run, answer):
        run = open_run(ledger)
        answer(ledger, run, "step")
        length = ledger.status().entries
        begin(ledger, run)
        assert ledger.status().entries == length

    def test_same_id_with_other_content_is_refused(self, ledger, open_run, answer):
        run, second = open_run(ledger), open_run(ledger, request_id="second")
        answer(ledger, run, "step")
        with pytest.raises(RequestIdReused):
            begin(ledger, run, digest=OTHER)
        with pytest.raises(RequestIdReused):
            begin(ledger, second)  # the same id and digest, but for another run
        with pytest.raises(RequestIdReused):
            begin(ledger, run, request_id="open")  # the id that opened the run
        with pytest.raises(RequestIdReused):
            open_run(ledger, request_id="step")  # a step's id cannot open a run
        assert ledger.status().steps_used == 1

    def test_in_progress_is_retryable(self, ledger, open_run):
        run = open_run(ledger)
        grant = begin(ledger, run)
        with pytest.raises(RequestInProgress):
            begin(ledger, run)
        stored = ledger.finish_step(grant, reply=b"noise", audit={})
        assert begin(ledger, run) == stored

    def test_another_clients_run_does_not_exist(self, ledger, open_run):
        ledger.add_client("bob", "b" * 64)
        run = open_run(ledger)
        with pytest.raises(GrantNotHeld) as foreign:
            begin(ledger, run, client="bob")
        with pytest.raises(GrantNotHeld) as missing:
            ledger.begin_step(Request(client="bob", request_id="step", digest=DIGEST), run_id="0" * 32)
        assert str(foreign.value) == str(missing.value)
        with pytest.raises(GrantNotHeld):
            ledger.run(client="bob", run_id=run.run_id)

    def test_abandoned_step_stays_charged_and_is_granted_again(self, ledger, open_run):
        run = open_run(ledger, steps=1)
        ledger.abandon_step(begin(ledger, run))
        with pytest.raises(RunFinished):
            begin(ledger, run, "another")
        grant = begin(ledger, run)
        assert (grant.step_number, grant.attempt) == (1, 2)
        ledger.finish_step(grant, reply=b"noise", audit={})
        assert ledger.status().steps_used == 1
        assert kinds(ledger)[-3:] == ["step-consumed", "step-resumed", "step-answered"]

    def test_a_restart_resumes_what_was_begun(self, ledger, open_run, reopen):
        run = open_run(ledger, steps=2)
        first = begin(ledger, run)
        ledger.close()
        again = reopen()
        grant = begin(again, run)
        assert grant.attempt > 1
        assert grant.step_number == first.step_number == 1
        assert again.status().steps_used == 1

    def test_an_ended_grant_stores_nothing(self, ledger, open_run):
        run = open_run(ledger)
        first = begin(ledger, run)
        ledger.abandon_step(first)
        second = begin(ledger, run)
        with pytest.raises(GrantNotHeld):
            ledger.finish_step(first, reply=b"late", audit={})
        with pytest.raises(RequestInProgress):
            begin(ledger, run)  # the late caller has not ended the second attempt
        stored = ledger.finish_step(second, reply=b"noise", audit={})
        with pytest.raises(GrantNotHeld):
            ledger.finish_step(second, reply=b"twice", audit={})
        assert begin(ledger, run) == stored

    def test_a_run_that_was_closed_meanwhile_stores_nothing(self, ledger, open_run):
        run = open_run(ledger)
        grant = begin(ledger, run)
        assert ledger.prune_replies(run.run_id, reason="a test") == 0
        with pytest.raises(RunFinished, match="closed this run"):
            ledger.finish_step(grant, reply=b"late", audit={})
        assert ledger.status().steps_used == 1

    def test_an_audit_record_that_is_no_json_ends_the_grant(self, ledger, open_run):
        run = open_run(ledger)
        with pytest.raises(InvalidValue):
            ledger.finish_step(begin(ledger, run), reply=b"noise", audit={"loss": float("nan")})
        assert begin(ledger, run).attempt == 2

    def test_the_audit_record_is_not_in_the_receipt(self, ledger, open_run):
        run = open_run(ledger)
        stored = ledger.finish_step(begin(ledger, run), reply=b"noise", audit={"secret": "CANARY"})
        assert b"CANARY" not in stored.receipt.entry.statement
        assert b"secret" not in stored.receipt.entry.statement

    def test_an_empty_reply_is_a_reply(self, ledger, open_run, answer):
        run = open_run(ledger)
        assert answer(ledger, run, "step", reply=b"") == begin(ledger, run)
        assert isinstance(begin(ledger, run), StoredReply)


def test_what_stands_there_is_answered_once_a_failover_would_keep_it(ledger, open_run, answer, monkeypatch):
    run = open_run(ledger)
    stored = answer(ledger, run, "step")
    settled = []
    monkeypatch.setattr(ledger, "_settle", lambda: settled.append(True))
    opened, asked, new = (Request(client="alice", request_id=name, digest=DIGEST) for name in ("open", "step", "new"))
    assert (ledger.opened_run(new), ledger.stored_reply(new, run_id=run.run_id), settled) == (None, None, [])
    assert (ledger.opened_run(opened).run_id, len(settled)) == (run.run_id, 1)
    assert (ledger.stored_reply(asked, run_id=run.run_id), len(settled)) == (stored, 2)


def test_only_one_process_computes_for_a_file(ledger, open_run, reopen):
    run = open_run(ledger)
    second = reopen()
    with pytest.raises(LedgerUnavailable, match="another curator"):
        begin(second, run)
    assert second.status().runs == 1  # reading is free to all
    ledger.close()
    assert isinstance(begin(second, run), StepGranted)


def test_the_ledger_loads_neither_torch_nor_scipy():
    code = (
        "import sys, dpswd.private_curator.books; print([m for m in ('torch', 'scipy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@both
def test_the_first_quantum_of_a_work_is_that_of_every_later_start(ledger, reopen):
    """Attack: each trial set its own, 100 and 150 ms for one graph, by the machine's load."""
    work, other = "1" * 64, "2" * 64
    assert ledger.quantum(work, milliseconds=100) == 100
    assert ledger.quantum(work, milliseconds=150) == 100
    assert ledger.quantum(other, milliseconds=150) == 150
    if isinstance(ledger.location, SqliteFile):
        ledger.close()  # one at a time
    later = reopen()
    assert later.quantum(work, milliseconds=50) == 100
    fixed = [entry.payload for entry in later.history() if entry.kind == Kind.QUANTUM_FIXED]
    assert fixed == [{"work": work, "milliseconds": 100}, {"work": other, "milliseconds": 150}]
    assert later.verify().ok


def test_threads_that_fix_one_quantum_at_once_agree(ledger):
    barrier, quanta = threading.Barrier(8), []

    def fix(milliseconds):
        barrier.wait()
        quanta.append(ledger.quantum("1" * 64, milliseconds=milliseconds))

    threads = [threading.Thread(target=fix, args=(50 * number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(quanta) == 8
    assert len(set(quanta)) == 1
