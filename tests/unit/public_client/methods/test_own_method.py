"""A method that only the tests define, over a mechanism that only they define: no product file knows of them.

Here against the mock; `tests/story/test_own_mechanism.py` has the same two over real processes.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from own_mechanism import CLIPPED_MEAN, MeanDeclaration
from own_method import STEPS, MatchMeans
from small_methods import trained_by
from torch import nn

from dpswd import DomainAdaptation, Hospital, MockCurator, Plan, mock_description
from dpswd.public_client import published_methods
from dpswd.public_client.experiments.approaches import approaches, method_of
from dpswd.public_client.methods import method_kinds
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core.errors import InvalidValue, RequestInvalid
from dpswd.shared.published_mechanisms import ALL_MECHANISMS

D, CLASSES = 6, 3


def curator():
    description = mock_description(records=200, record_shape=(D,), epsilon=20.0, delta=1e-5)
    description = replace(description, mechanisms=(*description.mechanisms, CLIPPED_MEAN.name))
    counter, generator = itertools.count(), torch.Generator().manual_seed(3)
    return MockCurator(
        description,
        mechanisms={**ALL_MECHANISMS, CLIPPED_MEAN.name: CLIPPED_MEAN},
        randomness=lambda size: next(counter).to_bytes(size, "big"),  # the same noise every time
        records=lambda count: 1.0 + 0.1 * torch.randn((count, D), generator=generator),
    )


def model(there, **settings):
    torch.manual_seed(1)
    extractor, classifier = nn.Sequential(nn.Linear(D, D)), nn.Linear(D, CLASSES)
    with torch.no_grad():
        extractor[0].weight.copy_(torch.eye(D))
        extractor[0].bias.zero_()
    hospital = Hospital(there)
    plan = hospital.plan(MatchMeans(**{"source_records": 64} | settings), epsilon=10.0)
    return DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=0, device="cpu")


def source():
    generator = torch.Generator().manual_seed(0)
    return [(0.1 * torch.randn(32, D, generator=generator), torch.arange(32) % CLASSES) for _ in range(3)]


class Killed(Exception):
    """The process ends."""


class DiesAfter:
    """Carries requests until one of a kind was answered so often; that answer is never seen."""

    def __init__(self, own, method, times):
        self.own, self.method, self.left = own, method, times

    def exchange(self, method, request, *, patience=None):
        sent = self.own.exchange(method, request, patience=patience)
        if method == self.method and not getattr(request, "validate_only", False):
            self.left -= 1
            if self.left == 0:
                raise Killed
        return sent


def test_it_is_planned_and_trained_with(tmp_path):
    there = curator()
    trained = model(there, learning_rate=0.3)
    assert "match-means: 5 steps, each on 50 of 200 records" in str(trained.plan)
    trained.fit(source(), progress=False)
    assert "releases  a noised sum of clipped features" in str(trained.plan)
    (charge,) = there.charges
    assert charge.run.mechanism is CLIPPED_MEAN
    assert 9.5 < charge.epsilon <= 10.0
    assert trained.history[-1].distance < trained.history[1].distance
    moved = trained.model().extractor(torch.ones(1, D)).detach()
    assert float(moved.abs().mean()) < 0.5  # the target's mean was 1, the source's is 0
    trained.save(tmp_path / "adapted.safetensors")
    loaded = load_adapted(tmp_path / "adapted.safetensors", device="cpu")
    assert loaded.plan["method"] == {"name": "match-means", **asdict(trained.plan.method)}
    assert Plan.from_json(json.loads(json.dumps(trained.plan.to_json())), method=MatchMeans) == trained.plan


@pytest.mark.parametrize(("method", "times"), [("OpenRun", 1), ("DrawStep", 1), ("DrawStep", 3), ("DrawStep", STEPS)])
def test_a_killed_training_is_resumed_without_spending_a_step_twice(tmp_path, method, times):
    there = curator()
    there.transport = DiesAfter(there, method, times)
    with pytest.raises(Killed):
        model(there).fit(source(), checkpoint=tmp_path / "run", progress=False)
    assert Checkpoint(tmp_path / "run").begun
    there.transport = there
    resumed = model(there).fit(source(), checkpoint=tmp_path / "run", progress=False)
    assert len(there.charges) == 1
    assert resumed.sites["curator"].steps == STEPS
    straight = model(curator()).fit(source(), progress=False)
    for a, b in zip(resumed.model().extractor.parameters(), straight.model().extractor.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_open_run_serves_a_loop_of_ones_own():
    there = curator()
    hospital = Hospital(there)
    plan = hospital.plan(MatchMeans(), epsilon=10.0)
    with hospital.open(plan, nn.Sequential(nn.Linear(D, D))) as run:
        run.loss(torch.zeros(8, D)).backward()
        assert run.move.layer.bias.grad is not None


def test_it_is_refused_where_it_is_not_offered_and_where_it_is_wrong():
    description = mock_description(records=200, record_shape=(D,), epsilon=20.0, delta=1e-5)
    with pytest.raises(InvalidValue, match="not offer 'test-clipped-mean'; it offers quantiles, feature_sums"):
        Hospital(MockCurator(description)).plan(MatchMeans(), epsilon=1.0)
    there = curator()
    opened = model(there).fit(source(), progress=False).sites["curator"].run.run
    for wrong, match in (
        (replace(opened.parameters, declaration=MeanDeclaration(4.0, -1.0).to_bytes()), r"declaration\.sigma: is -1"),
        (replace(opened.parameters, mechanism="feature-means"), "offers .*test-clipped-mean"),
    ):
        with pytest.raises(RequestInvalid, match=match):
            there.price_run(wrong)


def test_a_method_is_one_file(tmp_path, monkeypatch):
    """The file of `own_method` in the annex's folder, and no product file touched: it is listed and trained by name."""
    shutil.copy(Path(__file__).resolve().parents[3] / "own_method.py", tmp_path / "match_means.py")
    monkeypatch.setattr(published_methods, "__path__", [*published_methods.__path__, str(tmp_path)])
    method_kinds.cache_clear()
    try:
        assert approaches()["match-means"] == "Moves the target's features until their mean is the source's."
        assert method_of("match-means", {"clip_norm": 2.0}).clip_norm == 2.0
        there = curator()
        extractor, classifier = nn.Sequential(nn.Linear(D, D)), nn.Linear(D, CLASSES)
        made = trained_by("match-means", (extractor, classifier), source(), Hospital(there), wishes={"epsilon": 10.0})
        assert made.reports[0]["steps"] == STEPS
        (charge,) = there.charges
        assert charge.run.mechanism.name == CLIPPED_MEAN.name
    finally:
        method_kinds.cache_clear()
        sys.modules.pop("dpswd.public_client.published_methods.match_means", None)
    monkeypatch.undo()
    assert "match-means" not in method_kinds()
