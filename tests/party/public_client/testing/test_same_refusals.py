"""A mock and a real curator, composed in this process, refuse the same declarations and steps by the same fields."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_home import made_home
from torch import nn

from dpswd import MockCurator
from dpswd.private_curator.serving.server import CuratorServer
from dpswd.private_curator.settings import tree
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import PendingStep, new_request_id
from dpswd.public_client.plans.declarable import Declarable
from dpswd.shared.core.errors import RequestInvalid
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration, GradientRequest

RECORDS = np.random.default_rng(4).normal(size=(60, 5)).astype(np.float32)
QUANTILES = SlicedDeclaration(directions=8, sigma=2.0, coefficients=2)
ROWS = SlicedDeclaration(directions=8, sigma=2.0)
SUM = ClippedSum(("weight",), 1.0, 8.0)
NARROW_MAP, FLAT_MAP = (FeatureMap(torch.zeros(4), torch.full((4,), scale)) for scale in (1e-30, 1.0))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The real curator's client, and a mock of what it describes, with the same model uploaded."""
    directory = tmp_path_factory.mktemp("curator")
    made = made_home(directory, RECORDS)
    settings = tree.load(
        made.path,
        {
            "listen.host": "localhost",
            "listen.port": "0",
            "compute.device": "cpu",
            "compute.isolation": "in-process",
            "limits.max_directions": "100",
        },
    )
    running = CuratorServer(made, settings)
    with Curator.connect(running.start(), credentials=directory / "credentials", patience_s=0.2) as real:
        yield real, MockCurator(real.describe())
    running.stop()


def parameters_of(curator, mechanism="quantiles", declared=QUANTILES, *, batch=20, steps=2):
    torch.manual_seed(1)
    uploaded = Declarable.of(nn.Linear(5, 4), (5,)).uploaded(curator)
    declaration = declared if isinstance(declared, bytes) else declared.to_bytes()
    return RunParameters(uploaded.graph_digest, uploaded.weights_digest, mechanism, declaration, batch, steps)


def fields(act):
    with pytest.raises(RequestInvalid) as refused:
        act()
    return refused.value.violations


HOSTILE = {
    "no such mechanism": {"mechanism": "records"},
    "labels that are not there": {"mechanism": "evaluation", "declared": EvaluationDeclaration(3, 5.0)},
    "no declaration": {"declared": b"\xff\xff"},
    "another mechanism's": {"mechanism": "gradient", "declared": QUANTILES},
    "no noise": {"declared": replace(QUANTILES, sigma=0.0)},
    "NaN noise": {"declared": replace(QUANTILES, sigma=float("nan"))},
    "noise that cannot be priced": {"declared": replace(QUANTILES, sigma=1e300)},
    "many directions": {"declared": replace(QUANTILES, directions=101)},
    "no directions": {"declared": replace(QUANTILES, directions=0)},
    "no coefficients": {"declared": replace(QUANTILES, coefficients=0)},
    "coefficients of rows": {"mechanism": "rows", "declared": replace(ROWS, coefficients=2)},
    "a map of another width": {"declared": replace(QUANTILES, feature_map=FeatureMap.identity(3))},
    "a map beyond float32": {"declared": replace(QUANTILES, feature_map=NARROW_MAP)},
    "all records and more": {"batch": 61},
    "many rules at once": {"declared": replace(QUANTILES, directions=0, sigma=-1.0), "batch": 61},
    "a gradient of nothing": {"mechanism": "gradient", "declared": GradientDeclaration("none", ROWS, SUM, 4)},
    "unknown parameters": {
        "mechanism": "gradient",
        "declared": GradientDeclaration("rows", ROWS, replace(SUM, parameters=("secret",)), 4),
    },
    "a sum beyond int32": {
        "mechanism": "gradient",
        "declared": GradientDeclaration("rows", ROWS, replace(SUM, clip_norm=1e9), 4),
    },
    "no source features": {"mechanism": "gradient", "declared": GradientDeclaration("rows", ROWS, SUM, 0)},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_declarations_are_refused_alike(both, what):
    real, mock = (fields(lambda own=own: own.price_run(parameters_of(own, **HOSTILE[what]))) for own in both)
    assert real == mock
    assert all(text for _, text in real)


STEPS = {
    "no request": b"\xff\xff",
    "no source": SlicedRequest().to_bytes(),
    "a source of another width": GradientRequest(np.zeros((3, 5), np.float32)).to_bytes(),
    "more source than declared": GradientRequest(np.zeros((5, 4), np.float32)).to_bytes(),
    "too few weights": GradientRequest(np.zeros((3, 4), np.float32), np.zeros(3, np.float32)).to_bytes(),
    "a map of another width": GradientRequest(np.zeros((3, 4), np.float32), None, FeatureMap.identity(3)).to_bytes(),
    "a map beyond float32": GradientRequest(np.zeros((3, 4), np.float32), None, NARROW_MAP).to_bytes(),
}


@pytest.fixture(scope="module")
def runs(both):
    declared = GradientDeclaration("rows", ROWS, SUM, 4)
    return [(own, own.open_run(parameters_of(own, "gradient", declared))) for own in both]


@pytest.mark.parametrize("what", STEPS)
def test_hostile_steps_are_refused_alike_and_use_up_nothing(runs, what):
    real, mock = (
        fields(lambda own=own, run=run: own.send(PendingStep(run.run_id, new_request_id(), STEPS[what])))
        for own, run in runs
    )
    assert [field for field, _ in real] == [field for field, _ in mock]


def test_what_is_allowed_is_answered_alike_afterwards(runs):
    asked = GradientRequest(np.zeros((3, 4), np.float32), None, FLAT_MAP)
    for own, run in runs:
        release = own.send(PendingStep(run.run_id, new_request_id(), asked.to_bytes()))
        assert release.step == 1  # nothing that was refused was a step
    (_, real), (_, mock) = runs
    assert real.quote.epsilon == pytest.approx(mock.quote.epsilon, rel=1e-9)
