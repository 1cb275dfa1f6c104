"""A mechanism that no file of the product knows, from its offer to its exhausted budget, over real processes."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from curator_process import CLIENT, CuratorProcess
from own_mechanism import CLIPPED_MEAN, MeanDeclaration, MeanReply, MeanRequest
from raw_client import RawClient, released
from torch import nn

from shared.errors import BudgetExhausted, CuratorUnavailable, RequestIdReused, RequestInvalid, RunFinished
from shared.kernels.clipping import clip_records
from shared.mechanisms import MECHANISMS
from shared.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from shared.privacy import calibration
from shared.protocol.messages import RunParameters, run_digest, step_digest
from shared.protocol.receipts import decode_receipt
from shared.steps.admission import run_event

pytestmark = pytest.mark.end_to_end
PROGRAM = Path(__file__).with_name("own_mechanism.py")
RECORDS = np.random.default_rng(9).normal(size=(400, 6)).astype(np.float32)
BATCH, STEPS, FEATURES, DELTA = 50, 4, 3, 1e-5


def _module() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(6, FEATURES)


def _facts() -> Facts:
    shapes = {"weight": (FEATURES, 6), "bias": (FEATURES,)}
    return Facts(DataSetFacts(len(RECORDS), (6,)), ModelFacts((6,), FEATURES, shapes))


def _event(sigma: float):
    return run_event(CLIPPED_MEAN, MeanDeclaration(sigma), RunSize(BATCH, STEPS), _facts())


@pytest.fixture
def hospital(tmp_path) -> Iterator[CuratorProcess]:
    made = CuratorProcess(tmp_path, RECORDS, epsilon=1.2, delta=DELTA, program=PROGRAM)
    try:
        yield made
    finally:
        made.stop()


def _client(hospital: CuratorProcess) -> RawClient:
    return RawClient(hospital.address, credentials=hospital.credentials(CLIENT))


def _declared(client: RawClient, declaration: bytes) -> RunParameters:
    return RunParameters(
        **client.upload(_module()),
        mechanism=CLIPPED_MEAN.name,
        declaration=declaration,
        batch_size=BATCH,
        steps=STEPS,
    )


def test_a_mechanism_of_a_tests_own_from_offer_to_exhausted_budget(hospital):
    assert CLIPPED_MEAN.name not in MECHANISMS
    hospital.start(stop_at=("averaged", "kill"))  # the first step dies when it has seen the records
    sigma = calibration.calibrate_sigma(_event, epsilon=1.2, delta=DELTA)
    opening = str(uuid.uuid4())
    with _client(hospital) as client:
        told = client.describe()
        assert CLIPPED_MEAN.name in told.mechanisms
        assert set(MECHANISMS) - {"evaluation"} < set(told.mechanisms)
        parameters = _declared(client, MeanDeclaration(sigma).to_bytes())

        # Priced, and opened with a receipt.
        quote = client.open_run(parameters, validate_only=True)
        assert quote.fits
        assert quote.epsilon == pytest.approx(1.2, rel=1e-3)
        assert client.describe().data_set_budget.epsilon_spent == 0.0
        opened = client.open_run(parameters, request_id=opening)
        run = opened.run_id
        receipt = decode_receipt(opened.receipt, run_id=run, request_id=opening)
        assert receipt.problems(
            public_key=told.ledger_public_key,
            run_id=run,
            request_id=opening,
            reply=None,
            step=0,
            request_digest=run_digest(parameters),
        ) == []  # fmt: skip

        # Killed in the middle of its first step.
        pending = client.prepare_step(run, MeanRequest(7))
        with pytest.raises(CuratorUnavailable):
            client.send(pending)
    assert hospital.ended() == -9

    # Another process goes on: the same request is answered, once, and its repeat has the same bytes.
    hospital.start()
    with _client(hospital) as client:
        assert client.open_run(parameters, request_id=opening).run_id == run
        reply = client.send(pending)
        assert client.send(pending).SerializeToString() == reply.SerializeToString()
        receipt = decode_receipt(reply.receipt, run_id=run, request_id=pending.request_id)
        assert receipt.problems(
            public_key=told.ledger_public_key,
            run_id=run,
            request_id=pending.request_id,
            reply=reply.step_release,
            step=1,
            request_digest=step_digest(run_id=run, payload=pending.payload),
        ) == []  # fmt: skip
        assert released(reply).step == 1
        mean = MeanReply.from_bytes(released(reply).payload)
        assert mean.tag == 7
        _check_mean(mean, sigma)
        other = client.prepare_step(run, MeanRequest(8))
        other.request_id = pending.request_id
        with pytest.raises(RequestIdReused):
            client.send(other)
        rest = [client.step(run, MeanRequest(tag)) for tag in range(STEPS - 1)]
        assert [one.step for one in rest] == [2, 3, 4]
        assert len({one.payload[1:] for one in rest}) == STEPS - 1
        with pytest.raises(RunFinished):
            client.step(run, MeanRequest())

        # What is left does not pay for another such run, and hostile declarations cost nothing.
        spent = client.describe().data_set_budget.epsilon_spent
        assert spent == pytest.approx(1.2, rel=1e-3)
        with pytest.raises(BudgetExhausted) as exhausted:
            client.open_run(parameters)
        assert 0 <= exhausted.value.steps_that_fit < STEPS
        for number in (math.nan, math.inf, -1.0, 0.0, 5e-324, 1e-300, 1e300):
            with pytest.raises(RequestInvalid) as refused:
                client.open_run(replace(parameters, declaration=MeanDeclaration(number).to_bytes()))
            assert {field for field, _ in refused.value.violations} <= {"declaration.sigma", "parameters.declaration"}
        for broken in (b"", b"abc", bytes(9)):
            with pytest.raises(RequestInvalid, match="a mean's sigma takes 8"):
                client.open_run(replace(parameters, declaration=broken))
        with pytest.raises(RequestInvalid, match="a mean's step brings 1"):
            client.step(run, b"")
        assert client.describe().data_set_budget.epsilon_spent == spent
    assert hospital.stop() == 0
    assert hospital.json("ledger", "verify")["ok"]
    assert not hospital.home.incidents.exists()


def _check_mean(mean: MeanReply, sigma: float) -> None:
    """The sum of 50 of the 400 records' clipped features; noise and sampling exceed 6 deviations with p < 1e-8."""
    with torch.no_grad():
        clipped = clip_records(_module()(torch.from_numpy(RECORDS))).double()
    deviation = (sigma**2 + BATCH * clipped.var(dim=0)).sqrt()
    assert bool(((mean.total.to_tensor().double() - BATCH * clipped.mean(dim=0)).abs() < 6 * deviation).all())


# ---- the public client: to be tried here in the place of RawClient, by `Hospital.plan` with this mechanism ---
