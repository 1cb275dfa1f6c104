"""What a long life does to the curator's memory: nothing. What a hostile client does: nothing beyond a bound."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from declarations import gradient, quantiles
from torch import nn

from dpswd.private_curator.steps import extraction
from dpswd.shared.core.privacy import filter as privacy_filter
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest

RECORDS = np.random.default_rng(7).normal(size=(24, 6)).astype(np.float32)
SOURCE = np.ones((9, 5), np.float32)
STEPS = 200


def _module(features=5):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, features))


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_steps_leave_nothing_behind_in_the_curator(make_hospital):
    hospital = make_hospital(RECORDS)
    declared = gradient(quantiles(2, 30.0), ClippedSum(("0.weight",), 0.1, 30.0))
    parameters = hospital.declare(_module(), declared, batch_size=12, steps=2 * STEPS)
    run = hospital.open_run(parameters)

    def steps(count):
        for _ in range(count):
            stored = hospital.step(run, parameters, GradientRequest(SOURCE))
        gc.collect()
        return len(stored.reply) + len(stored.receipt.entry.statement)

    reply_bytes = steps(50)  # bytes, if the reply of a step were kept
    before = _resident()
    tracemalloc.start()
    try:
        steps(10)  # what is made once while traced
        traced, _ = tracemalloc.get_traced_memory()
        steps(STEPS)
        grown = tracemalloc.get_traced_memory()[0] - traced
    finally:
        tracemalloc.stop()
    # The interpreter's own free lists grow a little; what was kept of each step would be twice as much as is allowed.
    assert grown < STEPS * reply_bytes / 2, (grown, reply_bytes)
    assert _resident() - before < 32 << 20


def test_a_flood_of_quotes_is_remembered_up_to_a_bound(make_hospital, monkeypatch):
    monkeypatch.setattr(privacy_filter, "MAX_CACHED_PRICES", 5)
    hospital = make_hospital(RECORDS)
    parameters = hospital.declare(_module(), quantiles(2, 30.0), batch_size=12)
    opened = hospital.open_run(parameters)
    for steps in range(1, 12):
        event = type(opened.event)(step=opened.event.step, steps=steps)
        hospital.ledger.price_run(client="ml-team", event=event)
        assert 0 < len(hospital.ledger._books.account.filter._prices) <= 5


def test_the_shapes_of_few_extractors_are_remembered(make_hospital, monkeypatch):
    monkeypatch.setattr(extraction, "MAX_REMEMBERED", 3)
    hospital = make_hospital(RECORDS)
    for features in range(2, 9):
        parameters = hospital.declare(_module(features), quantiles(2, 30.0), batch_size=12)
        assert hospital.extractor(parameters).facts.feature_dimension == features
        assert hospital.extractors._cached.cache_info().currsize <= 3
