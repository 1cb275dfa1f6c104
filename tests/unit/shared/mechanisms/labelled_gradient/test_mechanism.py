"""Labelled gradients against Opacus on the same model: per-record gradients, clip, noise, and the price of a run."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from declarations import labelled_gradient
from hospital import Hospital, NoNoise
from torch import nn
from torch.nn import functional

from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.accounting import calibration
from dpswd.shared.accounting.crosscheck import check_with_autodp
from dpswd.shared.core.errors import BudgetExhausted, RequestInvalid
from dpswd.shared.core.privacy.events import RunEvent, SanitizedGradient, StepEvent
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LossGradientRequest, entropy_cotangents
from dpswd.shared.sandbox.building import Extractor

N, CLASSES = 48, 4
SHAPE = (1, 6, 6)
RNG = np.random.default_rng(4)
RECORDS, LABELS = RNG.normal(size=(N, *SHAPE)).astype(np.float32), RNG.integers(CLASSES, size=N)
CLIP = 2.5


@pytest.fixture
def model():
    torch.manual_seed(2)
    layers = (nn.Conv2d(1, 3, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES))
    return nn.Sequential(*layers)


def names_of(model):
    return tuple(name for name, _ in model.named_parameters())


@pytest.fixture
def opacus_step(model):
    """Opacus's clipped sum of a full batch of the same losses, without its noise; and each record's gradient."""
    from opacus import GradSampleModule  # more than a second, of every process that collects this file
    from opacus.optimizers import DPOptimizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hooks of PyTorch that Opacus uses and PyTorch means to replace
        wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
        private = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=CLIP,
            expected_batch_size=N, loss_reduction="sum",
        )  # fmt: skip
        loss = functional.cross_entropy(wrapped(torch.from_numpy(RECORDS)), torch.from_numpy(LABELS), reduction="sum")
        loss.backward()
    each = torch.cat([p.grad_sample.reshape(N, -1) for p in wrapped.parameters()], dim=1)
    private.clip_and_accumulate()
    return each, torch.cat([p.summed_grad.reshape(-1) for p in wrapped.parameters()])


def test_per_record_gradients_are_those_of_opacus(model, opacus_step):
    graph = trace(model.eval(), SHAPE)
    extractor = Extractor(graph, module_weights(model, graph), device=torch.device("cpu"))
    forward = extractor.begin(torch.from_numpy(RECORDS), names_of(model))
    own = forward.gradients(entropy_cotangents(forward.outputs, torch.from_numpy(LABELS)))
    torch.testing.assert_close(own, opacus_step[0], rtol=1e-5, atol=1e-6)


def test_the_released_sum_is_opacus_clipped_sum_and_the_declared_noise(make_labelled, model, opacus_step):
    each, summed = opacus_step
    assert 5 < int((each.norm(dim=1) > CLIP).sum()) < N - 5  # both sides of the clip
    hospital = make_labelled(NoNoise())
    declared = ClippedSum(names_of(model), clip_norm=CLIP, sigma=3.0)
    parameters = hospital.declare(model, labelled_gradient(declared, classes=CLASSES), batch_size=N)
    run = hospital.open_run(parameters)
    released = hospital.reply(parameters, hospital.step(run, parameters)).gradient.to_tensor()
    # A secret order of all records: the sum is the same. Opacus divides by the norm plus 1e-6.
    torch.testing.assert_close(released, summed, rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    flat = np.zeros(sum(p.numel() for p in model.parameters()), np.float32)
    moved = hospital.reply(parameters, hospital.step(run, parameters, LossGradientRequest(flat))).gradient.to_tensor()
    bias = 0.25 * N - np.bincount(LABELS, minlength=CLASSES)  # of a model that knows nothing: softmax less the label
    np.testing.assert_allclose(moved[-CLASSES:].numpy(), bias, atol=1e-3)


def event(records, batch, steps, multiplier):
    part = SanitizedGradient(1000, 1.0, 2.0 * multiplier, 2.0 * multiplier / 2**20)
    return RunEvent(StepEvent(records, batch, (part,)), steps)


@pytest.mark.parametrize(
    ("records", "batch", "steps", "multiplier"),
    [
        (1000, 1000, 1, 4.0),
        (1000, 1000, 20, 12.0),
        (60_000, 4096, 100, 2.0),
        (10_000, 256, 400, 0.8),
    ],
)
def test_the_price_is_opacus_at_equal_noise_for_the_sensitivity_and_never_lower(records, batch, steps, multiplier):
    """Opacus adds or removes a record of a Poisson sample, we replace one of a sample of fixed size.

    At equal noise in units of what one record moves (ours moves the sum by 2C, theirs by C) both have the same curve of
    one direction; ours holds for both at once, so it may be dearer, and is compared with both of theirs.
    """
    from opacus.accountants import PRVAccountant, RDPAccountant

    delta = 1e-5
    own = calibration.epsilon(event(records, batch, steps, multiplier), delta)
    prices = {}
    for kind in (PRVAccountant, RDPAccountant):
        accountant = kind()
        accountant.history = [(multiplier, batch / records, steps)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the default orders are not the best for all of these
            prices[kind] = float(accountant.get_epsilon(delta))
    slack = 0.01  # Opacus's own eps_error
    assert own >= prices[PRVAccountant] - slack
    assert own <= 1.05 * prices[RDPAccountant]
    assert own <= 1.2 * prices[PRVAccountant]
    if batch == records:  # no sampling: both are the Gaussian mechanism's exact profile
        assert own == pytest.approx(prices[PRVAccountant], rel=0.02)


def test_the_noise_is_calibrated_to_the_charge_and_checked_by_a_third_accountant(make_labelled, model):
    declared = ClippedSum(names_of(model), clip_norm=CLIP, sigma=2.0 * CLIP * 6.0)
    hospital = make_labelled(None)
    parameters = hospital.declare(model, labelled_gradient(declared, classes=CLASSES), batch_size=16, steps=5)
    charged = hospital.open_run(parameters).event
    assert charged.step.shift().largest == pytest.approx(1 / 36, rel=1e-3)
    check_with_autodp(charged)


def test_no_labels_other_classes_or_other_scores_are_refused(make_labelled, model, tmp_path):
    declared = labelled_gradient(ClippedSum(("4.bias",), 1.0, 5.0), classes=CLASSES)
    (tmp_path / "unlabelled").mkdir()
    unlabelled = Hospital(tmp_path / "unlabelled", RECORDS)
    try:
        with pytest.raises(RequestInvalid, match="'labelled_gradient' is not offered"):
            unlabelled.open_run(unlabelled.declare(model, declared, batch_size=N))
    finally:
        unlabelled.close()
    hospital = make_labelled(None)
    with pytest.raises(RequestInvalid, match="labels have 4"):
        other = labelled_gradient(ClippedSum(("4.bias",), 1.0, 5.0), classes=5)
        hospital.open_run(hospital.declare(model, other, batch_size=N))
    with pytest.raises(RequestInvalid, match="computes 12 scores"):
        names = labelled_gradient(ClippedSum(("0.bias",), 1.0, 5.0), classes=CLASSES)
        hospital.open_run(hospital.declare(model[:4], names, batch_size=N))


def test_a_charge_may_use_all_of_the_budget_and_not_a_step_more(make_labelled, model):
    names, size = names_of(model), sum(parameter.numel() for parameter in model.parameters())

    def event(sigma):
        part = SanitizedGradient(parameters=size, clip_norm=CLIP, sigma=sigma, grid_step=sigma / 2**20)
        return RunEvent(StepEvent(records=N, batch=10, parts=(part,)), steps=30)

    hospital = make_labelled(None, epsilon=2.0)
    account, _ = hospital.ledger.budget_of("ml-team")
    sigma = calibration.calibrate_sigma(event, epsilon=account.epsilon, delta=account.delta)
    declared = labelled_gradient(ClippedSum(names, clip_norm=CLIP, sigma=sigma), classes=CLASSES)
    assert hospital.open_run(hospital.declare(model, declared, batch_size=10, steps=30)).event.step.shift().is_constant
    account, _ = hospital.ledger.budget_of("ml-team")
    assert account.epsilon_spent == pytest.approx(account.epsilon, rel=1e-4)
    with pytest.raises(BudgetExhausted):
        hospital.open_run(hospital.declare(model, declared, batch_size=1, steps=1))


def test_the_noise_is_that_of_the_declaration(make_labelled):
    """Two thousand noised coordinates against the declared deviation; fails by chance in 1e-6 of runs at most."""
    wide = nn.Sequential(nn.Flatten(), nn.Linear(36, 60, bias=False), nn.Tanh(), nn.Linear(60, CLASSES))
    hospital = make_labelled(None)
    declared = labelled_gradient(ClippedSum(("1.weight",), clip_norm=1e-6, sigma=3.0), classes=CLASSES)
    parameters = hospital.declare(wide, declared, batch_size=N)
    released = hospital.reply(parameters, hospital.step(hospital.open_run(parameters), parameters)).gradient.to_tensor()
    assert released.shape == (2160,)
    assert float(released.std()) == pytest.approx(3.0, rel=5 / np.sqrt(2 * 2160))


def test_what_names_nothing_is_refused_by_name(make_labelled, model):
    hospital = make_labelled(None)
    with pytest.raises(RequestInvalid, match="no parameters of the extractor"):
        unknown = labelled_gradient(ClippedSum(("x",), clip_norm=1.0, sigma=5.0), classes=CLASSES)
        hospital.open_run(hospital.declare(model, unknown, batch_size=N))
    whole = hospital.declare(model, labelled_gradient(ClippedSum(("4.bias",), 1.0, 5.0), classes=CLASSES), batch_size=N)
    with pytest.raises(RequestInvalid) as refused:
        hospital.open_run(replace(whole, declaration=b""))
    fields = {field for field, _ in refused.value.violations}
    assert {"declaration.sum.clip_norm", "declaration.sum.sigma", "declaration.sum.parameters"} <= fields


@pytest.fixture
def make_labelled(tmp_path):
    made = []

    def make(noise, **budget):
        labels = LABELS.astype(np.int64)
        made.append(Hospital(tmp_path, RECORDS, noise=noise, labels=labels, classes=CLASSES, **budget))
        return made[-1]

    yield make
    for hospital in made:
        hospital.close()
