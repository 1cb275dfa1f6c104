"""Acts of the operator: each is an entry, none is undone by a restart."""

from __future__ import annotations

import pytest
from toy_accounting import Relation, ToyBudget

from dpswd.private_curator.books.figures import Decision
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import DataSetState, Kind, Request
from dpswd.shared.core.errors import BudgetExhausted, GrantNotHeld, InvalidValue, LedgerUnavailable, RunFinished

DIGEST = "d" * 64

both = pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)


def last(ledger):
    return list(ledger.history())[-1]


def begin(ledger, run, request_id="step"):
    return ledger.begin_step(Request(client=run.client, request_id=request_id, digest=DIGEST), run_id=run.run_id)


class TestCreate:
    @both
    def test_never_replaces_a_ledger(self, ledger, location, key):
        with pytest.raises(LedgerUnavailable, match="exists already"):
            Ledger.create(location, key=key, records=100, budget=ToyBudget(9.0), accounting=ledger.accounting)
        assert ledger.status().data_set.epsilon == 1.0

    def test_leaves_one_private_file(self, path, key, ledger):
        ledger.close()
        left = {file.name for file in path.parent.iterdir()}
        assert left == {"ledger.sqlite", "ledger.sqlite.lock"}
        assert path.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("records", [0, -1, 2.0, True])
    def test_number_of_records(self, path, key, records):
        with pytest.raises(InvalidValue):
            Ledger.create(path, key=key, records=records, budget=ToyBudget(1.0))

    def test_missing_directory(self, path, key):
        with pytest.raises(LedgerUnavailable):
            Ledger.create(path.parent / "no" / "x", key=key, records=1, budget=ToyBudget(1.0))

    @both
    def test_opening_what_is_not_there(self, location, key):
        with pytest.raises(LedgerUnavailable, match="init"):
            Ledger.open(location, key=key)


@both
class TestClients:
    def test_are_looked_up_by_certificate(self, ledger):
        bob = ledger.add_client("bob", "b" * 64, ToyBudget(0.5))
        assert ledger.client_by_fingerprint("b" * 64) == bob
        assert ledger.client_by_fingerprint("0" * 64) is None
        assert [client.name for client in ledger.clients()] == ["alice", "bob"]

    def test_renewal_moves_the_name_to_the_new_certificate(self, ledger, reopen):
        ledger.renew_client("alice", "a" * 64)
        ledger.close()
        again = reopen()
        assert again.client_by_fingerprint("a" * 64).name == "alice"
        assert again.client_by_fingerprint("f" * 64) is None

    def test_names_and_certificates_are_unique_for_ever(self, ledger):
        ledger.revoke_client("alice", reason="left the consortium")
        with pytest.raises(InvalidValue, match="never given away"):
            ledger.add_client("alice", "a" * 64)
        with pytest.raises(InvalidValue, match="already bound"):
            ledger.add_client("bob", "f" * 64)

    @pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 129, "naïve", "a/b"])
    def test_malformed_names(self, ledger, name):
        with pytest.raises(InvalidValue):
            ledger.add_client(name, "a" * 64)

    def test_revoked_client_gets_nothing(self, ledger, open_run, answer):
        run = open_run(ledger)
        answer(ledger, run, "step")
        ledger.revoke_client("alice", reason="key lost")
        for refused in (lambda: begin(ledger, run), lambda: open_run(ledger), lambda: ledger.budget_of("alice")):
            with pytest.raises(GrantNotHeld):
                refused()
        assert ledger.client_by_fingerprint("f" * 64).revoked
        assert ledger.status().data_set.epsilon_spent > 0  # nothing is given back

    def test_share_may_change_but_forgets_nothing(self, ledger, open_run):
        ledger.add_client("bob", "b" * 64, ToyBudget(0.05))
        open_run(ledger, client="bob", steps=50)
        ledger.set_share("bob", ToyBudget(0.06), reason="agreed on 3 May")
        with pytest.raises(BudgetExhausted):
            open_run(ledger, client="bob", request_id="2", steps=11)
        open_run(ledger, client="bob", request_id="3", steps=10)
        assert ledger.budget_of("bob")[1].epsilon_spent == pytest.approx(0.06)

    def test_a_first_share_counts_what_was_spent_before_it(self, ledger, open_run, reopen):
        ledger.add_client("bob", "b" * 64)
        ledger.set_share("bob", ToyBudget(0.05), reason="agreed")
        with pytest.raises(BudgetExhausted):
            open_run(ledger, client="bob", steps=51)
        open_run(ledger, steps=10)
        ledger.set_share("alice", ToyBudget(0.015), reason="after all")
        assert ledger.budget_of("alice")[1].epsilon_spent == 0.01
        with pytest.raises(BudgetExhausted, match="the client's privacy budget"):
            open_run(ledger, request_id="second", steps=6)
        open_run(ledger, request_id="third", steps=5)
        ledger.close()
        again = reopen()
        assert {name: again._books.spent_by(name) for name in ("alice", "bob")} == {"alice": 0.015, "bob": 0.0}
        assert again.verify().ok

    def test_a_share_is_no_larger_than_the_whole(self, ledger):
        with pytest.raises(InvalidValue, match="larger than the data set's budget"):
            ledger.set_share("alice", ToyBudget(1.5), reason="generous")
        with pytest.raises(InvalidValue, match="larger than the data set's budget"):
            ledger.add_client("bob", "b" * 64, ToyBudget(0.5, delta=1e-3))

    def test_a_paused_client_gets_nothing_new(self, ledger, open_run, answer):
        run = open_run(ledger)
        reply = answer(ledger, run, "1")
        ledger.pause_client("alice", reason="an inquiry")
        with pytest.raises(GrantNotHeld, match="paused"):
            open_run(ledger, request_id="another")
        with pytest.raises(GrantNotHeld, match="paused"):
            begin(ledger, run, "2")
        assert begin(ledger, run, "1") == reply
        ledger.resume_client("alice", reason="settled")
        answer(ledger, run, "2")
        assert ledger.verify().ok

    def test_a_request_for_budget_is_decided_once(self, ledger, open_run):
        ledger.lower_budget(ToyBudget(0.9), reason="x")
        open_run(ledger, steps=10)
        asked = ledger.request_budget(client="alice", epsilon=0.5, purpose="a second site")
        assert ledger.request_budget(client="alice", epsilon=0.5, purpose="a second site") == asked
        with pytest.raises(GrantNotHeld, match="one waits at a time"):
            ledger.request_budget(client="alice", epsilon=0.4, purpose="a second site")
        with pytest.raises(InvalidValue, match="from 0 to that"):
            ledger.decide_request(asked.number, granted=0.6, reason="x")
        cut = ledger.decide_request(asked.number, granted=0.2, reason="half will do")
        assert (cut.decision, cut.granted, cut.reason) == (Decision.CUT, 0.2, "half will do")
        assert ledger.budget_of("alice")[1].epsilon == pytest.approx(0.21)  # what was spent, and what was granted
        with pytest.raises(InvalidValue, match="decided already"):
            ledger.decide_request(asked.number, granted=0.0, reason="x")
        ledger.request_budget(client="alice", epsilon=0.1, purpose="more")
        assert ledger.decide_request(2, granted=0.1, reason="well").decision is Decision.APPROVED
        assert ledger.budget_of("alice")[1].epsilon == pytest.approx(0.31)
        ledger.request_budget(client="alice", epsilon=5.0, purpose="all")
        assert ledger.decide_request(3, granted=0.0, reason="no").decision is Decision.DENIED
        assert ledger.verify().ok

    def test_shares_have_the_data_sets_relation(self, ledger):
        with pytest.raises(InvalidValue, match="replace-one"):
            ledger.add_client("bob", "b" * 64, ToyBudget(0.1, relation=Relation.ADD_REMOVE))


@both
class TestBudget:
    def test_lowering_below_what_is_spent_stops_new_runs_only(self, ledger, open_run, answer):
        run = open_run(ledger, steps=500)
        ledger.lower_budget(ToyBudget(0.4), reason="new policy")
        with pytest.raises(BudgetExhausted) as caught:
            open_run(ledger, request_id="2", steps=1)
        assert (caught.value.remaining, caught.value.steps_that_fit) == (0.0, 0)
        answer(ledger, run, "step")  # was charged before
        assert last(ledger).kind == "step-answered"

    def test_lowering_cannot_raise_and_extending_cannot_lower(self, ledger):
        for budget in (ToyBudget(1.1), ToyBudget(0.9, delta=1e-4)):
            with pytest.raises(InvalidValue):
                ledger.lower_budget(budget, reason="x")
        for budget in (ToyBudget(0.9), ToyBudget(1.1, delta=1e-6)):
            with pytest.raises(InvalidValue):
                ledger.extend_budget(budget, reason="x")
        assert ledger.status().data_set.epsilon == 1.0

    def test_extension_keeps_what_was_spent(self, ledger, open_run, reopen):
        open_run(ledger, steps=1000)
        ledger.extend_budget(ToyBudget(1.5), reason="second consent, 2026-05-03")
        assert last(ledger).payload["reason"] == "second consent, 2026-05-03"
        ledger.close()
        again = reopen()
        with pytest.raises(BudgetExhausted):
            open_run(again, request_id="2", steps=501)
        open_run(again, request_id="3", steps=500)
        assert again.status().data_set.epsilon_remaining == pytest.approx(0)

    def test_another_relation_is_refused(self, ledger):
        with pytest.raises(InvalidValue, match="replace-one"):
            ledger.extend_budget(ToyBudget(2.0, relation=Relation.ADD_REMOVE), reason="x")

    def test_budget_changed_by_another_process_counts_at_once(self, ledger, reopen, open_run):
        open_run(ledger)
        operator = reopen()
        operator.lower_budget(ToyBudget(0.02), reason="x")
        with pytest.raises(BudgetExhausted):
            open_run(ledger, request_id="2", steps=11)

    @pytest.mark.parametrize("reason", ["", "  ", "x" * 2001])
    def test_every_act_has_a_reason(self, ledger, reason):
        for act in (ledger.freeze, ledger.end, lambda reason: ledger.extend_budget(ToyBudget(2.0), reason=reason)):
            with pytest.raises(InvalidValue, match="reason"):
                act(reason=reason)


@both
class TestStates:
    def test_frozen_releases_nothing_new(self, ledger, open_run, answer, reopen):
        run = open_run(ledger)
        stored = answer(ledger, run, "answered")
        ledger.abandon_step(begin(ledger, run, "begun"))
        reopen().freeze(reason="incident 17")
        for request_id in ("new", "begun"):
            with pytest.raises(GrantNotHeld, match="frozen"):
                begin(ledger, run, request_id)
        with pytest.raises(BudgetExhausted) as caught:
            open_run(ledger, request_id="2")
        assert (caught.value.scope, caught.value.remaining) == ("frozen data set", 0.0)
        assert begin(ledger, run, "answered") == stored  # released before
        ledger.unfreeze(reason="resolved")
        assert begin(ledger, run, "begun").attempt > 1
        open_run(ledger, request_id="2")

    def test_a_release_that_was_begun_before_the_freeze_is_stored(self, ledger, open_run):
        run = open_run(ledger)
        grant = begin(ledger, run)
        ledger.freeze(reason="incident")
        ledger.finish_step(grant, reply=b"noise", audit={})
        assert ledger.verify().ok

    def test_ended_is_for_ever(self, ledger, open_run, reopen):
        run = open_run(ledger)
        ledger.end(reason="the study is over")
        for act in (
            lambda: ledger.unfreeze(reason="x"),
            lambda: ledger.freeze(reason="x"),
            lambda: ledger.extend_budget(ToyBudget(2.0), reason="x"),
        ):
            with pytest.raises(InvalidValue, match="ended"):
                act()
        ledger.close()
        again = reopen()
        assert again.status().state is DataSetState.ENDED
        with pytest.raises(GrantNotHeld, match="ended"):
            begin(again, run)
        with pytest.raises(BudgetExhausted, match="ended data set"):
            open_run(again, request_id="2")

    def test_repeated_acts_leave_one_entry(self, ledger):
        ledger.freeze(reason="x")
        length = ledger.status().entries
        ledger.freeze(reason="y")
        assert ledger.status().entries == length


@both
class TestExtractors:
    def test_approval_and_withdrawal(self, ledger, reopen):
        ledger.approve_extractor("1" * 64)
        ledger.approve_extractor("2" * 64)
        ledger.approve_extractor("2" * 64)
        ledger.revoke_extractor("1" * 64)
        ledger.revoke_extractor("3" * 64)
        ledger.close()
        again = reopen()
        assert again.approved_extractors() == {"2" * 64}
        acts = [entry.kind for entry in again.history() if entry.kind.startswith("extractor")]
        assert acts == [Kind.EXTRACTOR_APPROVED, Kind.EXTRACTOR_APPROVED, Kind.EXTRACTOR_REVOKED]

    def test_a_digest_is_a_digest(self, ledger):
        with pytest.raises(InvalidValue):
            ledger.approve_extractor("resnet")


@both
class TestPruning:
    def test_closes_the_run_and_keeps_the_charge(self, ledger, open_run, answer):
        run = open_run(ledger)
        other = open_run(ledger, request_id="other")
        answer(ledger, run, "1")
        reply = answer(ledger, other, "2")
        spent = ledger.status().data_set.epsilon_spent
        assert ledger.prune_replies(run.run_id, reason="client has confirmed") == 1
        for request_id in ("1", "new"):  # never new noise for an old request
            with pytest.raises(RunFinished, match="closed"):
                begin(ledger, run, request_id)
        assert begin(ledger, other, "2") == reply
        assert ledger.status().data_set.epsilon_spent == spent
        assert ledger.verify().ok

    def test_a_step_that_is_computed_meanwhile_is_not_stored(self, ledger, open_run):
        run = open_run(ledger)
        grant = begin(ledger, run, "1")
        ledger.prune_replies(run.run_id, reason="client has confirmed")
        with pytest.raises(RunFinished, match="while a step"):
            ledger.finish_step(grant, reply=b"late", audit={})
        report = ledger.verify()
        assert report.ok, report.findings

    def test_unknown_run(self, ledger):
        with pytest.raises(GrantNotHeld):
            ledger.prune_replies("0" * 32, reason="x")
