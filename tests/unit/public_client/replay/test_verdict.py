"""From a release to a model: a view, other priors, or the model as it was, by evidence."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.local import released
from dpswd import DomainAdaptation, Hospital, Replay
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled, load_task
from dpswd.public_client.data.networks import digits_network
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.source import source_loader, train_source
from dpswd.public_client.replay import delivery, fit, posterior, priors, tuning
from dpswd.public_client.replay.class_frequencies import Frequencies
from dpswd.public_client.replay.verdict import UNEXPLAINED, Evidence, Fitted
from dpswd.public_client.replay.views import FeatureView, ImageView, View
from dpswd.public_client.testing.mock import MockCurator, mock_description

CLASSES, D = 3, 6


def table(count: int, seed: int, frequencies: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Labelled:
    generator = torch.Generator().manual_seed(seed)
    centres = 1.2 * torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(99))
    labels = torch.multinomial(torch.tensor(frequencies), count, replacement=True, generator=generator)
    return Labelled(centres[labels] + torch.randn(count, D, generator=generator), labels)


SOURCE = table(2000, 0)


def fit_view(target: torch.Tensor, *, epsilon: float, view: View | None = None, along: int = 60) -> Fitted:
    residuals = released(target, SOURCE.images, epsilon=epsilon, delta=1e-5, seed=bytes(range(32)), along=along)
    with reporting("", 1, shown=False) as bar:
        return fit.find_view(
            nn.Identity(), SOURCE, residuals,
            learning_rate=0.03, generator=torch.Generator().manual_seed(0), bar=bar, view=view,
        )  # fmt: skip


def given(classifier: nn.Module, fitted: Fitted, steps: int = 60) -> delivery.Delivered:
    with reporting("", 1, shown=False) as bar:
        return delivery.deliver(
            nn.Identity(), classifier, {"a": fitted}, {"a": 1.0}, SOURCE,
            steps=steps, seed=0, generator=torch.Generator().manual_seed(0), bar=bar,
        )["a"]  # fmt: skip


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    head = nn.Linear(D, CLASSES)
    train_source(nn.Identity(), head, source_loader(SOURCE, batch_size=64), epochs=20, learning_rate=5e-3)
    return head


@pytest.mark.long
def test_gains_and_biases_that_leave_a_misfit_are_not_used():
    """They explain nine tenths of what bends the features; so they did where classes moved, and cost 19 points."""
    plain = table(2000, 1).images
    fitted = fit_view(2.0 * plain + 0.15 * plain.square(), epsilon=8.0, view=FeatureView(SOURCE.images.std(dim=0)))
    assert fitted.outcome == UNEXPLAINED
    assert "does not fit what is known of shifts" in fitted.plain
    assert "; by the best view that was tried squared residuals of" in fitted.reason


@pytest.mark.long
def test_other_frequencies_correct_the_priors_and_gain(classifier):
    target = table(2000, 1, (0.7, 0.3, 0.0))
    fitted = fit_view(target.images, epsilon=1.0, along=200)
    assert fitted.outcome == "priors corrected"
    assert "class frequencies alone" in fitted.reason
    model = given(classifier, fitted)
    before = accuracy(nn.Identity(), classifier, target)
    assert accuracy(model.extractor, model.classifier, target) > before + 1.0
    share = 0.75 if "by 75% of it" in model.reason else 1.0
    expected = model.classifier[0](target.images) + share * torch.log(fitted.class_weights.clamp(min=1e-3))
    torch.testing.assert_close(model.classifier(target.images), expected)


def with_draws(draws: torch.Tensor) -> Fitted:
    view = FeatureView(torch.ones(D))
    return Fitted(view, draws.mean(dim=0), 0.0, "priors corrected", "made for this test", draws)


@pytest.mark.long
def test_priors_are_corrected_by_as_much_as_uncertain_frequencies_allow(classifier):
    """The first class is rare by all draws, or by most of them while one in twenty has it most frequent."""
    rare, frequent = torch.tensor([0.5, 1.25, 1.25]), torch.tensor([1.5, 0.75, 0.75])
    sure = given(classifier, with_draws(rare.repeat(100, 1)))
    assert sure.outcome == "priors corrected"
    assert "scores are corrected: +" in sure.reason
    ratio = sure.classifier(SOURCE.images) - sure.classifier[0](SOURCE.images)
    torch.testing.assert_close(ratio, torch.log(rare).expand_as(ratio))

    some = with_draws(torch.stack([rare] * 95 + [frequent] * 5))
    part = given(classifier, some)
    assert part.outcome == "priors corrected"
    assert "% of it, as frequencies are uncertain" in part.reason
    ratio = part.classifier(SOURCE.images) - part.classifier[0](SOURCE.images)
    bent = ratio[0].detach() / torch.log(some.class_weights)
    torch.testing.assert_close(bent, bent[:1].expand_as(bent))
    assert 0.2 < float(bent[0]) < 0.8

    wrong = Fitted(some.view, rare, 0.0, "priors corrected", "made for this test", frequent.repeat(100, 1))
    unchanged = given(classifier, wrong)
    assert unchanged.outcome == "kept"
    assert "may do harm" in unchanged.reason
    assert torch.equal(unchanged.classifier(SOURCE.images), classifier(SOURCE.images))


def test_a_gain_is_each_class_gain_times_its_frequency():
    """Two classes of 400 and 100 records that gain 5 and lose 20 points in the mean."""
    labels = torch.tensor([0] * 400 + [1] * 100)
    changes = torch.cat([torch.tensor([100.0, 0.0]).repeat(20), torch.zeros(360), -20.0 * torch.ones(100)]).double()
    draws = torch.tensor([[1.0, 1.0], [1.25, 0.0], [0.0, 5.0]])
    gains = priors.frequency_gains(changes, labels, draws.repeat(2000, 1)).reshape(2000, 3)
    more = float(changes.var(unbiased=False))  # of one record of each class beside those that are there
    first = (100.0**2 * 400 * 0.05 * 0.95 + more) ** 0.5 / 400  # 20 of 400 records gained
    second = more**0.5 / 100  # all of 100 lost alike
    for column, frequency in enumerate((0.8, 1.0, 0.0)):
        expected = 5.0 * frequency - 20.0 * (1.0 - frequency)
        assert float(gains[:, column].mean()) == pytest.approx(expected, abs=0.2)
        chance = math.hypot(frequency * first, (1.0 - frequency) * second)
        assert float(gains[:, column].std()) == pytest.approx(chance, rel=0.1)


def test_no_shift_keeps_the_model_to_the_bit(classifier):
    fitted = fit_view(table(2000, 2).images, epsilon=1.0)
    assert fitted.outcome == "kept"
    assert "fits the source as it is" in fitted.reason
    model = given(classifier, fitted)
    assert torch.equal(model.classifier(SOURCE.images), classifier(SOURCE.images))


def test_thin_evidence_keeps_the_model():
    fitted = fit_view(table(60, 3, (0.7, 0.3, 0.0)).images, epsilon=0.3)
    assert fitted.outcome == "kept"
    assert "says too little" in fitted.reason


def explained(
    *, unexplained: float = 0.0, at_most: float = 0.0, misfit: float = 0.0, chi_square: float = 1.0
) -> Evidence:
    even = torch.full((CLASSES,), 1 / CLASSES)
    frequencies = Frequencies(even * CLASSES, even, even, 0 * even, unexplained, at_most, misfit, 0.0, chi_square, 600)
    return Evidence(frequencies)


@pytest.mark.parametrize(
    ("view", "at_most", "misfit", "before", "fits"),
    [
        ("image", 0.012, 0.0, 0.02, True),
        ("image", 0.055, 0.0, 0.02, True),  # a thin release: nothing is seen of what it may hide
        ("image", 0.055, 1.5, 0.02, False),
        ("image", 0.055, 1.5, 0.30, True),
        ("image", 0.065, 0.0, 0.50, False),
        ("features", 0.055, 0.0, 0.02, False),
        ("features", 0.055, 0.5, 0.30, True),
        ("features", 0.010, 12.0, 0.30, False),
    ],
)
def test_how_much_a_view_may_leave(view, at_most, misfit, before, fits):
    tried = ImageView(1) if view == "image" else FeatureView(torch.ones(D))
    seen, alone = explained(at_most=at_most, misfit=misfit), explained(unexplained=before)
    assert fit._fits(tried, seen, alone) is fits


@pytest.mark.parametrize(
    ("view", "left", "before", "fits"),
    [
        ("image", 10.0, 60.0, True),
        ("image", 19.9, 60.0, True),  # 0.332 with the chance, 2 sqrt(77.6 / 600)
        ("image", 20.1, 60.0, False),
        ("image", 1.05, 1.5, False),  # a tenth, but with the chance of 600 values 0.34
        ("features", 10.0, 60.0, False),
    ],
)
def test_a_strong_release_sees_more_than_a_view_and_a_third_of_the_energy_may_be_left(view, left, before, fits):
    tried = ImageView(1) if view == "image" else FeatureView(torch.ones(D))
    seen = explained(unexplained=0.14, at_most=0.16, misfit=2000.0, chi_square=left)
    alone = explained(unexplained=0.38, at_most=0.43, misfit=9000.0, chi_square=before)
    assert fit._fits(tried, seen, alone) is fits


@pytest.mark.long
def test_the_more_a_view_leaves_the_more_records_are_tuned_on_as_they_are():
    """The root of the energy's part, with two deviations of a noncentral chi-square of 600 values."""
    alone = explained(chi_square=61.0)
    assert explained(chi_square=1.0).stays(alone) == pytest.approx(math.sqrt(2 * math.sqrt(2 / 600) / 60))
    assert explained(chi_square=6.0).stays(alone) == pytest.approx(math.sqrt((5 + 2 * math.sqrt(22 / 600)) / 60))
    assert explained(chi_square=70.0).stays(alone) == 0.5
    assert explained(chi_square=0.5).stays(alone) == 0.0
    assert explained(chi_square=2.0).stays(explained(chi_square=0.9)) == 0.5


@pytest.mark.long
def test_frequencies_that_imitate_another_shift_are_not_used():
    """People of one class came nearer to another's: frequencies alone explain most of it, and would do harm.

    A map of low rank explains it as well, and gains; it is left out here.
    """
    target = table(20_000, 1)
    centres = torch.stack([SOURCE.images[SOURCE.labels == c].mean(dim=0) for c in range(CLASSES)])
    aside = torch.linalg.svd(centres[:1] - centres[1:2]).Vh[1]
    moved = (target.labels == 0)[:, None] * (0.6 * aside - 0.4 * (centres[0] - centres[1]))
    fitted = fit_view(target.images + moved, epsilon=3.0, view=FeatureView(SOURCE.images.std(dim=0)))
    assert fitted.outcome == UNEXPLAINED
    assert "does not fit what is known of shifts" in fitted.plain
    assert "where the noise alone gives 1" in fitted.reason
    assert torch.equal(fitted.class_weights, torch.ones(CLASSES))


@pytest.mark.exhaustive  # the test above and that of pixels say it in `make test`
def test_what_no_view_explains_is_said_beside_the_noise_floor():
    """Columns that change places: gains and biases cannot follow, and priors must not be bent to it."""
    fitted = fit_view(table(3000, 4).images[:, [3, 4, 5, 0, 1, 2]], epsilon=3.0)
    assert fitted.outcome == UNEXPLAINED
    assert "does not fit what is known of shifts" in fitted.plain
    assert "where the noise alone gives 1" in fitted.reason
    assert torch.equal(fitted.class_weights, torch.ones(CLASSES))


@pytest.mark.long
def test_a_view_that_would_gain_nothing_is_not_used(classifier):
    """The identity as a view: tuning on it cannot gain, so the source's own model is given."""
    still = Fitted(FeatureView(torch.ones(D)), torch.ones(CLASSES), 0.0, "adapted by a view", "made for this test")
    model = given(classifier, still, steps=200)
    assert model.outcome == "kept"
    assert "no clear gain" in model.reason
    assert torch.equal(model.classifier(SOURCE.images), classifier(SOURCE.images))


@pytest.mark.long
def test_sites_that_share_a_training_keep_their_own_outcomes(classifier):
    tilted = fit_view(table(2000, 1, (0.7, 0.3, 0.0)).images, epsilon=1.0)
    alike = fit_view(table(2000, 2).images, epsilon=1.0)
    with reporting("", 1, shown=False) as bar:
        models = delivery.deliver(
            nn.Identity(), classifier, {"a": tilted, "b": alike, "c": alike}, {"a": 0.5, "b": 0.25, "c": 0.25}, SOURCE,
            steps=5, seed=0, generator=torch.Generator().manual_seed(0), bar=bar,
        )  # fmt: skip
    assert [model.outcome for model in models.values()] == ["priors corrected", "kept", "kept"]
    assert models["b"].classifier is models["c"].classifier
    assert not torch.equal(models["a"].classifier(SOURCE.images), models["b"].classifier(SOURCE.images))


def test_an_expected_gain_is_that_of_held_out_records():
    right, wrong = nn.Identity(), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        wrong.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    held = Labelled(torch.eye(2).repeat(20, 1), torch.tensor([0, 1]).repeat(20))
    held.labels[:10] = 1 - held.labels[:10]
    view = FeatureView(torch.ones(2))
    gain, error = tuning.expected_gain([tuning.Trial((nn.Identity(), wrong), (nn.Identity(), right), held)], view)
    assert gain == pytest.approx(50.0)
    assert error == pytest.approx(100.0 * (0.75 * 40 / 39) ** 0.5 / 40**0.5)


def test_images_may_be_seen_inverted_or_with_noise():
    images = torch.rand(6, 1, 8, 8) * 1.8 - 0.9
    views = ImageView(1).candidates(8, torch.Generator().manual_seed(0))
    inverted = [view for view in views if isinstance(view, ImageView) and float(view.sign) < 0]
    noisy = [view for view in views if isinstance(view, ImageView) and float(view.noise.detach()) > 0]
    assert len(inverted) == 3
    assert len(noisy) == 2
    flat = nn.Flatten()
    torch.testing.assert_close(inverted[-1](flat, images), flat(-images), rtol=1e-4, atol=1e-4)
    assert float((noisy[-1](flat, images) - flat(images)).detach().abs().mean()) > 0.1
    assert float(inverted[-1].penalty().detach()) > 4.0


@pytest.fixture(scope="module")
def digits():
    """Digits as scikit-learn ships them, without the demo's shift, and a network that is trained on every other one."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.from_numpy(bundle.images.astype("float32") / 8.0 - 1.0).unsqueeze(1)[1::2].contiguous()
    target = Labelled(images, torch.from_numpy(bundle.target[1::2].astype("int64")))
    source = load_task("digits").source
    torch.manual_seed(0)
    extractor, classifier = digits_network((1, 8, 8))
    loader = source_loader(source, batch_size=64)
    train_source(extractor, classifier, loader, epochs=10)
    return extractor, classifier, loader, target


def trained(digits, records: torch.Tensor) -> DomainAdaptation:
    """The default through the mock curator, which holds these records; tuned for a moment only."""
    extractor, classifier, loader, _ = digits
    described = mock_description(records=len(records), record_shape=(1, 8, 8), epsilon=8.0, delta=1e-5)
    hospital = Hospital(
        MockCurator(described, records=lambda count: records[:count], randomness=np.random.default_rng(0).bytes)
    )
    plan = hospital.plan(Replay(directions=100, tuning_steps=20), epsilon=8.0)
    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=0, device="cpu")
    model.fit(loader, progress=False)
    return model


@pytest.mark.long
def test_half_of_the_classes_does_not_harm_and_gains(digits):
    target = digits[3]
    half = target.part(target.labels < 5)
    model = trained(digits, half.images)
    (report,) = model.reports
    assert report["outcome"] == "priors corrected"
    before = accuracy(digits[0], digits[1], half)
    assert accuracy(model.model().extractor, model.model().classifier, half) > before


@pytest.mark.long
def test_pixels_that_change_places_keep_the_model_and_say_so(digits, caplog, monkeypatch):
    monkeypatch.setattr(
        posterior, "_ROUNDS", (posterior._Round(8, 8, 1.0), posterior._Round(2, 40, 1.0))
    )  # more explain no more
    images = digits[3].images
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    shuffled = images.flatten(1)[:, order].reshape(images.shape)
    with caplog.at_level(logging.WARNING):
        model = trained(digits, shuffled)
    (report,) = model.reports
    assert report["outcome"] == UNEXPLAINED
    assert "does not fit what is known of shifts" in report["plain"]
    assert "evaluate it on the hospital's labels" in report["plain"]
    assert "does not fit what is known of shifts" in caplog.text
    scores = model.model().classifier(model.model().extractor(images))
    torch.testing.assert_close(scores, digits[1](digits[0](images)), rtol=1e-4, atol=1e-4)
