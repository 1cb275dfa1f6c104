"""A mechanism that no file of the product knows, used by the client's plan over real processes.

Offered, priced, planned with and trained with; its curator is killed in the middle of a step and the training resumed;
its receipts hold; what is wrong or no longer fits is refused. `test_own_method.py` tries
the method itself on the mock.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from curator_process import CLIENT, CuratorProcess
from own_mechanism import CLIPPED_MEAN, MeanDeclaration, MeanReply, MeanRequest
from own_method import BATCH, STEPS, TAG, MatchMeans
from raw_client import RawClient, released
from torch import nn

from dpswd import DomainAdaptation, Hospital
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.shared.core.errors import BudgetExhausted, CuratorUnavailable, RequestIdReused, RequestInvalid, RunFinished
from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.core.wire.messages import run_digest, step_digest
from dpswd.shared.protocol.receipts import decode_receipt, receipt_problems
from dpswd.shared.published_mechanisms import ALL_MECHANISMS

PROGRAM = Path(__file__).with_name("serve_own_mechanism.py")
RECORDS = (1.0 + 0.1 * np.random.default_rng(9).normal(size=(400, 6))).astype(np.float32)
FEATURES, CLASSES, EPSILON, DELTA = 3, 2, 4.0, 1e-5
METHOD = MatchMeans(clip_norm=4.0, source_records=64, learning_rate=0.1)


@pytest.fixture
def hospital(tmp_path) -> Iterator[CuratorProcess]:
    made = CuratorProcess(tmp_path, RECORDS, epsilon=EPSILON, delta=DELTA, program=PROGRAM)
    try:
        yield made
    finally:
        made.stop()


def _extractor() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(6, FEATURES)


def _source() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(0.1 * torch.randn(32, 6, generator=generator), torch.arange(32) % CLASSES) for _ in range(3)]


def _connect(hospital: CuratorProcess, receipts: Path) -> Hospital:
    return Hospital.connect(
        hospital.address, credentials=hospital.credentials(CLIENT), patience_s=1.0, run_directory=receipts
    )


def _model(connected: Hospital) -> DomainAdaptation:
    plan = connected.plan(METHOD, epsilon=0.9 * EPSILON)
    extractor, classifier = nn.Sequential(_extractor()), nn.Linear(FEATURES, CLASSES)
    return DomainAdaptation(extractor, classifier, hospital=connected, plan=plan, source_epochs=0, device="cpu")


def test_a_mechanism_of_a_tests_own_from_offer_to_exhausted_budget(hospital, tmp_path):
    assert CLIPPED_MEAN.name not in ALL_MECHANISMS
    checkpoint = tmp_path / "run"

    # Offered, planned with, and killed when its first step has seen the records.
    hospital.start(stop_at=("averaged", "kill"))
    with _connect(hospital, checkpoint) as connected:
        description = connected.describe()
        assert CLIPPED_MEAN.name in description.mechanisms
        assert {m.name for m in ALL_MECHANISMS.values() if not m.needs_labels} < set(description.mechanisms)
        model = _model(connected)
        assert f"match-means: {STEPS} steps, each on {BATCH} of {len(RECORDS)} records" in str(model.plan)
        assert connected.describe().spent == 0.0
        with pytest.raises(CuratorUnavailable):
            model.fit(_source(), checkpoint=checkpoint, progress=False)
    assert hospital.ended() == -9
    pending = Checkpoint(checkpoint).read_pending()
    assert pending is not None

    # Another process of each goes on: the same request is answered, and the run is not charged again.
    hospital.start()
    with _connect(hospital, checkpoint) as connected:
        resumed = _model(connected).fit(_source(), checkpoint=checkpoint, progress=False)
        spent = connected.describe().spent
        assert spent == pytest.approx(0.9 * EPSILON, rel=1e-2)
        run = resumed.sites["curator"].run
        assert [drawn.number for drawn in run.drawn] == list(range(1, STEPS + 1))
        assert run.drawn[0].request_id == pending.request_id
        assert "releases  a noised sum of clipped features" in str(resumed.plan)
        for drawn in run.drawn:
            assert drawn.reply.tag == TAG
            _check_mean(drawn.reply, run.declared)

        # What is left does not pay for another such run.
        with pytest.raises(BudgetExhausted) as exhausted:
            _model(connected).fit(_source(), progress=False)
        assert 0 <= exhausted.value.steps_that_fit < STEPS
        assert connected.describe().spent == spent

    _check_receipts(hospital, checkpoint)
    with RawClient(hospital.address, credentials=hospital.credentials(CLIENT)) as client:
        _check_on_the_wire(client, run, Checkpoint(checkpoint).read_run()["request_id"])
        assert client.describe().data_set_budget.epsilon_spent == spent
    assert hospital.json("runs")[0]["steps_used"] == STEPS
    assert hospital.stop() == 0
    assert hospital.json("ledger", "verify")["ok"]
    assert not hospital.home.incidents.exists()


def _check_mean(mean: MeanReply, declared: MeanDeclaration) -> None:
    """The sum of 50 of the 400 records' clipped features; noise and sampling exceed 6 deviations with p < 3e-8."""
    with torch.no_grad():
        clipped = clip_records(_extractor()(torch.from_numpy(RECORDS)), declared.clip_norm).double()
    deviation = (declared.sigma**2 + BATCH * clipped.var(dim=0)).sqrt()
    assert bool(((mean.total.to_tensor().double() - BATCH * clipped.mean(dim=0)).abs() < 6 * deviation).all())


def _check_receipts(hospital: CuratorProcess, checkpoint: Path) -> None:
    """The team holds its receipts against the operator's ledger, by the command for it."""
    view = hospital.directory / "view.jsonl"
    hospital.command("ledger", "export", "--client", CLIENT, "--out", view)
    command = [sys.executable, "-m", "dpswd.public_client.cli.main", "check", checkpoint, "--ledger", view]
    command += ["--credentials", hospital.credentials(CLIENT), "--format", "json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["ok"], report["runs"], report["steps"]) == (True, 1, STEPS)


def _check_on_the_wire(client: RawClient, run, opening: str) -> None:
    """What anyone who speaks the protocol is told about this run, and refused."""
    key, parameters, run_id = client.describe().ledger_public_key, run.run.parameters, run.run.run_id

    # Repeats have the same bytes and the same receipts.
    opened = client.open_run(parameters, request_id=opening)
    assert opened.run_id == run_id
    receipt = decode_receipt(opened.receipt, run_id=run_id, request_id=opening)
    assert receipt_problems(
        receipt, public_key=key, run_id=run_id, request_id=opening, reply=None, step=0,
        request_digest=run_digest(parameters),
    ) == []  # fmt: skip
    step = client.prepare_step(run_id, MeanRequest(TAG))
    for drawn in run.drawn:
        step.request_id = drawn.request_id
        reply = client.send(step)
        assert client.send(step).SerializeToString() == reply.SerializeToString()
        assert released(reply).payload == drawn.reply.to_bytes()
        receipt = decode_receipt(reply.receipt, run_id=run_id, request_id=drawn.request_id)
        assert receipt_problems(
            receipt,
            public_key=key,
            run_id=run_id,
            request_id=drawn.request_id,
            reply=reply.step_release,
            step=drawn.number,
            request_digest=step_digest(run_id=run_id, payload=step.payload),
        ) == []  # fmt: skip
    assert len({drawn.reply.to_bytes() for drawn in run.drawn}) == STEPS

    other = client.prepare_step(run_id, MeanRequest(TAG + 1))
    other.request_id = run.drawn[0].request_id
    with pytest.raises(RequestIdReused):
        client.send(other)
    with pytest.raises(RunFinished):
        client.step(run_id, MeanRequest(TAG))
    with pytest.raises(RequestInvalid, match="a mean's step brings 1"):
        client.step(run_id, b"")

    # Hostile declarations cost nothing and name the field.
    fields = {"declaration.clip_norm", "declaration.sigma", "parameters.declaration"}
    hostile = [MeanDeclaration(1.0, number) for number in (math.nan, math.inf, -1.0, 0.0, 5e-324, 1e-300, 1e300)]
    hostile += [MeanDeclaration(number, 1.0) for number in (math.nan, math.inf, -1.0, 0.0, 1e300)]
    for declared in hostile:
        with pytest.raises(RequestInvalid) as refused:
            client.open_run(replace(parameters, declaration=declared.to_bytes()))
        assert {field for field, _ in refused.value.violations} <= fields
    for broken in (b"", b"abc", bytes(17)):
        with pytest.raises(RequestInvalid, match="a mean's two numbers take 16"):
            client.open_run(replace(parameters, declaration=broken))
