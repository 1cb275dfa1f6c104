"""Several curator processes on one ledger in PostgreSQL: one budget, one reply for a step, whoever dies."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_accounting import ToyAccounting, ToyBudget

from dpswd.private_curator.books.backup import restore
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import Request
from dpswd.shared.core.errors import LedgerUnavailable

CLIENTS = 200
REPLICAS = ("north", "east", "south")


@pytest.fixture
def location(new_schema):
    return new_schema


class Process:
    """A replica, and what it is told to do."""

    def __init__(self, name):
        self.name = name
        self.process = None

    def start(self):
        if self.process is None:
            driver = Path(__file__).parents[3] / "replica.py"
            self.process = subprocess.Popen(
                [sys.executable, driver, self.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )

    def tell(self, do, **order):
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the replica died"
        return json.loads(line)

    def do(self, order, **values):
        self.tell(order, **values)
        return self.answer()

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(timeout=30)
            self.process.stdout.close()
            self.process = None


@pytest.fixture(scope="module")
def processes():
    """Three curators without a ledger, by name."""
    processes = {name: Process(name) for name in REPLICAS}
    yield processes
    for process in processes.values():
        process.end()


@pytest.fixture
def replicas(processes, ledger, location):
    """The curators, serving the ledger; who was killed by the test before is started again."""
    for process in processes.values():
        process.start()
    for process in processes.values():
        assert process.do("serve", url=location.url, schema=location.schema) == {"outcome": "serving"}
    return processes


def shares(values):
    """The values dealt out to the replicas."""
    return {name: values[number :: len(REPLICAS)] for number, name in enumerate(REPLICAS)}


def together(replicas, do, dealt, key, **values):
    """Every replica acts at once; how often each outcome came, and every reply."""
    for name, share in dealt.items():
        replicas[name].tell(do, **{key: share}, **values)
    answers = [replicas[name].answer() for name in dealt]
    outcomes = collections.Counter(outcome for answer in answers for outcome in answer["outcomes"])
    return outcomes, [reply for answer in answers for reply in answer.get("replies", [])]


def patiently(replica, **order):
    """What a client does: repeats the request while it is in progress."""
    deadline = time.monotonic() + 30
    while (answer := replica.do("begin", **order))["outcome"] == "RequestInProgress":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer


def entries(ledger, kind):
    return [entry.payload for entry in ledger.history() if entry.kind == kind]


def test_200_clients_race_over_three_replicas_for_the_last_steps(ledger, open_run, answer, replicas):
    run = open_run(ledger, steps=10)
    for number in range(3):
        answer(ledger, run, f"before-{number}")
    requests = [f"race-{number}" for number in range(CLIENTS)]
    outcomes, replies = together(replicas, "race", shares(requests), "requests", run=run.run_id)
    assert outcomes == {"computed": 7, "RunFinished": CLIENTS - 7}
    assert len(set(replies)) == 7
    assert [payload["step"] for payload in entries(ledger, "step-consumed")] == list(range(1, 11))
    status = ledger.status()
    assert (status.steps_used, status.steps_charged) == (10, 10)
    assert ledger.verify().ok


def test_200_repeats_of_one_request_over_three_replicas_compute_it_once(ledger, open_run, replicas):
    run = open_run(ledger, steps=10)
    outcomes, replies = together(replicas, "race", shares(["same"] * CLIENTS), "requests", run=run.run_id)
    assert outcomes["computed"] == 1
    assert outcomes["stored"] + outcomes["RequestInProgress"] == CLIENTS - 1
    assert len(set(replies)) == 1
    assert ledger.status().steps_used == 1
    assert len(entries(ledger, "step-answered")) == 1


def test_200_clients_race_over_three_replicas_for_the_rest_of_the_budget(ledger, replicas):
    names = [f"client-{number}" for number in range(CLIENTS)]
    for number, name in enumerate(names):
        ledger.add_client(name, f"{number:064x}", ToyBudget(0.5))
    # Epsilon 1 pays for six runs of 0.15.
    outcomes, _ = together(replicas, "open", shares(names), "clients", steps=150)
    assert outcomes == {"charged": 6, "BudgetExhausted": CLIENTS - 6}
    assert ledger.status().data_set.epsilon_spent == pytest.approx(0.9)
    assert len(entries(ledger, "filter-fixed")) == 1 + 6  # the data set's once, and one for each who was charged
    assert ledger.verify().ok


def test_a_step_in_progress_at_one_replica_is_retryable_at_another(ledger, open_run, replicas):
    run = open_run(ledger)
    north, east = replicas["north"], replicas["east"]
    order = {"request": "step", "run": run.run_id}
    assert north.do("begin", **order)["outcome"] == "granted"
    assert east.do("begin", **order)["outcome"] == "RequestInProgress"
    assert east.do("begin", request="other", run=run.run_id) == {"outcome": "granted", "attempt": 1, "step": 2}
    first = north.do("finish", request="step")
    assert east.do("begin", **order) == first  # the same bytes, the same receipt
    assert ledger.status().steps_used == 2


def test_a_step_of_a_replica_that_died_is_resumed_by_another(ledger, open_run, replicas):
    run = open_run(ledger)
    north, east = replicas["north"], replicas["east"]
    order = {"request": "step", "run": run.run_id}
    assert north.do("begin", **order)["outcome"] == "granted"
    north.kill()
    assert patiently(east, **order) == {"outcome": "granted", "attempt": 2, "step": 1}
    assert east.do("finish", request="step")["reply"] == b"east".hex()
    status = ledger.status()
    assert (status.steps_used, status.data_set.runs) == (1, 1)  # nothing was charged twice
    assert len(entries(ledger, "step-answered")) == 1
    assert ledger.verify().ok


def test_a_replica_that_seemed_dead_cannot_store_its_reply(ledger, open_run, replicas):
    """Two replicas compute one step with different noise: exactly one reply exists, that of the last attempt."""
    run = open_run(ledger)
    north, east = replicas["north"], replicas["east"]
    order = {"request": "step", "run": run.run_id}
    assert north.do("begin", **order)["outcome"] == "granted"
    north.do("cut")
    assert patiently(east, **order)["attempt"] == 2
    # North comes first, and late all the same: which reply is released must not depend on who is faster.
    assert north.do("finish", request="step")["outcome"] == "RequestInProgress"
    assert north.do("begin", **order)["outcome"] == "RequestInProgress"
    stored = east.do("finish", request="step")
    assert stored["reply"] == b"east".hex()
    assert north.do("begin", **order) == stored
    assert len(entries(ledger, "step-answered")) == 1
    assert ledger.verify().ok


def test_a_reply_outlives_its_replicas_connection(ledger, open_run, replicas):
    run = open_run(ledger)
    north, east = replicas["north"], replicas["east"]
    order = {"request": "step", "run": run.run_id}
    assert north.do("begin", **order)["outcome"] == "granted"
    north.do("cut")
    stored = north.do("finish", request="step")  # nobody took the step over meanwhile
    assert stored["reply"] == b"north".hex()
    assert east.do("begin", **order) == stored
    assert [payload["attempt"] for payload in entries(ledger, "step-resumed")] == []


def test_an_abandoned_step_is_free_for_every_replica(ledger, open_run, replicas):
    run = open_run(ledger)
    grant = ledger.begin_step(Request(client="alice", request_id="step", digest="d" * 64), run_id=run.run_id)
    order = {"request": "step", "run": run.run_id}
    assert replicas["east"].do("begin", **order)["outcome"] == "RequestInProgress"
    ledger.abandon_step(grant)
    assert replicas["east"].do("begin", **order)["attempt"] == 2


def test_a_step_that_could_not_be_begun_is_not_held(ledger, open_run, replicas):
    run = open_run(ledger)
    ledger.freeze(reason="incident")
    order = {"request": "step", "run": run.run_id}
    assert replicas["north"].do("begin", **order)["outcome"] == "GrantNotHeld"
    ledger.unfreeze(reason="resolved")
    assert replicas["east"].do("begin", **order) == {"outcome": "granted", "attempt": 1, "step": 1}


def test_what_the_operator_decides_counts_at_every_replica_at_once(ledger, open_run, replicas):
    open_run(ledger, steps=100)
    ledger.lower_budget(ToyBudget(0.12), reason="policy")
    outcomes, _ = together(replicas, "open", {name: ["alice"] for name in REPLICAS}, "clients", steps=30)
    assert outcomes == {"BudgetExhausted": 3}


@pytest.mark.long
def test_no_restore_below_a_running_replica_and_none_begins_below_a_restore(ledger, location, key, tmp_path, replicas):
    copy = tmp_path / "copy"
    ledger.backup(copy)
    ledger.close()
    for name in REPLICAS[:-1]:
        replicas[name].kill()
    with pytest.raises(LedgerUnavailable, match="stop every replica"):
        restore(copy, location, key=key, accounting=ToyAccounting())
    replicas[REPLICAS[-1]].kill()
    deadline = time.monotonic() + 30
    while True:  # until the server has noticed
        try:
            with location.alone(), Ledger.open(location, key=key, accounting=ToyAccounting()) as late:
                with pytest.raises(LedgerUnavailable, match="restored"):
                    late.serve()
                break
        except LedgerUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert restore(copy, location, key=key, accounting=ToyAccounting()) is None
