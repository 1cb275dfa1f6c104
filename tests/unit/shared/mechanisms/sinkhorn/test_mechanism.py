"""What a step of DP-Sinkhorn releases: the paper's gradient, clipped as a whole; and what another clip would leak."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance_attack import Bench, Labelled, Scripted
from conformance_cases import CASES, CLASSES, INPUTS
from hospital import NoNoise

from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.shared.accounting import calibration
from dpswd.shared.core.mechanisms.declared import Declared
from dpswd.shared.core.mechanisms.interface import RunSize
from dpswd.shared.core.mechanisms.sliced import labelled
from dpswd.shared.core.noise.clipping import clip_records
from dpswd.shared.published_mechanisms.sinkhorn import mechanism
from dpswd.shared.published_mechanisms.sinkhorn.mechanism import SINKHORN, SinkhornRequest
from dpswd.shared.published_mechanisms.sinkhorn.transport import semi_debiased

(CASE,) = [case for case in CASES if case.name == "sinkhorn"]
BATCH = 8
RNG = np.random.default_rng(11)
SAMPLE = Labelled(RNG.normal(size=(BATCH, INPUTS)).astype(np.float32), np.arange(BATCH) % CLASSES)
SEED = bytes(32)


def _bench(**changed) -> Bench:
    declared = replace(CASE.declaration, **changed)
    request = SinkhornRequest(CASE.request.points[: declared.points + declared.fresh], CASE.request.labels)
    request = replace(request, labels=request.labels[: len(request.points)])
    return Bench(SINKHORN, replace(CASE, declared=("sinkhorn", declared), request=request), records=BATCH)


def _released(bench: Bench, sample: Labelled = SAMPLE) -> np.ndarray:
    return bench.reply(sample, NoNoise(), seed=SEED).gradient.to_numpy()


def _plain(bench: Bench, sample: Labelled = SAMPLE) -> torch.Tensor:
    """The loss's gradient in the first points, written out."""
    declared, request = bench.case.declaration, bench.case.request
    features = (
        torch.from_numpy(sample.records) @ bench.case.module().weight.T.detach() + bench.case.module().bias.detach()
    )
    points = torch.from_numpy(request.points).double().requires_grad_()
    kinds = torch.tensor(request.labels), torch.from_numpy(sample.labels)
    form = {"classes": CLASSES, "weight": declared.label_weight}
    loss = semi_debiased(
        labelled(points, kinds[0], **form),
        labelled(features.double(), kinds[1], **form),
        fresh=declared.fresh,
        l1=declared.l1_weight,
        blur=declared.blur,
        iterations=declared.iterations,
    )
    (gradient,) = torch.autograd.grad(loss, points)
    return gradient[: declared.points]


def test_the_release_is_the_losss_gradient_clipped_to_its_norm():
    loose = _bench(clip_norm=100.0, sigma=1.0)
    plain = _plain(loose).numpy()
    assert np.abs(_released(loose) - plain).max() < 1e-5 + loose.parts(BATCH)[0].grid_step
    norm = float(np.linalg.norm(plain))
    tight = _bench(clip_norm=norm / 3.0, sigma=0.1)
    assert np.allclose(_released(tight), plain / 3.0, atol=1e-4)
    points = _bench(clip_norm=norm / 3.0, sigma=0.1, clip_points=True)
    rows = clip_records(torch.from_numpy(plain), norm / 3.0 / math.sqrt(len(plain))).numpy()
    assert np.allclose(_released(points), rows, atol=1e-4)


def test_labels_of_records_decide_with_which_points_they_are_coupled():
    bench = _bench(clip_norm=100.0, label_weight=30.0)
    other = Labelled(SAMPLE.records, (SAMPLE.labels + 1) % CLASSES)
    assert np.abs(_released(bench) - _released(bench, other)).max() > 0.05


def test_clipping_point_by_point_to_the_whole_norm_would_move_further_than_is_priced(monkeypatch):
    """One record moves the gradients of all points: where each is clipped to C by itself (as `per_row_sanitize` of the
    paper's code does, for the sensitivity 2C) the matrix may move by far more than 2C. The honest one does not."""
    bench = _bench(blur=1e4, points=6, fresh=0)  # a blur that couples everything with everything
    far = np.full(INPUTS, 1e4, np.float32)
    one, other = SAMPLE.replaced(far, 0), SAMPLE.replaced(-far, 0)
    allowed, _ = bench.accounted(one, other, SEED)
    assert bench.squared_shifts(one, other, SEED)[0] <= allowed[0]

    def by_point(gradient, declared, step):
        return mechanism.release_finely(
            clip_records(gradient, declared.clip_norm),
            sigma=declared.sigma,
            exponent=declared.exponent,
            noise=step.noise,
        )

    monkeypatch.setattr(mechanism, "sanitized", by_point)
    assert bench.squared_shifts(one, other, SEED)[0] > 4.0 * allowed[0]


def test_the_noise_has_the_declared_deviation():
    """The deviation of 20 releases of 20 values each; a false alarm has a probability below 1e-6 (5 deviations)."""
    bench = _bench()
    quiet, declared = _released(bench), bench.case.declaration
    from_system = [bench.reply(SAMPLE, SystemNoise(), seed=SEED).gradient.to_numpy() - quiet for _ in range(20)]
    values = np.concatenate([one.ravel() for one in from_system]) / declared.sigma
    assert abs(values.std() - 1.0) < 5.0 / math.sqrt(2.0 * values.size)
    scripted = bench.reply(SAMPLE, Scripted([]), seed=SEED)
    assert np.array_equal(scripted.gradient.to_numpy(), quiet)


def test_a_run_costs_what_a_gaussian_of_sensitivity_2c_costs():
    """Whatever the gradient's dimension: the grid is so fine that it costs nothing."""
    bench = _bench(clip_norm=0.5, sigma=1.1)
    event = Declared(SINKHORN, bench.case.declaration, RunSize(BATCH, 1), bench.facts).event
    assert event.step.shift().constant == pytest.approx((2 * 0.5 / 1.1) ** 2, rel=1e-4)
    dearer = Declared(SINKHORN, replace(bench.case.declaration, clip_norm=0.55), RunSize(BATCH, 1), bench.facts).event
    assert calibration.epsilon(event, 1e-5) < calibration.epsilon(dearer, 1e-5)
