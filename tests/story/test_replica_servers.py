"""Two curator processes on one ledger in PostgreSQL, as docs/operator/replicas.md has them: one budget, any answers."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from curator_process import CLIENT, CuratorProcess, Replica, upload
from declarations import Declared, gradient, quantiles
from drawn_steps import new_step, parameters

from dpswd.public_client.curator.stub import Curator
from dpswd.shared.core import errors
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum

INPUTS, FEATURES, N, STEPS = 12, 6, 400, 6
RNG = np.random.default_rng(12)
RECORDS = RNG.normal(size=(N, INPUTS)).astype(np.float32)
SOURCE = RNG.normal(size=(50, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def hospital(postgres, tmp_path_factory):
    """Two replicas; the second was copied from the first. The first dies in its first step."""
    tmp_path = tmp_path_factory.mktemp("hospital")
    secret = tmp_path / "password"
    secret.write_text(postgres.password)
    url = postgres.url(tcp=True, sslmode="verify-full", sslrootcert=postgres.root_certificate)
    ledger = ["--ledger-url", url, "--ledger-schema", "hospital", "--ledger-password-file", secret]
    (tmp_path / "first").mkdir()
    first = CuratorProcess(tmp_path / "first", RECORDS, epsilon=2.0, init=ledger, isolation="in-process")
    first.home.uploads.mkdir(exist_ok=True)
    second = Replica(first, tmp_path / "second")
    first.start(stop_at=("sampled", "kill"))  # records were read, nothing was released
    second.start()
    yield first, second
    first.stop()
    second.stop()


def connect(*replicas: CuratorProcess, patience_s: float = 60.0) -> Curator:
    """One client that knows every replica's address and takes the first that answers."""
    addresses = ",".join(f"127.0.0.1:{replica.address.rpartition(':')[2]}" for replica in replicas)
    return Curator.connect(
        f"ipv4:{addresses}",
        credentials=replicas[0].credentials(CLIENT),
        patience_s=patience_s,
        server_name="localhost",
    )


GRADIENT = gradient(quantiles(2, 4.0, directions=30), ClippedSum(("weight",), 1.0, 100.0))


def declare(curator: Curator, declared: Declared = GRADIENT, *, steps: int = STEPS) -> RunParameters:
    torch.manual_seed(5)
    return parameters(upload(curator, nn.Linear(INPUTS, FEATURES)), declared, batch_size=64, steps=steps)


def test_a_client_goes_on_at_the_second_replica_when_the_first_dies_in_mid_run(hospital):
    first, second = hospital
    with connect(first, second) as curator, connect(second) as elsewhere:
        run = curator.open_run(declare(curator))
        spent = curator.describe().data_set_budget.spent
        pendings = [new_step(run, SOURCE) for _ in range(STEPS)]
        replies = [curator.send(pendings[0])]
        # The step was begun by the first replica, which is dead now, and answered by the second.
        assert first.ended() == -signal.SIGKILL
        assert replies[0].step == 1
        first.start(stop_at=("extracted", "1.5"))
        replies += [curator.send(pending) for pending in pendings[1:]]
        assert [reply.step for reply in replies] == list(range(1, STEPS + 1))
        # Whoever is asked has the same bytes.
        for pending, reply in zip(pendings, replies, strict=True):
            assert elsewhere.send(pending).payload == reply.payload
        with connect(first) as back, pytest.raises(errors.RunFinished):
            back.send(new_step(run, SOURCE))
        assert elsewhere.describe().data_set_budget.spent == spent
    with second.home.open_ledger() as ledger:
        assert (ledger.status().steps_charged, ledger.status().steps_used) == (STEPS, STEPS)
        kinds = [entry.kind for entry in ledger.history()]
    assert (kinds.count("step-answered"), kinds.count("step-resumed")) == (STEPS, 1)
    assert second.json("ledger", "verify")["ok"] is True


def test_a_step_in_progress_at_one_replica_is_waited_for_at_the_other(hospital):
    first, second = hospital
    with connect(first) as here, connect(second) as there:
        run = here.open_run(declare(here, steps=1))
        pending = new_step(run, SOURCE)
        answers = []
        slow = threading.Thread(target=lambda: answers.append(here.send(pending)))
        slow.start()
        reached = first.home.path / "reached-extracted"
        while not reached.exists():
            slow.join(timeout=0.02)
        answers.append(there.send(pending))  # REQUEST_IN_PROGRESS until the first replica has stored its reply
        slow.join(timeout=60)
    assert answers[0].payload == answers[1].payload
    with second.home.open_ledger() as ledger:
        assert ledger.run(client=CLIENT, run_id=run.run_id).steps_used == 1


def test_two_replicas_never_overspend_one_budget(hospital):
    first, second = hospital
    with connect(first) as here, connect(second) as there:
        plan = declare(here, quantiles(2, 5.0, directions=30), steps=10_000_000)
        here.open_run(dataclasses.replace(plan, steps=1))
        # The ledger's lanes are fixed now, so what still fits is exact.
        fitting = here.price_run(plan).steps_that_fit
        part = dataclasses.replace(plan, steps=fitting // 3)
        outcomes = []

        def spend(curator):
            for _ in range(4):
                try:
                    curator.open_run(part)
                    outcomes.append("charged")
                except errors.BudgetExhausted:
                    outcomes.append("refused")

        threads = [threading.Thread(target=spend, args=(curator,)) for curator in (here, there)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        budget = there.describe().data_set_budget
    assert sorted(outcomes) == ["charged"] * 3 + ["refused"] * 5
    assert budget.spent <= budget.epsilon
    with first.home.open_ledger() as ledger:
        report = ledger.verify()
    assert report.ok
    assert report.epsilon_spent <= 2.0
