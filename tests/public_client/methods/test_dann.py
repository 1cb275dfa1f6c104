"""DP-DANN on the client's side: what it declares, what it improves, what it refuses. No service (see end_to_end)."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks.dann import InProcessCurator
from public_client import DomainAdaptation, Plan
from public_client.methods.catalogue import Problem, method
from public_client.methods.dann import domain_critic, source_terms
from public_client.plans.critic_plan import CriticPlan
from public_client.plans.run_plan import plan_from_json
from public_client.testing.mock import MockCurator
from shared.errors import BudgetExhausted, InvalidValue, SettingsError
from shared.mechanisms.critic.domain_loss import source_loss
from shared.models.adapted import read_adapted
from shared.protocol.messages import Critic

WIDTH, CLASSES = 6, 3
CENTRES = np.random.default_rng(21).normal(size=(CLASSES, WIDTH)) * 1.5


def _draw(rng, count, shift):
    labels = rng.integers(CLASSES, size=count)
    return torch.from_numpy((CENTRES[labels] + rng.normal(size=(count, WIDTH)) + shift).astype(np.float32)), labels


@pytest.fixture
def problem():
    """A hospital whose records are shifted by 0.7 of the way from one class to another."""
    rng = np.random.default_rng(5)
    source, labels = _draw(rng, 1000, 0.0)
    records, truth = _draw(rng, 3000, 0.7 * (CENTRES[1] - CENTRES[0]))
    extractor, classifier = nn.Sequential(nn.Linear(WIDTH, WIDTH)).eval(), nn.Linear(WIDTH, CLASSES).eval()
    with torch.no_grad():
        extractor[0].weight.copy_(torch.eye(WIDTH))
        extractor[0].bias.zero_()
        classifier.weight.copy_(torch.from_numpy(CENTRES))
        classifier.bias.copy_(torch.from_numpy(-0.5 * (CENTRES**2).sum(axis=1)))

    def evaluate(module, head):
        with torch.no_grad():
            return 100 * float((head(module(records)).argmax(dim=1).numpy() == truth).mean())

    loader = [(source, torch.from_numpy(labels))]
    return extractor, classifier, loader, InProcessCurator(records, epsilon=4.0, seed=1), evaluate


def adversary(problem, *, seed=0, **wishes):
    extractor, classifier, _, curator, _ = problem
    plan = curator.plan_critic(**wishes)
    return DomainAdaptation(
        extractor, classifier, curator=curator, plan=plan, source_epochs=0, seed=seed, device="cpu"
    )  # fmt: skip


def test_a_trained_adapter_recovers_part_of_what_the_shift_cost(problem, tmp_path):
    """In 8 trainings with seeds of their own the accuracy rose from 47 to between 60 and 82 percent."""
    extractor, _, loader, curator, evaluate = problem
    trained = adversary(problem, epsilon=4.0, steps=60, learning_rate=0.04, components=6, seed=1)
    trained.fit(loader, evaluate=evaluate, progress=False)
    first, last = trained.history[0], trained.history[-1]
    assert first.accuracy < 50
    assert last.accuracy > first.accuracy + 8
    assert last.epsilon == pytest.approx(4.0, rel=1e-3)
    assert trained.sites["curator"].steps == 60
    assert [charge.parameters.steps for charge in curator.charges] == [60]
    torch.testing.assert_close(extractor[0].weight, torch.eye(WIDTH))  # the source side stays
    trained.save(tmp_path / "m.safetensors")
    saved = read_adapted(tmp_path / "m.safetensors")
    assert saved.plan["method"] == "dp-dann"
    assert saved.statistics is not None
    records = torch.randn(5, WIDTH)
    torch.testing.assert_close(saved.extractor.features(records), trained.target_extractor(records).detach())


def test_the_declaration_is_one_flat_vector_at_the_asked_price(problem):
    trained = adversary(problem, epsilon=4.0, steps=5, hidden=4).fit(problem[2], progress=False)
    declared = trained.sites["curator"].run.run.parameters
    assert declared.release == Critic()
    assert declared.directions == 0
    assert declared.gradient.parameters[-4:] == (
        "critic.first.weight", "critic.first.bias", "critic.last.weight", "critic.last.bias",
    )  # fmt: skip
    assert all(name.startswith("extractor.") for name in declared.gradient.parameters[:-4])
    assert trained.plan.price() == pytest.approx(4.0, rel=1e-3)
    assert trained.plan.price() <= 4.0
    assert trained.plan.event().step.parts[0].parameters == trained.plan.gradient_parameters
    assert "charged as a whole" in str(trained.plan)


def test_a_clip_of_ones_own_is_declared_as_it_is(problem):
    trained = adversary(problem, epsilon=1.0, steps=2, clip_norm=0.125).fit(problem[2], progress=False)
    assert trained.sites["curator"].run.run.parameters.gradient.clip_norm == 0.125


def test_where_the_ledger_counts_more_than_the_run_alone_the_noise_is_raised(problem):
    """A quarter of the budget for few small samples: what is charged stays within the plan, alone it is far below."""
    trained = adversary(problem, epsilon=1.0, steps=5).fit(problem[2], progress=False)
    (charge,) = problem[3].charges
    assert 0.95 < charge.epsilon <= 1.0
    assert trained.plan.price() < 0.9


def test_a_refused_run_leaves_everything_as_it_was(problem):
    extractor, _, loader, curator, _ = problem
    adversary(problem, epsilon=4.0, steps=3).fit(loader, progress=False)
    again = adversary(problem, epsilon=4.0, steps=3)
    with pytest.raises(BudgetExhausted):
        again.fit(loader, progress=False)
    assert len(curator.charges) == 1
    assert again.target_extractor is extractor


@pytest.mark.parametrize("known", [{}, {"clip_norm": 0.5}])
def test_a_plan_survives_its_json(problem, known):
    plan = problem[3].plan_critic(epsilon=1.0, steps=7, **known)
    for value in (plan, plan.for_extractor(feature_dimension=1, gradient_parameters=20)):
        assert plan_from_json(json.loads(json.dumps(value.to_json()))) == value
    assert isinstance(plan_from_json(problem[3].plan(epsilon=1.0).to_json()), Plan)
    with pytest.raises(InvalidValue, match="no sgima"):
        CriticPlan.from_json(plan.to_json() | {"sgima": 1.0})


def test_a_plan_without_a_model_declares_nothing(problem):
    plan = problem[3].plan_critic(epsilon=1.0)
    with pytest.raises(InvalidValue, match="call for_extractor first"):
        plan.declaration(graph_digest="", weights_digest="", names=("critic",))
    with pytest.raises(InvalidValue, match="one logit"):
        plan.for_extractor(feature_dimension=6, gradient_parameters=20)
    with pytest.raises(InvalidValue, match="at least 1, once it is known"):
        plan.with_noise_times(2.0)


@given(st.permutations(range(40)))
@settings(max_examples=20)
def test_the_order_of_the_source_does_not_choose_the_critics_axes(order):
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(3)) * torch.arange(1, 6)
    there = domain_critic(features, components=4, hidden=3, seed=1)
    here = domain_critic(features[order], components=4, hidden=3, seed=1)
    for a, b in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_the_critic_sees_whitened_source_features():
    torch.manual_seed(0)
    features = torch.randn(500, 5) @ torch.diag(torch.tensor([9.0, 4.0, 2.0, 1.0, 0.1])) + 3.0
    critic = domain_critic(features, components=3, hidden=4)
    seen = critic.view(features)
    torch.testing.assert_close(torch.cov(seen.T), torch.eye(3), atol=1e-4, rtol=1e-4)
    assert not any(p.requires_grad for p in critic.view.parameters())


def test_a_steep_critic_pays_the_mean_squared_slope():
    torch.manual_seed(0)
    features = torch.randn(40, 5)
    critic = domain_critic(features, components=3, hidden=4)
    loss, penalty = source_terms(critic, features, weight=2.0)
    torch.testing.assert_close(loss, source_loss(critic(features)))
    slopes = torch.func.vmap(torch.func.grad(lambda u: critic[1:](u).squeeze()))(critic.view(features))
    torch.testing.assert_close(penalty, slopes.square().sum(dim=1).mean())


@pytest.mark.parametrize(
    ("wishes", "match"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1.0, "steps": 0}, "steps"),
        ({"epsilon": 1.0, "batch_size": 3001}, "3000 records"),
        ({"epsilon": 1.0, "averaging": 1.0}, "averaging"),
        ({"epsilon": 1.0, "direction": 5}, "direction"),
    ],
)
def test_wishes_out_of_range_are_refused(problem, wishes, match):
    with pytest.raises(InvalidValue, match=match):
        CriticPlan.of(problem[3].describe(), **wishes)


def test_the_method_says_what_it_lacks(problem):
    extractor, classifier, loader, curator, _ = problem
    chosen = method("dp-dann")
    with pytest.raises(SettingsError, match="needs a curator"):
        chosen.train(Problem(extractor, classifier, loader))
    with pytest.raises(InvalidValue, match="epsilon is missing"):
        chosen.train(Problem(extractor, classifier, loader, curator=curator))
    with pytest.raises(InvalidValue, match="a critic's plan has no directions"):
        chosen.train(Problem(extractor, classifier, loader, curator=curator, wishes={"epsilon": 1, "directions": 8}))
    old = MockCurator(replace(curator.describe(), mechanisms=("rows", "quantiles", "gradient")))
    with pytest.raises(InvalidValue, match="in process offers no critics; it offers rows, quantiles, gradient"):
        chosen.train(Problem(extractor, classifier, loader, curator=old, wishes={"epsilon": 1.0}))
    assert curator.charges == old.charges == []
