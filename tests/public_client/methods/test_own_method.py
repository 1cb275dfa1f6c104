"""A method that only this file defines, over a mechanism that only this file defines: no product file knows of them.

The mechanism releases the noised sum of clipped features; the method moves the target's features by the difference of
the means.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from public_client import DomainAdaptation, Hospital, Method, MockCurator, Plan, mock_description
from public_client.plans.declarable import Declarable
from public_client.plans.recipe import not_positive
from public_client.training.checkpoint import Checkpoint
from public_client.training.loop import PublicStep, align
from public_client.training.run import AnsweredStep, ChargedRun, PublicSource
from public_client.training.saved_model import load_adapted
from public_client.training.sites import Model
from shared.errors import InvalidValue, RequestInvalid
from shared.kernels.noise import GridArray, grid_step
from shared.kernels.sanitized import release_gradient
from shared.mechanisms import MECHANISMS
from shared.mechanisms.interface import Mechanism, RunSize
from shared.privacy.events import BoundedSum
from shared.protocol import arrays
from shared.protocol.checks import positive
from shared.protocol.payloads import parsed, written
from shared.protocol.v1 import curator_pb2 as pb

D, CLASSES, STEPS = 6, 3, 5


@dataclass(frozen=True)
class Sums:
    """What a run declares: the clip norm of one record's features, and the noise on each coordinate of their sum."""

    clip_norm: float
    sigma: float

    def to_bytes(self):
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data):
        return cls(**json.loads(data))


@dataclass(frozen=True)
class Nothing:
    """What a step brings."""

    def to_bytes(self):
        return b""

    @classmethod
    def from_bytes(cls, data):
        assert data == b""
        return cls()


@dataclass(frozen=True, eq=False)
class Summed:
    """What a step returns: (d,), the noised sum."""

    total: GridArray

    def to_bytes(self):
        return written(arrays.encode_grid(self.total))

    @classmethod
    def from_bytes(cls, data):
        message = parsed(pb.GridArray, data, field="reply")
        return cls(arrays.decode_grid(message, field="reply", max_values=10_000))


class FeatureSums(Mechanism[Sums, Nothing, Summed]):
    """The noised sum of clipped features."""

    name = "feature-sums"
    declaration = Sums
    request = Nothing
    reply = Summed

    def violations(self, declared, run, facts, limits):
        return positive("declaration.sigma", declared.sigma) + positive("declaration.clip_norm", declared.clip_norm)

    def parts(self, declared, run, facts):
        d, sigma = facts.model.feature_dimension, declared.sigma
        moved = 2.0 * declared.clip_norm
        return (BoundedSum(values=d, sensitivity=moved, changed=d, sigma=sigma, grid_step=grid_step(sigma)),)

    def synthetic(self, declared, run, facts):
        return Nothing()

    def compute(self, declared, request, step):
        records, _ = step.sample.take(0, step.sample.count)
        features = step.model.features(records).to(step.device)
        return Summed(
            release_gradient(features, clip_norm=declared.clip_norm, sigma=declared.sigma, noise=step.noise)
        )  # fmt: skip

    def summary(self, declared, facts):
        return f"the sum of {facts.model.feature_dimension} features"


SUMS = FeatureSums()


@dataclass(frozen=True, kw_only=True)
class MatchMeans(Method):
    """Moves the target's features until their mean is the source's."""

    name = "match-means"
    target_side = True

    clip_norm: float = 4.0

    def problems(self):
        return super().problems() + not_positive(self, "clip_norm")

    @property
    def mechanism(self):
        return SUMS

    def usual_size(self, description):
        return RunSize(batch=50, steps=STEPS)

    def declaration(self, *, noise, batch, dimension, classes, names, feature_map):
        return Sums(self.clip_norm, 2.0 * self.clip_norm * noise)

    def declarable(self, extractor, record_shape, own):
        return Declarable.of(extractor, record_shape)

    def open(self, curator, plan, extractor):
        return SumsRun(curator, self.declarable(extractor, plan.record_shape, None), plan, move=Move())

    def begin(self, group, training):
        shape = group.record_shape()
        ready, move = self.declarable(training.model.extractor, shape, None), Move()

        def begin(site):
            site.begin(SumsRun(site.curator, ready, site.plan, move=move, checkpoint=site.store))

        group.each(begin)
        group.install(Model(nn.Sequential(training.model.extractor, move).eval(), training.model.classifier))

    def fit(self, group, training):
        optimizer = torch.optim.Adam(group.live[0].run.move.parameters(), lr=self.learning_rate)
        step = PublicStep(training.features)
        align(group, optimizer, lambda: step, lambda _: 1.0, training, averaging=self.averaging)


class Move(nn.Module):
    """Adds one number to each feature."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, D)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.layer.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def parameters(self, recurse=True):
        return iter([self.layer.bias])


class SumsRun(ChargedRun):
    """A run of feature sums; `move` is what its loss moves."""

    def __init__(self, *parts, move, **options):
        self.move = move
        super().__init__(*parts, **options)

    def request(self, source, feature_map):
        return Nothing()

    def answered(self, source, drawn, *, feature_map=None):
        target = drawn.reply.total.to_tensor() / self.plan.batch_size
        loss = (target + self.move.layer.bias - PublicSource.of(source).mean(dim=0)).square().sum()
        return AnsweredStep(drawn.number, loss, float(loss.detach()), 1.0, drawn.request_id)


def curator():
    told = mock_description(records=200, record_shape=(D,), epsilon=20.0, delta=1e-5)
    told = replace(told, mechanisms=(*told.mechanisms, SUMS.name))
    counter, generator = itertools.count(), torch.Generator().manual_seed(3)
    return MockCurator(
        told,
        mechanisms={**MECHANISMS, SUMS.name: SUMS},
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
    assert "releases  the sum of 6 features" in str(trained.plan)
    (charge,) = there.charges
    assert charge.run.mechanism is SUMS
    assert 9.5 < charge.epsilon <= 10.0
    assert trained.history[-1].distance < trained.history[1].distance
    moved = trained.target_extractor(torch.ones(1, D)).detach()
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
    for a, b in zip(resumed.target_extractor.parameters(), straight.target_extractor.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_open_run_serves_a_loop_of_ones_own():
    there = curator()
    hospital = Hospital(there)
    plan = hospital.plan(MatchMeans(), epsilon=10.0)
    with hospital.open(plan, nn.Sequential(nn.Linear(D, D))) as run:
        run.loss(torch.zeros(8, D)).backward()
        assert run.move.layer.bias.grad is not None


def test_it_is_refused_where_it_is_not_offered_and_where_it_is_wrong():
    told = mock_description(records=200, record_shape=(D,), epsilon=20.0, delta=1e-5)
    with pytest.raises(InvalidValue, match="mock does not offer 'feature-sums'; it offers rows, quantiles"):
        Hospital(MockCurator(told)).plan(MatchMeans(), epsilon=1.0)
    there = curator()
    opened = model(there).fit(source(), progress=False).sites["curator"].run.run
    for wrong, match in (
        (replace(opened.parameters, declaration=Sums(4.0, -1.0).to_bytes()), r"declaration\.sigma: is -1"),
        (replace(opened.parameters, mechanism="feature-means"), "offers .*feature-sums"),
    ):
        with pytest.raises(RequestInvalid, match=match):
            there.price_run(wrong)
