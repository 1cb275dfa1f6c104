"""What a release says of planted truths, by the likelihood alone: no curator, exact sums and simulated noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

from dpswd.public_client.recalibration.curvature import Public, contrasts, correcting
from dpswd.public_client.recalibration.graph import corrected, fitted
from dpswd.public_client.recalibration.inference import Posterior, Recalibration, Released
from dpswd.public_client.recalibration.verdict import TOLERATED, Verdict, safe_share
from dpswd.shared.core.mechanisms.score_statistics.sums import parts

SIGMA = 30.0
"""Of the noise on each number, about that of epsilon 1 in five steps."""


def world(classes, count, seed, *, truth=None, sure=1.0):
    """Outputs (n, d - 1 + C) of a basis of contrasts and two components, and labels by the scores plus a correction.

    Scores are `sure` times as large; the basis is the same.
    """
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(count, classes + 1))
    scores = 1.5 * sure * z @ np.random.default_rng(5).normal(size=(classes + 1, classes)) / np.sqrt(classes)
    basis = np.concatenate([np.ones((count, 1)), scores @ contrasts(classes) / (1.2 * sure), z[:, :2]], axis=1)
    truth = np.zeros((classes, basis.shape[1])) if truth is None else truth
    chance = softmax(scores + basis @ truth.T, axis=1)
    labels = (rng.random((count, 1)) > chance.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return np.concatenate([basis[:, 1:], scores], axis=1), labels


def run(classes, count, truth, *, seed=0, steps=4, sigma=SIGMA, sure=1.0):
    """The posterior after some steps, and how the log-loss of fresh records falls by it."""
    public, kinds = world(classes, 2000, 77, sure=sure)
    columns = public.shape[1] - classes + 1
    basis = np.concatenate([np.ones((2000, 1)), public[:, : columns - 1]], axis=1)
    shares = np.bincount(kinds, minlength=classes) / 2000
    scale = np.array([1.5] + [1.5] * (classes - 1) + [0.75, 0.75])
    source = Public(public[:, -classes:], basis, shares)
    likelihood = Recalibration(source, scale=scale, slopes=True, records=count)
    outputs, labels = world(classes, count, seed + 1, truth=truth, sure=sure)
    rng = np.random.default_rng(seed)
    at, drawn = source.softened(columns), []
    for _ in range(steps):
        gradient, square = (each.sum(axis=0) for each in parts(outputs, labels, scale, at))
        rows, places = np.triu_indices(columns)
        noised = square + rng.normal(size=square.shape) * sigma
        whole = np.zeros((columns, columns))
        whole[rows, places] = noised / np.where(rows == places, 1.0, np.sqrt(2.0))
        whole += np.triu(whole, 1).T
        counts = np.bincount(labels, minlength=classes) + sigma * rng.normal(size=classes)
        gradients = np.sqrt(2.0) * (gradient + sigma * rng.normal(size=gradient.shape))
        drawn.append(Released(at, counts, gradients, whole, (sigma, np.sqrt(2.0) * sigma, sigma)))
        posterior = likelihood.posterior(drawn)
        at = posterior.mean
    return posterior, fall(classes, truth, posterior.mean, sure=sure)


def fall(classes, truth, correction, *, sure=1.0):
    outputs, labels = world(classes, 20_000, 999, truth=truth, sure=sure)
    basis = np.concatenate([np.ones((20_000, 1)), outputs[:, :-classes]], axis=1)
    losses = [
        -np.log(softmax(outputs[:, -classes:] + basis @ by.T, axis=1)[np.arange(20_000), labels]).mean()
        for by in (np.zeros_like(correction), correction)
    ]
    return float(losses[0] - losses[1])


def planted(classes, *, bias=0.0, slope=0.0, head=0.0):
    columns, across = classes + 2, contrasts(classes)
    truth = np.zeros((classes, columns))
    truth[:, 0] = bias * np.linspace(-1.0, 1.0, classes)
    truth[:, 1:classes] = slope * across
    truth[:, -1] = head * np.linspace(-1.0, 1.0, classes)
    return truth


@pytest.mark.parametrize("classes", [2, 5])
def test_biases_that_moved_are_seen_and_nothing_else(classes):
    truth = planted(classes, bias=1.0)
    posterior, gained = run(classes, 5000, truth)
    verdict = Verdict.of(posterior)
    assert (posterior.moved, verdict.moved) == ("biases", "biases")
    assert posterior.evidence > 20.0
    assert gained > 0.8 * fall(classes, truth, truth)
    assert verdict.share == 1.0
    assert verdict.low < gained < verdict.high + 0.2 * gained
    away = posterior.mean - posterior.mean.mean(axis=0)
    np.testing.assert_allclose(away[:, 0], truth[:, 0], atol=0.35)


@pytest.mark.parametrize("classes", [2, 5])
def test_a_slope_and_a_head_that_moved_are_seen(classes):
    truth = planted(classes, slope=-0.6, head=0.5)
    posterior, gained = run(classes, 10_000, truth)
    assert posterior.evidence > 20.0
    assert gained > 0.7 * fall(classes, truth, truth)
    assert Verdict.of(posterior).moved == "head"


@pytest.mark.parametrize(
    ("classes", "sure"), [(2, 10.0), pytest.param(5, 10.0, marks=pytest.mark.exhaustive), (5, 40.0)]
)
def test_a_model_that_is_too_sure_of_all_is_softened_and_one_that_is_right_stays(classes, sure):
    """Its own curvature is next to none, so that no prior around it and no gradient at it would lead there."""
    truth = planted(classes, slope=-1.2 * (sure - 1.0))  # scores as large as where `sure` is 1
    posterior, gained = run(classes, 5000, truth, sure=sure)
    verdict = Verdict.of(posterior)
    assert verdict.moved == "slopes"
    assert verdict.share > 0.9
    assert gained > 0.8 * fall(classes, truth, truth, sure=sure) > 0.5
    right, _ = run(classes, 5000, planted(classes), sure=sure)
    harm = -fall(classes, planted(classes), Verdict.of(right).share * right.mean, sure=sure)
    assert harm < 0.02


@pytest.mark.parametrize("moved", [{"bias": 4.0, "head": 3.0}, {"slope": -3.0, "head": 2.0}], ids=str)
def test_a_steep_model_whose_boundaries_moved_is_put_right_by_all_steps_together(moved):
    """Diamonds of another colour: a release was taken for a model too sure of all, and its log-loss rose by 0.17."""
    truth = planted(4, **moved)
    posterior, _ = run(4, 5000, truth, seed=20, sure=8.0)
    verdict, whole = Verdict.of(posterior), fall(4, truth, truth, sure=8.0)
    gained = fall(4, truth, verdict.share * posterior.mean, sure=8.0)
    assert gained > 0.8 * whole
    assert verdict.gain < 1.25 * whole, "no more is expected than there is"


def test_between_two_explanations_lies_what_is_expected_to_lose_least():
    outputs, labels = world(3, 2000, 77, sure=8.0)
    basis = np.concatenate([np.ones((2000, 1)), outputs[:, :-3]], axis=1)
    source = Public(outputs[:, -3:], basis, np.bincount(labels, minlength=3) / 2000)
    likelihood = Recalibration(source, scale=np.ones(basis.shape[1]), slopes=True, records=2000)
    one, other = planted(3), planted(3, slope=-8.0)
    for likely, end in ((0.0, one), (1.0, other)):
        place, gain, deviation = likelihood._between(one, other, likely)
        np.testing.assert_array_equal(place, end)
        assert (gain, deviation) == (pytest.approx(source.fall(end)), 0.0)
    place, gain, deviation = likelihood._between(one, other, 0.5)
    expected = [0.5 * (source.fall(of) - source.fall(of, before=place)) for of in (one, other)]
    assert gain == pytest.approx(sum(expected))
    assert gain > max(0.5 * (source.fall(other) - source.fall(one, before=other)), 0.0)
    assert deviation > 0.0


def test_classes_in_another_order_than_the_models_are_named():
    verdict = Verdict.of(run(2, 5000, planted(2, slope=-2.4))[0])
    assert verdict.moved == "reversed"
    assert "whether its classes are in your model's order" in verdict.sentence()


@pytest.mark.parametrize("classes", [2, 5])
def test_the_expected_fall_of_a_true_move_is_what_is_gained_however_large(classes):
    """Not the quadratic around no move, which grows with the square of it."""
    outputs, labels = world(classes, 5000, 77)
    basis = np.concatenate([np.ones((5000, 1)), outputs[:, :-classes]], axis=1)
    public = Public(outputs[:, -classes:], basis, np.bincount(labels, minlength=classes) / 5000)
    for truth in (planted(classes, bias=0.5), planted(classes, bias=3.0), planted(classes, slope=2.0, head=3.0)):
        assert public.fall(truth) == pytest.approx(fall(classes, truth, truth), rel=0.1)
    near, far = (public.fall(planted(classes, bias=bias)) for bias in (0.1, 10.0))
    assert far < 0.2 * 100.0**2 * near
    assert np.isfinite(public.fall(planted(classes, bias=2000.0)))


@pytest.mark.parametrize(
    ("classes", "count"),
    [(2, 20), (5, 5000), *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in ((2, 5000), (5, 300)))],
)
@pytest.mark.long
def test_where_nothing_moved_most_models_stay_and_the_others_do_no_harm(classes, count):
    """Seeds are fixed, so that nothing is left to chance; tiny hospitals among them."""
    truth, gains, unchanged = planted(classes), [], 0
    for seed in range(6):
        posterior, _ = run(classes, count, truth, seed=seed)
        verdict = Verdict.of(posterior)
        gains.append(fall(classes, truth, verdict.share * posterior.mean))
        unchanged += verdict.moved == "kept"
        assert verdict.sentence().startswith("the hospital's labels") == (verdict.moved == "kept")
        assert (verdict.share == 0.0) == (verdict.moved == "kept")
    assert unchanged >= 3
    assert np.mean(gains) > -TOLERATED
    assert min(gains) > -0.02


def test_hardly_any_information_moves_nothing_far():
    """Fifty records beside noise of three hundred: what is delivered is not worse than is tolerated."""
    for seed in range(6):
        posterior, _ = run(2, 50, planted(2, bias=0.3), seed=seed, sigma=300.0)
        verdict = Verdict.of(posterior)
        assert fall(2, planted(2, bias=0.3), verdict.share * posterior.mean) > -4.0 * TOLERATED


def test_a_gain_that_would_be_printed_as_nothing_keeps_the_model():
    some, none = (Posterior(np.zeros((2, 2)), "biases", 5.0, gain, 1e-4) for gain in (0.002, 0.0003))
    assert (Verdict.of(some).moved, Verdict.of(some).share) == ("biases", 1.0)
    assert (Verdict.of(none).moved, Verdict.of(none).share) == ("kept", 0.0)


def test_a_model_that_is_sure_of_every_record_has_a_correction_too():
    """Of scores so large that nothing bends: records in other units than the model was fitted on."""
    square = np.diag([3.0, 1.0])
    assert np.isfinite(correcting(square, np.zeros((2, 2)), deviation=0.01, records=1000)).all()


@pytest.mark.parametrize(("gain", "deviation"), [(0.05, 0.01), (0.02, 0.05), (0.001, 0.1), (0.0, 0.2), (0.3, 0.001)])
def test_the_share_is_the_largest_that_is_safe(gain, deviation):
    def worst(share):
        return (2.0 - share) * share * gain - 0.6 * share * deviation + TOLERATED

    share = safe_share(gain, deviation)
    assert 0.0 < share <= 1.0
    assert all(worst(own) >= -1e-12 for own in np.linspace(0.0, share, 50))
    assert share == 1.0 or worst(min(1.0, share + 0.01)) < 0.0


def test_a_curvature_without_noise_is_the_hospitals_and_one_that_drowns_the_sources():
    rng = np.random.default_rng(0)
    one, other = (np.cov(rng.normal(size=(4, 30)) * [[1.0], [0.5], [2.0], [0.2]]) for _ in range(2))
    near, far = (correcting(other, one, deviation=width, records=10**9) for width in (1e-9, 1e6))
    np.testing.assert_allclose(near @ one @ near.T, other, rtol=0.05, atol=0.01 * np.abs(other).max())
    scale = far[0, 0]
    np.testing.assert_allclose(far, scale * np.eye(4), atol=1e-6)
    assert 0.5 < scale < 2.0


@pytest.mark.parametrize("narrow", [1.0, 0.1, 0.02])
def test_of_the_maps_that_explain_a_curvature_it_is_the_one_that_moves_least(narrow):
    """Components that scores nearly say already are narrow; a map that turns them into wide ones explains it, too."""
    rng = np.random.default_rng(1)
    axes, turn = (np.linalg.qr(np.eye(4) + width * rng.normal(size=(4, 4)))[0] for width in (5.0, 0.3))
    root = (axes * np.array([narrow, 0.5, 1.0, 2.0])) @ axes.T
    one, other = root @ root, turn @ root @ root @ turn.T
    by = correcting(other, one, deviation=1e-9, records=10**9)
    np.testing.assert_allclose(by, by.T, atol=1e-9)
    least = np.trace(one) + np.trace(other) - 2.0 * np.linalg.svd(root @ turn @ root, compute_uv=False).sum()
    assert np.trace((by - np.eye(4)) @ one @ (by - np.eye(4)).T) <= 1.05 * least


@pytest.mark.parametrize("classifier", [nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 3), nn.Tanh())])
def test_the_corrected_classifier_adds_the_correction_to_its_scores(classifier):
    features = torch.randn(200, 6, generator=torch.Generator().manual_seed(1))
    basis = fitted(classifier, features, components=4)
    with torch.no_grad():
        outputs = basis(features).double()
        correction = np.random.default_rng(2).normal(size=(3, outputs.shape[1] - 3 + 1))
        columns = torch.cat([torch.ones(200, 1), outputs[:, :-3]], dim=1)
        expected = outputs[:, -3:] + columns @ torch.from_numpy(correction).T
        made = corrected(basis, correction)(features)
    np.testing.assert_allclose(made.numpy(), expected.numpy(), atol=2e-5)
    np.testing.assert_allclose(columns[:, 3:].std(dim=0), 1.0, atol=0.02)


def test_scores_alone_have_no_head():
    scores = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    assert fitted(nn.Identity(), scores, components=4).axes is None
    many = torch.randn(50, 21)
    assert fitted(nn.Identity(), many, components=4).slopes is None
