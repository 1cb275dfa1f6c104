"""A critic's step: per-record gradients of the whole vector, clipped, summed; charged as one Gaussian a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from declarations import critic
from torch import nn
from torch.nn import functional

from dpswd.shared.accounting import calibration
from dpswd.shared.accounting.crosscheck import check_with_autodp
from dpswd.shared.core.errors import BudgetExhausted, RequestInvalid
from dpswd.shared.core.privacy.events import RunEvent, SanitizedGradient, StepEvent
from dpswd.shared.core.wire.messages import StepRelease
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.critic.mechanism import CriticDeclaration
from dpswd.shared.published_mechanisms.loss_gradient import LossGradientRequest

N, INPUTS = 40, 5
RECORDS = np.random.default_rng(4).normal(size=(N, INPUTS)).astype(np.float32)
NAMES = ("2.weight", "0.bias", "2.bias")
SIZE = 7 + 7 + 1


@pytest.fixture
def model():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(INPUTS, 7), nn.Tanh(), nn.Linear(7, 1))


def _declare(hospital, model, summed=None, *, batch_size=N, steps=2):
    declared = critic(summed or ClippedSum(NAMES, clip_norm=0.6, sigma=1.5))
    return hospital.declare(model, declared, batch_size=batch_size, steps=steps)


def _gradient(hospital, parameters, stored):
    return hospital.reply(parameters, stored).gradient.to_tensor().numpy()


def test_without_noise_the_sum_is_that_of_clipped_autograd_gradients(make_hospital, model, no_noise):
    hospital = make_hospital(RECORDS, noise=no_noise)
    parameters = _declare(hospital, model)
    adapted = np.random.default_rng(8).normal(size=SIZE).astype(np.float32)
    adapted[-1] = 5.0  # the logit's bias: the critic is sure of some records, whose gradients are short
    stored = hospital.step(hospital.open_run(parameters), parameters, LossGradientRequest(adapted))
    released = _gradient(hospital, parameters, stored)
    tensors = dict(model.named_parameters())
    start, total, clipped = 0, torch.zeros(SIZE), 0
    with torch.no_grad():
        for name in NAMES:
            size = tensors[name].numel()
            tensors[name].copy_(torch.from_numpy(adapted[start : start + size]).reshape(tensors[name].shape))
            start += size
    for record in torch.from_numpy(RECORDS):
        loss = functional.softplus(-model(record)).squeeze()
        flat = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, [tensors[name] for name in NAMES])])
        clipped += int(flat.norm() > 0.6)
        total += flat * (0.6 / flat.norm()).clamp(max=1.0)
    assert 3 < clipped < N - 3  # both sides of the clip
    np.testing.assert_allclose(released, total.numpy(), atol=N * 0.5 * 1.5 / 2048 + 1e-5)
    assert StepRelease.from_bytes(stored.reply).step == 1


def test_the_charge_is_one_subsampled_gaussian_a_step(make_hospital, model):
    def event(sigma):
        part = SanitizedGradient(parameters=SIZE, clip_norm=0.6, sigma=sigma, grid_step=sigma / 2**20)
        return RunEvent(StepEvent(records=N, batch=10, parts=(part,)), steps=30)

    sigma = calibration.calibrate_sigma(event, epsilon=2.0, delta=1e-5)
    hospital = make_hospital(RECORDS, epsilon=2.0)
    summed = ClippedSum(NAMES, clip_norm=0.6, sigma=sigma)
    run = hospital.open_run(_declare(hospital, model, summed, batch_size=10, steps=30))
    assert run.event == event(sigma)
    law = run.event.step.shift()
    assert law.is_constant
    assert law.largest == pytest.approx((1.2 / sigma + SIZE**0.5 / 2**20) ** 2, rel=1e-12)
    check_with_autodp(run.event)
    account, _ = hospital.ledger.budget_of("ml-team")
    assert account.epsilon_spent == pytest.approx(2.0, rel=1e-4)  # all of it, and not a step more
    with pytest.raises(BudgetExhausted):
        hospital.open_run(_declare(hospital, model, summed, batch_size=1, steps=1))


def test_the_noise_is_that_of_the_declaration(make_hospital, model):
    """Two thousand noised coordinates against the declared deviation; fails by chance in 1e-6 of runs at most."""
    wide = nn.Sequential(nn.Linear(INPUTS, 400), nn.Tanh(), nn.Linear(400, 1))
    hospital = make_hospital(RECORDS)
    parameters = _declare(hospital, wide, ClippedSum(("0.weight",), clip_norm=1e-6, sigma=3.0))
    released = _gradient(hospital, parameters, hospital.step(hospital.open_run(parameters), parameters))
    assert released.shape == (2000,)
    assert released.std() == pytest.approx(3.0, rel=5 / np.sqrt(2 * 2000))


def test_a_graph_with_two_outputs_is_no_critic(make_hospital):
    hospital = make_hospital(RECORDS)
    with pytest.raises(RequestInvalid, match="computes 2 values for each record; a critic one logit"):
        hospital.open_run(_declare(hospital, nn.Linear(INPUTS, 2), ClippedSum(("weight",), clip_norm=1.0, sigma=1.0)))


def test_unknown_parameters_and_values_that_do_not_fit_are_refused(make_hospital, model):
    hospital = make_hospital(RECORDS)
    with pytest.raises(RequestInvalid, match="no parameters of the extractor"):
        hospital.open_run(_declare(hospital, model, ClippedSum(("x",), clip_norm=1.0, sigma=1.0)))
    parameters = _declare(hospital, model)
    run = hospital.open_run(parameters)
    with pytest.raises(RequestInvalid, match="holds 14 values; the run declares 15"):
        hospital.step(run, parameters, LossGradientRequest(np.zeros(SIZE - 1, np.float32)))
    with pytest.raises(RequestInvalid, match="NaN"):
        hospital.step(run, parameters, LossGradientRequest(np.full(SIZE, np.nan, np.float32)))


def test_a_critic_without_a_gradient_is_refused_by_name(make_hospital, model):
    hospital = make_hospital(RECORDS)
    parameters = replace(_declare(hospital, model), declaration=b"")
    with pytest.raises(RequestInvalid) as refused:
        hospital.open_run(parameters)
    fields = {field for field, _ in refused.value.violations}
    assert {"declaration.sum.clip_norm", "declaration.sum.sigma", "declaration.sum.parameters"} <= fields


def test_a_declaration_survives_the_wire():
    declared = CriticDeclaration(ClippedSum(NAMES, clip_norm=0.6, sigma=1.5))
    assert CriticDeclaration.from_bytes(declared.to_bytes()) == declared
