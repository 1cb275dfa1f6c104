"""What a classifier does on records that it was not trained on, asked of twins that were trained without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.replay import cross_fitting, delivery, priors
from dpswd.public_client.replay.verdict import Fitted
from dpswd.public_client.replay.views import FeatureView

CLASSES, D, COUNT = 3, 20, 120


def table(count: int, seed: int) -> Labelled:
    generator = torch.Generator().manual_seed(seed)
    centres = 0.5 * torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return Labelled(centres[labels] + torch.randn(count, D, generator=generator), labels)


def right(scores: torch.Tensor, data: Labelled) -> float:
    return float((scores.argmax(dim=1) == data.labels).double().mean())


@pytest.fixture(scope="module")
def by_heart():
    """A small source, and a network that knows all of it by heart: behind a fixed layer, which is to stay."""
    source = table(COUNT, 0)
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Linear(D, D).requires_grad_(False), nn.Linear(D, 64), nn.ReLU())
    classifier = nn.Linear(64, CLASSES)
    loader = source_loader(source, batch_size=64)
    train_source(extractor, classifier, loader, epochs=60, learning_rate=5e-3)
    with torch.no_grad():
        assert right(classifier(extractor(source.images)), source) > 0.99
    return source, extractor, classifier


@pytest.fixture(scope="module")
def out_of_fold(by_heart):
    source, extractor, classifier = by_heart
    return cross_fitting.CrossFit(extractor, classifier, source, seed=0).out_of_fold()


@pytest.mark.long
def test_scores_are_as_right_as_on_fresh_records(by_heart, out_of_fold):
    """Deviations of 3.5 points of the source's records and 0.7 of the fresh ones; one seed, so always the same."""
    source, extractor, classifier = by_heart
    fixed, learned = extractor[0].weight.clone(), classifier.weight.detach().clone()
    again = cross_fitting.CrossFit(extractor, classifier, source, seed=0).out_of_fold()
    assert torch.equal(out_of_fold.scores, again.scores)
    assert torch.equal(extractor[0].weight, fixed)
    assert torch.equal(classifier.weight, learned)
    fresh = table(3000, 1)
    with torch.no_grad():
        there = right(classifier(extractor(fresh.images)), fresh)
    assert there < 0.9
    assert right(out_of_fold.scores, source) == pytest.approx(there, abs=0.08)
    assert "by models trained without them" in out_of_fold.origin


def test_a_correction_that_training_records_call_harmless_is_left_out(by_heart, out_of_fold):
    """Nine in ten draws have the first class frequent and one has it absent: that costs, but not on known records."""
    source, extractor, classifier = by_heart
    often, never = torch.tensor([2.9, 0.05, 0.05]), torch.tensor([0.02, 1.49, 1.49])
    draws = torch.stack([often] * 90 + [never] * 10)
    with torch.no_grad():
        in_sample = classifier(extractor(source.images))
    weights = draws.mean(dim=0)

    def least(of: torch.Tensor) -> float:
        corrected = (of + torch.log(priors.prior_weights(weights, 0.25))).argmax(dim=1) == source.labels
        changes = 100.0 * (corrected.double() - (of.argmax(dim=1) == source.labels).double())
        return float(priors.frequency_gains(changes, source.labels, draws).quantile(priors.UNSURE))

    torch.testing.assert_close(out_of_fold.in_sample, in_sample)
    assert least(in_sample) > -priors.MOST_LOST
    assert least(out_of_fold.scores) < -priors.MOST_LOST
    safe = priors.safe_weights(out_of_fold, source.labels, weights, draws)
    assert safe.weights is None
    assert "may do harm" in safe.reason


def test_an_extractor_that_takes_too_long_to_train_anew_stays_whole_and_that_is_said(by_heart):
    source, extractor, classifier = by_heart
    out_of_fold = cross_fitting.CrossFit(extractor, classifier, source, seed=0, steps=50).out_of_fold()
    assert "by classifiers trained without them" in out_of_fold.origin
    assert "what its extractor knows of them by heart is not known" in out_of_fold.origin


@pytest.mark.long
def test_a_view_must_promise_more_than_features_learned_on_the_source_flatter_there(by_heart):
    """Through a wrong view features by heart tell the labels as well, so a trial on public records promises a gain."""
    source, extractor, classifier = by_heart
    view = FeatureView(extractor(source.images).std(dim=0).detach().clamp(min=1e-6))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        view.log_gain.copy_(4.0 * torch.randn(view.log_gain.shape, generator=generator))
        view.bias.copy_(4.0 * torch.randn(view.bias.shape, generator=generator))
    fitted = Fitted(view, torch.ones(CLASSES), 0.0, "adapted by a view", "made for this test")

    def outcome(learned: bool) -> tuple[str, str]:
        extractor[1].requires_grad_(learned)
        generator = torch.Generator().manual_seed(0)
        given = delivery.deliver(
            extractor, classifier, {"a": fitted}, {"a": 1.0}, source,
            steps=100, seed=0, generator=generator, bar=Reporter(),
        )["a"]  # fmt: skip
        return given.outcome, given.reason

    try:
        assert outcome(learned=False)[0] == "adapted by a view"
    finally:
        extractor[1].requires_grad_(True)
    delivered, reason = outcome(learned=True)
    assert delivered == "kept"
    assert "features flatter by" in reason


class Tokens(nn.Module):
    """A learned parameter that no module draws, and a way of drawing that asks for something."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(0.0, 1.0, D))

    def reset_parameters(self, deviation: float) -> None:
        raise AssertionError("nobody can know the deviation")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.token


def test_no_learned_weight_outlives_the_draw_what_is_fixed_stays_and_the_seed_decides():
    source, inner = table(60, 0), nn.Linear(D, D)
    inner.bias.requires_grad_(False)
    fixed = nn.Sequential(nn.BatchNorm1d(D), nn.BatchNorm1d(D, affine=False)).requires_grad_(False)
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(D, D))
    extractor = nn.Sequential(fixed, Tokens(), inner, parametrized, nn.Dropout(0.5)).eval()
    fixed[0].running_mean.fill_(3.0)
    fresh = cross_fitting._fresh(extractor)
    for (name, before), after in zip(extractor.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(before, after) != before.requires_grad, name
    cross_fitting.trained_mode(fresh)
    fresh(source.images)
    assert float(fresh[0][0].running_mean[0]) == 3.0
    assert fresh[4].training
    classifier = nn.Linear(D, CLASSES)
    expected = torch.random.get_rng_state()
    one, other = (
        cross_fitting.CrossFit(extractor, classifier, source, seed=1, steps=50).out_of_fold().scores for _ in range(2)
    )
    assert torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), expected)


def test_a_model_that_was_not_trained_on_the_records_is_asked_itself_and_so_is_one_of_few_records():
    source = table(60, 0)
    classifier = nn.Linear(D, CLASSES).requires_grad_(False)
    out_of_fold = cross_fitting.CrossFit(nn.Identity(), classifier, source, seed=0).out_of_fold()
    assert torch.equal(out_of_fold.scores, out_of_fold.in_sample)
    assert "trained on none of them" in out_of_fold.origin
    few = source.part(slice(2))
    learned = nn.Sequential(nn.BatchNorm1d(D), nn.Linear(D, CLASSES)).eval()
    out_of_fold = cross_fitting.CrossFit(nn.Identity(), learned, few, seed=0).out_of_fold()
    assert torch.equal(out_of_fold.scores, out_of_fold.in_sample)
