"""DP-DANN on the client's side: what it declares, what it improves, what it refuses. No service (see end_to_end)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from small_methods import trained_by
from torch import nn

from dpswd import DomainAdaptation, DpDann, Hospital, MockCurator, mock_description
from dpswd.public_client.published_methods.domain_critic import domain_critic, source_terms
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue
from dpswd.shared.models.adapted import read_adapted
from dpswd.shared.published_mechanisms.critic.domain_loss import source_loss
from dpswd.shared.published_mechanisms.critic.mechanism import CriticDeclaration

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
    description = mock_description(
        records=len(records), record_shape=(WIDTH,), epsilon=4.0, delta=1e-5, name="in process"
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)

    def sample(count):
        return records[torch.randperm(len(records), generator=generator)[:count]]

    curator = MockCurator(description, randomness=np.random.default_rng(1).bytes, records=sample)
    return extractor, classifier, loader, Hospital(curator), evaluate


def adversary(problem, *, seed=0, epsilon, steps, **settings):
    extractor, classifier, _, hospital, _ = problem
    plan = hospital.plan(DpDann(**settings), epsilon=epsilon, steps=steps)
    return DomainAdaptation(
        extractor, classifier, hospital=hospital, plan=plan, source_epochs=0, seed=seed, device="cpu"
    )  # fmt: skip


def declared_by(trained):
    run = trained.sites["curator"].run
    assert run.run.parameters.mechanism == "critic"
    return CriticDeclaration.from_bytes(run.run.parameters.declaration)


@pytest.mark.long
def test_a_trained_adapter_recovers_part_of_what_the_shift_cost(problem, tmp_path):
    """In 8 trainings with seeds of their own the accuracy rose from 47 to between 60 and 82 percent."""
    extractor, _, loader, hospital, evaluate = problem
    trained = adversary(problem, epsilon=4.0, steps=60, learning_rate=0.04, components=6, seed=1)
    trained.fit(loader, evaluate=evaluate, progress=False)
    first, last = trained.history[0], trained.history[-1]
    assert first.accuracy < 50
    assert last.accuracy > first.accuracy + 8
    assert last.epsilon == pytest.approx(4.0, rel=1e-3)
    assert trained.sites["curator"].steps == 60
    assert [charge.run.size.steps for charge in hospital.curator.charges] == [60]
    torch.testing.assert_close(extractor[0].weight, torch.eye(WIDTH))  # the source side stays
    trained.save(tmp_path / "m.safetensors")
    saved = read_adapted(tmp_path / "m.safetensors")
    assert saved.plan["method"]["name"] == "dp-dann"
    assert saved.statistics is not None
    records = torch.randn(5, WIDTH)
    torch.testing.assert_close(saved.extractor.features(records), trained.target_extractor(records).detach())


def test_the_declaration_is_one_flat_vector_at_the_asked_price(problem):
    trained = adversary(problem, epsilon=4.0, steps=5, hidden=4).fit(problem[2], progress=False)
    names = declared_by(trained).sum.parameters
    assert names[-4:] == (
        "critic.first.weight", "critic.first.bias", "critic.last.weight", "critic.last.bias",
    )  # fmt: skip
    assert all(name.startswith("extractor.") for name in names[:-4])
    assert trained.plan.price() == pytest.approx(4.0, rel=1e-3)
    assert trained.plan.price() <= 4.0
    assert trained.plan.event().step.parts[0].parameters == trained.plan.gradient_parameters
    assert "charged as a whole" in str(trained.plan)


def test_a_clip_of_ones_own_is_declared_as_it_is(problem):
    trained = adversary(problem, epsilon=1.0, steps=2, clip_norm=0.125).fit(problem[2], progress=False)
    assert declared_by(trained).sum.clip_norm == 0.125


def test_where_the_ledger_counts_more_than_the_run_alone_the_noise_is_raised(problem):
    """A quarter of the budget for few small samples: what is charged stays within the plan, alone it is far below."""
    trained = adversary(problem, epsilon=1.0, steps=5).fit(problem[2], progress=False)
    (charge,) = problem[3].curator.charges
    assert 0.95 < charge.epsilon <= 1.0
    assert trained.plan.price() < 0.9


def test_a_refused_run_leaves_everything_as_it_was(problem):
    extractor, _, loader, hospital, _ = problem
    adversary(problem, epsilon=4.0, steps=3).fit(loader, progress=False)
    again = adversary(problem, epsilon=4.0, steps=3)
    with pytest.raises(BudgetExhausted):
        again.fit(loader, progress=False)
    assert len(hospital.curator.charges) == 1
    assert again.target_extractor is extractor


def test_a_critic_computes_one_logit_and_trains_with_its_adapter(problem):
    extractor, _, _, hospital, _ = problem
    plan = hospital.plan(DpDann(), epsilon=1.0)
    with pytest.raises(InvalidValue, match="one logit"):
        plan.for_model(feature_dimension=6, gradient_parameters=20)
    with pytest.raises(InvalidValue, match="trains adapter and critic together; use DomainAdaptation"):
        hospital.open(plan, extractor)
    assert hospital.curator.charges == []


@given(st.permutations(range(40)))
@settings(max_examples=tried(20))
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


def test_the_method_says_what_it_lacks(problem):
    extractor, classifier, loader, hospital, _ = problem
    model = (extractor, classifier)
    with pytest.raises(InvalidValue, match="dp-dann has no directions; its settings are averaging, clip_norm"):
        trained_by("dp-dann", model, loader, hospital, settings={"directions": 8})
    old = MockCurator(replace(hospital.describe(), mechanisms=("rows", "quantiles", "gradient")))
    says = "in process does not offer 'critic'; it offers rows, quantiles, gradient"
    with pytest.raises(InvalidValue, match=says):
        trained_by("dp-dann", model, loader, Hospital(old))
    assert hospital.curator.charges == old.charges == []
