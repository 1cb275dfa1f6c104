"""Training on by the target's class frequencies: where it gains, where it must not, and what stays as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.replay import delivery, weighted
from dpswd.public_client.replay.cross_fitting import Crossed, CrossFit
from dpswd.public_client.replay.verdict import Fitted
from dpswd.public_client.replay.views import FeatureView
from dpswd.public_client.replay.weighted import Onward

WITHOUT_LAST, WITHOUT_OTHERS = torch.tensor([1.5, 1.5, 1e-3]), torch.tensor([0.1, 0.1, 2.8])


def groups(count: int, seed: int) -> Labelled:
    """Three classes in the corners of a triangle: a line that tells all three is not the best for two of them."""
    labels = torch.arange(count) % 3
    corners = torch.tensor([[-1.2, 0.0], [1.2, 0.0], [0.0, 4.0]])
    return Labelled(corners[labels] + torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)), labels)


def right(extractor: nn.Module, classifier: nn.Module, data: Labelled) -> float:
    """Percent."""
    with torch.no_grad():
        return 100.0 * float((classifier(extractor(data.images)).argmax(dim=1) == data.labels).double().mean())


@pytest.fixture(scope="module")
def lines():
    """Source, a network that sees it along one line of its choice, and its twins."""
    source = groups(900, 0)
    torch.manual_seed(0)
    extractor, classifier = nn.Linear(2, 1), nn.Linear(1, 3)
    train_source(extractor, classifier, source_loader(source, batch_size=64), epochs=20, learning_rate=1e-2)
    crossed = CrossFit(extractor, classifier, source, seed=0).crossed()
    assert crossed is not None
    return source, extractor, classifier, crossed


def onward(crossed: Crossed, extractor: nn.Module, steps: int = 150) -> Onward:
    return Onward(crossed, extractor, steps=steps, seed=0, ranks=Ranks(), bar=Reporter())


def given(lines, draws: torch.Tensor) -> delivery.Delivered:
    source, extractor, classifier, _ = lines
    fitted = Fitted(FeatureView(torch.ones(1)), draws.mean(dim=0), 0.0, "priors corrected", "made for this test", draws)
    return delivery.deliver(
        extractor, classifier, {"a": fitted}, {"a": 1.0}, source,
        steps=150, seed=0, generator=torch.Generator().manual_seed(0), bar=Reporter(),
    )["a"]  # fmt: skip


@pytest.mark.long
def test_a_network_that_had_to_choose_chooses_again_for_the_target(lines):
    """By 7.6 points of 30,000 fresh records, whose deviation is a quarter of a point; one seed."""
    _, extractor, classifier, _ = lines
    before = copy.deepcopy((extractor.state_dict(), classifier.state_dict()))
    fresh = groups(45_000, 1)
    fresh = fresh.part(fresh.labels < 2)
    model = given(lines, WITHOUT_LAST.repeat(100, 1))
    assert model.outcome == "priors corrected"
    assert "weights are trained on by source records drawn by these frequencies (+" in model.reason
    assert "by the source as it is, for which no release is needed" in model.reason
    plain = delivery.with_priors(classifier, WITHOUT_LAST)
    assert right(model.extractor, model.classifier, fresh) > right(extractor, plain, fresh) + 6.0
    for old, module in zip(before, (extractor, classifier), strict=True):
        for name, value in module.state_dict().items():
            assert torch.equal(value, old[name])


def test_frequencies_that_may_be_others_do_not_train(lines):
    """One draw in ten has the third class in the place of the others, which training by the nine would forget."""
    draws = torch.cat([WITHOUT_LAST.repeat(90, 1), WITHOUT_OTHERS.repeat(10, 1)])
    trained = onward(lines[3], lines[1]).by(WITHOUT_LAST, draws)
    assert trained.modules is None
    assert "may do harm" in trained.reason


def test_what_the_source_as_it_is_brings_as_well_is_not_laid_to_the_frequencies(lines):
    """A model that has learned nothing gains by any training."""
    source, even = lines[0], torch.ones(3)
    torch.manual_seed(0)
    fresh = nn.Linear(2, 3)
    poor = CrossFit(nn.Identity(), fresh, source, seed=0, steps=50).crossed()
    assert poor is not None
    trained = onward(poor, nn.Identity()).by(even, even.repeat(100, 1))
    assert trained.modules is None
    assert "owes nothing to the frequencies" in trained.reason


def test_a_gain_must_be_more_than_chance_makes(lines, monkeypatch):
    monkeypatch.setattr(weighted, "_SURE", 100.0)
    trained = onward(lines[3], lines[1]).by(WITHOUT_LAST, WITHOUT_LAST.repeat(100, 1))
    assert trained.modules is None
    assert "is no clear gain" in trained.reason


def test_the_seed_decides_what_is_fixed_stays_and_so_does_the_callers_chance(lines):
    source = lines[0]
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Linear(2, 4).requires_grad_(False), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    classifier = nn.Linear(4, 3)
    crossed = CrossFit(extractor, classifier, source, seed=0, steps=50).crossed()
    assert crossed is not None
    expected = torch.random.get_rng_state()
    one, other = (onward(crossed, extractor, steps=20)._whole(WITHOUT_LAST)[0] for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), expected)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    assert torch.equal(one["0.0.weight"], extractor[0].weight)
    assert not torch.equal(one["1.weight"], classifier.weight)


def test_behind_a_fixed_extractor_the_classifier_alone_is_trained_on(lines):
    source = lines[0]
    torch.manual_seed(0)
    fixed, head = nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 3)
    crossed = CrossFit(fixed, head, source, seed=0, steps=50).crossed()
    assert crossed is not None
    trained = onward(crossed, fixed).by(WITHOUT_LAST, WITHOUT_LAST.repeat(100, 1))
    assert trained.modules is not None, trained.reason
    assert torch.equal(trained.modules[0].weight, fixed.weight)
    assert trained.modules[1].weight.shape == head.weight.shape
    assert not torch.equal(trained.modules[1].weight, head.weight)


def test_without_learning_on_parts_no_weight_changes(lines):
    """Of fixed modules there are none, and where fresh ones learn too slowly they say nothing of the extractor."""
    source, extractor, classifier, _ = lines
    fixed = copy.deepcopy(classifier).requires_grad_(False)
    assert CrossFit(copy.deepcopy(extractor).requires_grad_(False), fixed, source, seed=0).crossed() is None
    assert CrossFit(extractor, classifier, source, seed=0, steps=1).crossed() is None
