"""The published methods on a mock curator with real records: what is charged, learned, repeated, refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dpswd import MockCurator, mock_description
from dpswd.public_client.cli.main import main
from dpswd.public_client.generation import generation_kinds
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.generation.generator import load_generator
from dpswd.public_client.plans.plan import make_plan
from dpswd.public_client.published_methods.generators import (
    DpSinkhorn,
    DpSwd,
    DpSwdQuantiles,
)
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.events import ClippedVector, RowProjections
from dpswd.shared.published_mechanisms.sinkhorn.mechanism import SinkhornDeclaration

D, CLASSES, RECORDS = 4, 2, 2000
MEANS = np.array([[-0.6, -0.6, 0.5, 0.0], [0.6, 0.2, -0.5, 0.0]])
SMALL = {"latent": 4, "width": 8}


def records(seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, size=RECORDS, p=(0.5, 0.5))
    values = np.clip(MEANS[labels] + 0.1 * rng.normal(size=(RECORDS, D)), -1.0, 1.0)
    return values.astype(np.float32), labels


def curator(*, epsilon=200.0):
    values, labels = records()
    description = mock_description(records=RECORDS, record_shape=(D,), epsilon=epsilon, delta=1e-5, classes=CLASSES)
    return MockCurator(description, records=values, labels=labels, randomness=np.random.default_rng(0).bytes)


def fitted(where, method, *, epsilon, steps=None, **options):
    plan, quote = plan_generator(where, method, epsilon=epsilon, steps=steps)
    assert quote.fits
    return generate(where, plan, device="cpu", progress=False, **options)


def means(generator, count=2000):
    x, y = generator.sample(count, seed=3)
    return np.stack([x[y == c].mean(dim=0).numpy() for c in range(CLASSES)])


SINKHORN = DpSinkhorn(**SMALL, points=20, fresh=5, iterations=15, learning_rate=0.03, label_weight=3.0)


@pytest.mark.long
def test_dp_sinkhorn_learns_the_classes_is_charged_once_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    where = curator()
    generator = fitted(where, SINKHORN, epsilon=100.0, steps=80)
    (charge,) = where.charges
    assert 80.0 < charge.epsilon <= 100.0
    assert generator.shares == (0.5, 0.5)
    assert np.abs(means(generator) - MEANS).max() < 0.2, means(generator)
    assert "generated points" in generator.facts["releases"]

    # A process that dies in the middle of a run sends the same bytes again, goes on, and is not charged again.
    other, sent = curator(), []
    exchange = type(other).exchange

    def dying(self, method, request, **options):
        if method == "DrawStep":
            sent.append(request.SerializeToString())
            if len(sent) == 3:
                raise KeyboardInterrupt
        return exchange(self, method, request, **options)

    monkeypatch.setattr(type(other), "exchange", dying)
    with pytest.raises(KeyboardInterrupt):
        fitted(other, SINKHORN, epsilon=100.0, steps=5, directory=tmp_path / "run")
    ended = fitted(other, SINKHORN, epsilon=100.0, steps=5, directory=tmp_path / "run")
    assert len(other.charges) == 1
    assert len(sent) == 6
    assert sent[3] == sent[2]
    assert len(set(sent)) == 5
    again = fitted(other, SINKHORN, epsilon=100.0, steps=5, directory=tmp_path / "run")
    assert len(sent) == 6
    torch.testing.assert_close(again.sample(20)[0], ended.sample(20)[0])


@pytest.mark.long
def test_dp_swd_learns_the_classes_by_quantiles_of_labelled_records_and_draws_rows_by_the_same_way():
    where = curator()
    made = DpSwdQuantiles(**SMALL, directions=30, learning_rate=0.03)
    generator = fitted(where, made, epsilon=20.0, steps=80)
    (charge,) = where.charges
    assert 16.0 < charge.epsilon <= 20.0
    assert generator.shares == (0.5, 0.5)
    assert np.abs(means(generator) - MEANS).max() < 0.35, means(generator)
    assert "with their labels" in generator.facts["releases"]

    # Rows need thousands of steps: their noise is on every record's every projection.
    where = curator()
    generator = fitted(where, DpSwd(**SMALL, directions=6), epsilon=20.0, steps=3)
    (charge,) = where.charges
    assert charge.epsilon <= 20.0
    assert generator.facts["releases"].startswith("noisy projections of every record in 6 directions")
    assert generator.sample(5)[0].shape == (5, D)


def test_what_is_declared_is_what_the_papers_need():
    described = mock_description(records=60_000, record_shape=(1, 28, 28), epsilon=10.0, delta=1e-5, classes=10)
    paper = DpSinkhorn()
    plan = make_plan(described, paper, epsilon=10.0, steps=100).for_model(feature_dimension=784, gradient_parameters=0)
    declared, (part,) = plan.declared(), plan.event().step.parts
    assert isinstance(declared, SinkhornDeclaration)
    assert isinstance(part, ClippedVector)
    assert (declared.points, declared.fresh, declared.blur, declared.label_weight) == (50, 10, 0.05, 15.0)
    assert (part.values, part.clip_norm, plan.batch_size) == (50 * 784, 0.5, 50)
    plan = make_plan(described, DpSwd(), epsilon=10.0, steps=100).for_model(
        feature_dimension=784, gradient_parameters=0
    )
    (part,) = plan.event().step.parts
    assert isinstance(part, RowProjections)
    # The label is inside of the row: the price is that of 784 + 10 dimensions, clipped together.
    assert (part.feature_dimension, part.directions, plan.batch_size) == (794, 1000, 100)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("dp-sinkhorn", {"fresh": 51}),
        ("dp-sinkhorn", {"clip_norm": 0.0}),
        ("dp-sinkhorn", {"low": 1.0, "high": 0.0}),
        ("dp-swd", {"label_weight": 0.5}),
        ("dp-swd-quantiles", {"coefficients": 0}),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, wrong):
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        generation_kinds()[name](**wrong)


def test_without_labels_nothing_is_offered():
    description = mock_description(records=RECORDS, record_shape=(D,), epsilon=5.0, delta=1e-5)
    for method in (SINKHORN, DpSwd(), DpSwdQuantiles()):
        with pytest.raises(InvalidValue, match="declares no classes"):
            plan_generator(MockCurator(description), method, epsilon=1.0)


@pytest.mark.long
def test_the_command_fits_a_published_method_on_a_mock(tmp_path):
    description = mock_description(records=300, record_shape=(D,), epsilon=20.0, delta=1e-5, classes=CLASSES)
    file, out = tmp_path / "description.json", tmp_path / "generator.safetensors"
    file.write_text(json.dumps(description.to_json()))
    settings = ["points=10", "fresh=2", "iterations=10"]
    arguments = ["generate", "--method", "dp-sinkhorn", "--dry-run", str(file), "--epsilon", "5", "--steps", "3"]
    arguments += [word for setting in settings for word in ("--setting", setting)]
    result = CliRunner().invoke(main, [*arguments, "--out", str(out), "--format", "json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)["facts"]
    assert facts["method"]["name"] == "dp-sinkhorn"
    assert facts["steps"] == 3
    assert out.exists()


@pytest.mark.parametrize(
    ("shape", "convolved"),
    [pytest.param((8, 8), True, marks=pytest.mark.exhaustive), ((2, 12, 8), True), ((2, 7, 8), False)],
)
@pytest.mark.long
def test_images_get_a_network_of_convolutions(shape, convolved, tmp_path):
    """Where 4 divides the sides; its file holds operations of the closed vocabulary, and draws values of the range."""
    values = np.random.default_rng(0).uniform(0.0, 4.0, size=(200, *shape)).astype(np.float32)
    description = mock_description(records=200, record_shape=shape, epsilon=200.0, delta=1e-5, classes=CLASSES)
    where = MockCurator(description, records=values, labels=np.arange(200) % CLASSES)
    method = DpSwdQuantiles(low=0.0, high=4.0, latent=3, width=4, directions=20)
    generator = fitted(where, method, epsilon=100.0, steps=2)
    assert any(node.operation == "conv2d" for node in generator.decoder.graph.nodes) is convolved
    generator.save(tmp_path / "generator.safetensors")
    x, y = load_generator(tmp_path / "generator.safetensors").sample(30, seed=1)
    assert x.shape == (30, *shape)
    assert 0.0 <= float(x.min()) < float(x.max()) <= 4.0
    assert set(y.tolist()) == {0, 1}


def test_methods_survive_plans():
    for method in (replace(SINKHORN, label_weight=5.0), DpSwd(directions=7), DpSwdQuantiles()):
        assert type(method).from_json(method.to_json()) == method


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", ["dp-sinkhorn", "dp-swd", "dp-swd-quantiles"])
def test_each_method_fits_and_draws_on_a_device(name, tmp_path):
    """A step's latents, labels, released values and the run's public map lie on one device."""
    where, method = curator(), generation_kinds()[name](**SMALL)
    plan, _ = plan_generator(where, method, epsilon=20.0, steps=3)
    generator = generate(where, plan, device="cuda", progress=False)
    x, _ = generator.sample(50, seed=1)
    assert x.shape == (50, D)
    assert x.isfinite().all()
    generator.save(tmp_path / "generator.safetensors")
