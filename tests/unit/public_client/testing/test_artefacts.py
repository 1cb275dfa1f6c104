"""Attacks on a delivered file: what is broken is caught, what is not is not, and bounds are those of the rates."""

from __future__ import annotations

import copy
import functools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.audit.faults import FAULTLESS, fault
from benchmarks.audit.membership import table, trained
from dpswd import DomainAdaptation, Replay, Statistics, adapt
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.generation import Column, Gaussian, Replayed, Schema, Tabular
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.ladder.check import check
from dpswd.public_client.methods import Normalisation, Recalibrate
from dpswd.public_client.testing import artefacts
from dpswd.public_client.testing.canaries import CERTAIN, CONFIDENCE
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.sites import Model

FILE, RECORDS, EPSILON, DELTA = "made.safetensors", 600, 4.0, 1e-3
SOURCE = table(1, 600, 0.0)


def one_column(seed, moved=0.0):
    """Two classes that one column tells, all columns moved by so many of its deviations."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (RECORDS,), generator=generator)
    records = torch.randn(RECORDS, 4, generator=generator)
    records[:, 0] += 4.0 * labels
    return records + moved * records.std(dim=0), labels


@functools.cache
def one_column_network():
    """A network that a move of that column misleads."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer, (records, labels) = torch.optim.Adam(whole.parameters(), 1e-2), one_column(1)
    for _ in range(300):
        optimizer.zero_grad()
        functional.cross_entropy(whole(records), labels).backward()
        optimizer.step()
    whole.eval()
    return whole[:2], whole[2]


def of_model(method, source=SOURCE, target=lambda: table(2, RECORDS, 2.0), build=trained):
    """A model of a method, or of the ladder, for a hospital whose columns have moved."""

    def make(path, epsilon):
        records, labels = target()
        description = mock_description(records=RECORDS, record_shape=(4,), epsilon=20.0, delta=DELTA, classes=2)
        curator = MockCurator(description, records=records.numpy(), labels=labels.numpy(), randomness=bytes)
        hospital, start = Hospital(curator), Model(*copy.deepcopy(build()))
        common = {"seed": 0, "device": "cpu"}
        if method is None:
            adapt(start, source, hospital, epsilon=epsilon, **common, progress=False).save(path)
        else:
            plan = hospital.plan(method, epsilon=epsilon, extractor=start.extractor, classifier=start.classifier)
            adaptation = DomainAdaptation(
                start.extractor, start.classifier, hospital=hospital, plan=plan, source_epochs=0, **common
            )
            adaptation.fit(source_loader(Labelled(*source), batch_size=64, seed=0), progress=False).save(path)
        return curator, Model(*copy.deepcopy(build())), source

    return make


def of_generator(method, shape=(4,)):
    def make(path, epsilon):
        rng = np.random.default_rng(3)
        labels = rng.integers(2, size=RECORDS)
        records = 0.5 * rng.random((RECORDS, *shape)) + 0.4 * labels.reshape(-1, *(1 for _ in shape))
        description = mock_description(records=RECORDS, record_shape=shape, epsilon=20.0, delta=DELTA, classes=2)
        curator = MockCurator(description, records=records.astype(np.float32), labels=labels, randomness=bytes)
        plan, _ = plan_generator(curator, method, epsilon=epsilon)
        generate(curator, plan, seed=1, device="cpu", progress=False).save(path)
        return curator, None, None

    return make


TABLE = tuple(Column(name=f"x{i}", kind="numeric", low=0.0, high=1.0, bins=4) for i in range(4))
IMAGES = Replayed(low=0.0, axes=20, coordinates=10, waves=12, width=4, pretraining=3, updates=6, images=30, looked=9)
QUICK = {
    "statistics": of_model(Statistics()),
    "gaussian": of_generator(Gaussian(low=0.0, high=1.0, typical=0.7)),
}
SLOW = {
    "tabular": of_generator(Tabular(schema=Schema(TABLE), fitted_rows=500, updates=5)),
    "glance and layers": of_model(Normalisation(asks="all")),
    "labels": of_model(Recalibrate()),
    "views": of_model(
        Replay(directions=60, tuning_steps=100, source_records=600),
        one_column(1),
        lambda: one_column(2, 1.5),
        one_column_network,
    ),
    "ladder": of_model(None),
    "replayed": of_generator(IMAGES, (1, 8, 9)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A file of each kind, checked, with what derives it again."""

    @functools.cache
    def make(kind, epsilon):
        path = tmp_path_factory.mktemp("made") / FILE
        curator, model, source = (QUICK | SLOW)[kind](path, epsilon)
        checked = check(path, key=bytes.fromhex(curator.describe().ledger_public_key))
        assert not checked.findings
        return path, checked, model, source

    return make


def attacked(made, kind, planted, trials, epsilon=EPSILON):
    path, checked, model, source = made(kind, epsilon)
    with fault(planted):
        return artefacts.attacked(path, checked, model=model, source=source, trials=trials, progress=False)


def caught(rows):
    return {row["attack"]: row["refuted"] for row in rows}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "epsilon", "trials"), [("statistics", 2.0, 68), ("gaussian", 1.0, 56)])
def test_noise_left_out_is_caught(made, kind, epsilon, trials):
    """As many files as it takes where all are told right: half of them. A claim of 1 takes 28, of 2 34, of 4 48."""
    rows = attacked(made, kind, "noise left out", trials, epsilon)
    assert caught(rows) == {"membership": True, "attribute": True}
    assert all("stays" not in row["stand_in"] and "other runs" not in row["stand_in"] for row in rows)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", SLOW)
def test_noise_left_out_is_caught_on_every_rung(made, kind):
    rows = attacked(made, kind, "noise left out", 100)
    assert any(caught(rows).values())
    assert all("stays" not in row["stand_in"] and "other runs" not in row["stand_in"] for row in rows)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", QUICK | SLOW)
def test_a_claim_that_holds_is_not_refuted(made, kind):
    assert not any(caught(attacked(made, kind, FAULTLESS, 100)).values())


@pytest.mark.exhaustive
def test_half_of_the_noise_is_caught_with_as_many_trials_as_that_takes(made):
    assert any(caught(attacked(made, "gaussian", "noise halved", 3000)).values())


def test_ratios_do_not_depend_on_the_units_of_a_statistic():
    rng = np.random.default_rng(0)
    outside, inside = rng.normal(0.0, 1.0, (200, 2)), rng.normal(1.0, 1.0, (200, 2))
    for own, scaled in zip(
        artefacts.ratios(outside, inside), artefacts.ratios(1e-6 * outside, 1e-6 * inside), strict=True
    ):
        assert np.allclose(own, scaled, rtol=1e-4)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_bounds_of_randomised_answers_hold_and_come_near(epsilon):
    """Answers that are right with probability e^epsilon / (1 + e^epsilon): epsilon is known."""
    rng = np.random.default_rng(1)
    right = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    worlds = [np.where(rng.random(20_000) < right, 1.0, -1.0) * sign for sign in (-1.0, 1.0)]
    least, by_law = artefacts.bounds(*worlds, delta=0.0 + 1e-9, confidence=CONFIDENCE)
    assert 0.9 * epsilon < least <= epsilon
    assert by_law > least, "a Gaussian of such rates costs more at so small a delta"
    assert artefacts.bounds(*worlds, delta=1e-9, confidence=CERTAIN)[0] < least


def test_files_of_one_world_prove_nothing():
    rng = np.random.default_rng(2)
    same = rng.normal(size=200), rng.normal(size=200)
    assert artefacts.bounds(*same, delta=1e-5, confidence=CERTAIN) == (0.0, 0.0)


def test_the_record_that_stands_in_is_far_out_and_differs_by_its_label_alone():
    description = mock_description(records=50, record_shape=(4,), epsilon=1.0, delta=1e-5, classes=2)
    own = artefacts.StandIn.of(description, *SOURCE, (0.0, 1.0), labelled=True)
    assert torch.equal(own.ones[1], own.ones[2])
    assert int(own.kinds[1]) != int(own.kinds[2])
    assert torch.allclose(own.ones[0] + own.ones[1], 2.0 * own.records.mean(dim=0), atol=1e-5)
    without = artefacts.StandIn.of(
        mock_description(records=50, record_shape=(4,), epsilon=1.0, delta=1e-5), *SOURCE, (0.0, 1.0), labelled=True
    )
    assert int((without.ones[1] != without.ones[2]).sum()) == 1
