"""What a step takes is learned from random numbers, and once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from private_curator.steps.trial_run import MAX_REMEMBERED, Rehearsals
from shared.errors import RequestInvalid
from shared.protocol.messages import Gradient, Quantiles, Rows, RunParameters

RECORDS = np.random.default_rng(7).normal(size=(24, 6)).astype(np.float32)


@pytest.fixture
def module():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))


class Untouchable:
    """Records that nobody may read."""

    count = 24

    def take(self, indices):
        raise AssertionError("a rehearsal reads no record")


@pytest.mark.parametrize("release", [Rows(1.0), Quantiles(2, 1.0)])
@pytest.mark.parametrize("gradient", [None, Gradient(("0.weight",), 0.1, 1.0)])
def test_a_rehearsal_reads_no_record_and_charges_nothing(make_hospital, module, release, gradient):
    hospital = make_hospital(RECORDS)
    parameters = hospital.declare(module, release=release, gradient=gradient, batch_size=10)
    hospital.pipeline._data = Untouchable()
    entries = len(list(hospital.ledger.history()))
    extractor = hospital.extractors.get(parameters, client="ml-team")
    assert 0.0 < hospital.pipeline.rehearse(parameters, extractor) < 60.0
    assert len(list(hospital.ledger.history())) == entries


def test_a_run_of_slow_steps_is_refused(make_hospital, module):
    hospital = make_hospital(RECORDS)
    parameters = hospital.declare(module, release=Rows(1.0), batch_size=10)
    extractor = hospital.extractors.get(parameters, client="ml-team")
    hospital.pipeline._most_seconds = 1e-6
    with pytest.raises(RequestInvalid, match="use a smaller batch or extractor"):
        hospital.pipeline.rehearse(parameters, extractor)


def _declared(**changes):
    values = {
        "graph_digest": "a" * 64,
        "weights_digest": "b" * 64,
        "directions": 10,
        "batch_size": 4,
        "steps": 3,
        "release": Rows(1.0),
    }
    return RunParameters(**(values | changes))


def test_each_kind_of_step_is_measured_once():
    known, measured = Rehearsals(), []

    def once():
        measured.append(1)
        return 2.0

    for parameters in (_declared(), _declared(steps=9), _declared(release=Rows(3.0))):
        assert known.seconds(parameters, once) == 2.0
    assert len(measured) == 1  # neither the number of steps nor the noise changes what a step takes
    for parameters in (_declared(batch_size=5), _declared(directions=11), _declared(release=Quantiles(2, 1.0))):
        known.seconds(parameters, once)
    assert len(measured) == 4


def test_a_short_step_is_measured_again_when_everything_is_loaded():
    times = iter([0.9, 0.1])
    assert Rehearsals().seconds(_declared(), lambda: next(times)) == 0.1


def test_the_memory_of_rehearsals_is_bounded():
    known = Rehearsals()
    for batch in range(1, MAX_REMEMBERED + 50):
        known.seconds(_declared(batch_size=batch), lambda: 2.0)
    assert len(known._seconds) == MAX_REMEMBERED
