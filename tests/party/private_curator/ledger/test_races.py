"""Many callers at once: exactly what was paid for, and nobody waits for ever."""

from __future__ import annotations

import collections
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from toy_accounting import ToyAccounting, ToyBudget, ToyFilter, toy_run

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import Request, StepGranted, StoredReply
from dpswd.shared.core.errors import BudgetExhausted, GrantNotHeld, RequestInProgress, RunFinished

DIGEST = "d" * 64
CALLERS = 200

both = pytest.mark.parametrize("location", ["sqlite", "postgres"], indirect=True)


def race(act):
    """Calls ``act(number)`` in 200 threads at once; counts what came of it."""
    outcomes, barrier, guard = collections.Counter(), threading.Barrier(CALLERS), threading.Lock()

    def call(number):
        barrier.wait()
        try:
            outcome = act(number)
        except Exception as error:
            outcome = type(error).__name__
        with guard:
            outcomes[outcome] += 1

    threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    return outcomes


@both
def test_200_clients_race_for_the_last_steps(ledger, open_run, answer):
    run = open_run(ledger, steps=10)
    for number in range(3):
        answer(ledger, run, f"before-{number}")

    def act(number):
        grant = ledger.begin_step(
            Request(client="alice", request_id=f"race-{number}", digest=DIGEST), run_id=run.run_id
        )
        assert isinstance(grant, StepGranted)
        return type(ledger.finish_step(grant, reply=b"%d" % number, audit={})).__name__

    assert race(act) == {"StoredReply": 7, RunFinished.__name__: CALLERS - 7}
    status = ledger.status()
    assert (status.steps_used, status.steps_charged) == (10, 10)
    steps = [entry.payload["step"] for entry in ledger.history() if entry.kind == "step-consumed"]
    assert steps == list(range(1, 11))
    assert ledger.verify().ok


@both
def test_200_repeats_of_one_request_compute_it_once(ledger, open_run):
    run = open_run(ledger, steps=10)
    replies = set()

    def act(number):
        result = ledger.begin_step(Request(client="alice", request_id="same", digest=DIGEST), run_id=run.run_id)
        if isinstance(result, StoredReply):
            replies.add(result.reply)
            return "stored"
        replies.add(ledger.finish_step(result, reply=b"%d" % number, audit={}).reply)
        return "computed"

    outcomes = race(act)
    assert outcomes["computed"] == 1
    assert outcomes["stored"] + outcomes[RequestInProgress.__name__] == CALLERS - 1
    assert len(replies) == 1
    assert ledger.status().steps_used == 1


@both
def test_200_clients_race_for_the_rest_of_the_budget(ledger):
    for number in range(CALLERS):
        ledger.add_client(f"client-{number}", f"{number:064x}", ToyBudget(0.5))

    def act(number):
        ledger.open_run(
            Request(client=f"client-{number}", request_id="x", digest=DIGEST), event=toy_run(steps=150), parameters=b""
        )
        return "charged"

    # Epsilon 1 pays for six runs of 0.15.
    assert race(act) == {"charged": 6, BudgetExhausted.__name__: CALLERS - 6}
    assert ledger.status().data_set.runs == 6
    assert ledger.verify().ok


class Interrupted(ToyAccounting):
    """Something happens while a run is priced, outside of the ledger's lock."""

    def __init__(self):
        self.meanwhile = []

    def happen(self):
        while self.meanwhile:
            self.meanwhile.pop()()

    def filter_for(self, budget, plan):
        filter_ = super().filter_for(budget, plan)
        self.happen()
        return filter_

    def filter_from_json(self, text):
        happen, fixed = self.happen, super().filter_from_json(text)

        class Pricing(ToyFilter):
            def price(self, event):
                price = super().price(event)
                happen()
                return price

        return Pricing(fixed.budget, fixed.plan_cost)


@pytest.fixture
def interrupted(ledger, location, key, reopen):
    """A curator, the operator's program, and what happens while the curator prices its first run."""
    ledger.close()
    accounting = Interrupted()
    with Ledger.open(location, key=key, accounting=accounting) as curator:
        yield curator, reopen(), accounting.meanwhile
        assert curator.verify().ok


@both
class TestMeanwhile:
    def test_the_budget_is_lowered(self, interrupted, open_run):
        curator, operator, meanwhile = interrupted
        meanwhile.append(lambda: operator.lower_budget(ToyBudget(0.05), reason="x"))
        with pytest.raises(BudgetExhausted):
            open_run(curator, steps=51)
        assert curator.status().runs == 0

    def test_the_budget_is_extended(self, interrupted, open_run):
        curator, operator, meanwhile = interrupted
        meanwhile.append(lambda: operator.extend_budget(ToyBudget(2.0), reason="x"))
        open_run(curator, steps=500)
        assert curator.status().data_set.epsilon_remaining == pytest.approx(1.5)

    def test_the_data_set_is_frozen(self, interrupted, open_run):
        curator, operator, meanwhile = interrupted
        meanwhile.append(lambda: operator.freeze(reason="x"))
        with pytest.raises(BudgetExhausted, match="frozen"):
            open_run(curator)
        assert curator.status().runs == 0

    def test_the_client_is_revoked(self, interrupted, open_run):
        curator, operator, meanwhile = interrupted
        meanwhile.append(lambda: operator.revoke_client("alice", reason="x"))
        with pytest.raises(GrantNotHeld):
            open_run(curator)
        assert curator.status().runs == 0

    def test_the_client_gets_a_share(self, interrupted, open_run):
        curator, operator, meanwhile = interrupted
        meanwhile.append(lambda: operator.set_share("alice", ToyBudget(0.05), reason="x"))
        with pytest.raises(BudgetExhausted) as caught:
            open_run(curator, steps=51)
        assert caught.value.scope == "client"
        open_run(curator, steps=50)
        assert curator.budget_of("alice")[1].epsilon_remaining == pytest.approx(0)

    def test_another_run_fixes_the_filter(self, interrupted, open_run):
        curator, _, meanwhile = interrupted
        meanwhile.append(lambda: open_run(curator, request_id="first", steps=900, cost=999))
        with pytest.raises(BudgetExhausted):
            open_run(curator, request_id="second", steps=900)
        fixed = [entry for entry in curator.history() if entry.kind == "filter-fixed"]
        assert len(fixed) == 1
        assert '"plan_cost": 999' in fixed[0].payload["filter"]

    def test_another_run_takes_the_rest(self, interrupted, open_run):
        curator, _, meanwhile = interrupted
        open_run(curator, request_id="first", steps=500)
        meanwhile.append(lambda: open_run(curator, request_id="faster", steps=300))
        with pytest.raises(BudgetExhausted) as caught:
            open_run(curator, request_id="slower", steps=300)
        assert caught.value.steps_that_fit == 200
        assert curator.status().data_set.epsilon_spent == pytest.approx(0.8)


@pytest.mark.parametrize(("location", "programs"), [("sqlite", 3), ("postgres", 2)], indirect=["location"])
@pytest.mark.long
def test_the_operators_programs_work_beside_the_curator(ledger, open_run, answer, location, programs):
    """Processes of the operator write while the curator's threads do; no write is lost or torn."""
    run = open_run(ledger, steps=40)
    code = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[3])!r}, {str(Path(__file__).parents[4])!r}]
from toy_accounting import ToyAccounting
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pathlib import PosixPath
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.postgres.schema import PostgresSchema
from dpswd.private_curator.books.sqlite_file import SqliteFile
key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
for act in range(4):
    with Ledger.open({location!r}, key=key, accounting=ToyAccounting(), lock_timeout_s=60) as ledger:
        ledger.approve_extractor(f"{{int(sys.argv[1]):02d}}{{act:062d}}")
        assert ledger.verify().ok
"""
    operators = [subprocess.Popen([sys.executable, "-c", code, str(number)]) for number in range(programs)]
    workers = [
        threading.Thread(target=lambda n=n: [answer(ledger, run, f"{n}-{step}") for step in range(10)])
        for n in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [operator.wait(timeout=60) for operator in operators] == [0] * programs
    assert ledger.status().steps_used == 40
    assert len(ledger.approved_extractors()) == 4 * programs
    report = ledger.verify()
    assert report.ok, report.findings
