"""Planted moves and frequencies are found, nothing is found where nothing is, by seeds whose rate of failure is stated.

A made source of 10 classes in 60 statistics; a target is 2,000 records of it. The law of the made records is Gaussian,
so a release of an unmoved target follows the likelihood of "as it is" exactly.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpswd.public_client.normalisation import inference
from dpswd.public_client.normalisation.inference import AS_IT_IS, BOTH, CHANNELS, FREQUENCIES, Observed
from dpswd.public_client.normalisation.reference import Reference, clipped
from dpswd.public_client.normalisation.verdict import UNDECIDED, weighed

CLASSES, CHANNELS_OF = 10, {"one": 10, "two": 20}
D = 60
DEVIATIONS = np.concatenate([np.repeat([0.0, 1.0], channels) for channels in CHANNELS_OF.values()])
RNG = np.random.default_rng(1)
MEANS = RNG.normal(size=(CLASSES, D))
MIXING = RNG.normal(size=(D, D)) / math.sqrt(D)


def _records(count, shares, rng):
    labels = rng.choice(CLASSES, size=count, p=shares)
    return 0.5 * MEANS[labels] + 0.6 * rng.normal(size=(count, D)) @ MIXING, labels


EVEN = np.full(CLASSES, 0.1)
SOURCE = _records(8000, EVEN, np.random.default_rng(2))
REFERENCE = Reference.of(*SOURCE, clip=2.0)


def _observed(records, rng, *, noise=0.01):
    rows = clipped((records - REFERENCE.center) * REFERENCE.scale, REFERENCE.radius) / REFERENCE.scale
    released = rows.mean(axis=0) - REFERENCE.mean + noise * rng.normal(size=D)
    return Observed(released, np.full(D, noise), len(records))


def _verdict(observed):
    return weighed(observed, REFERENCE, DEVIATIONS, CHANNELS_OF)


def _dense(observed, t, k, r, w):
    """By the whole covariance, a second derivation.

    Returns:
        The marginal likelihood without the cut at zero, the channels' posterior mean, and the law of the changes of
        frequencies, in roots of the frequencies, that add up to nothing.
    """
    along = REFERENCE.along @ REFERENCE.along.T + np.diag(REFERENCE.own)
    by = 1.0 / observed.records + 1.0 / REFERENCE.records
    moves = np.diag((t * np.where(DEVIATIONS > 0, k, 1.0)) ** 2) + r**2 * along
    roots = np.sqrt(REFERENCE.shares)
    classes = REFERENCE.classes.T * roots
    before = w**2 * (np.eye(CLASSES) - np.outer(roots, roots))
    covariance = by * along + np.diag(observed.noise**2) + moves + w**2 * classes @ classes.T
    evidence = stats.multivariate_normal(np.zeros(D), covariance).logpdf(observed.moved)
    evidence += 0.5 * D * math.log(2.0 * math.pi)  # explanations leave out what they share
    gain = before @ classes.T @ np.linalg.inv(covariance)
    return (
        evidence,
        moves @ np.linalg.solve(covariance, observed.moved),
        gain @ observed.moved,
        before - gain @ classes @ before,
    )


@pytest.mark.parametrize(("t", "k", "r"), [(0.0, 1.0, 0.0), (0.1, 3.0, 0.3), (0.05, 0.3, 1.0)])
def test_the_likelihood_is_that_of_the_whole_covariance(t, k, r):
    rng = np.random.default_rng(3)
    observed = _observed(_records(2000, EVEN, rng)[0] + 0.05, rng)
    explanation = inference._Likelihood(observed, REFERENCE, DEVIATIONS).at(t, k, r, (0.0,))[0]
    evidence, move, _, _ = _dense(observed, t, k, r, 0.0)
    assert explanation.evidence == pytest.approx(evidence, rel=1e-8)
    np.testing.assert_allclose(explanation.move, move, atol=1e-9)


@pytest.mark.parametrize(("t", "k", "r", "w"), [(0.0, 1.0, 0.0, 0.4), (0.05, 1.0, 0.3, 0.8)])
def test_no_frequency_is_negative(t, k, r, w):
    """Against draws of the same law: 400,000 of a fixed seed, of which a share of 0.01 has a deviation of 2%."""
    rng = np.random.default_rng(4)
    shares = np.array([0.19] * 5 + [0.01] * 5)
    observed = _observed(_records(2000, shares, rng)[0], rng, noise=0.05)
    explanation = inference._Likelihood(observed, REFERENCE, DEVIATIONS).at(t, k, r, (w,))[0]
    evidence, _, mean, covariance = _dense(observed, t, k, r, w)
    roots = np.sqrt(REFERENCE.shares)
    after = rng.multivariate_normal(mean, covariance, size=400_000)
    prior = rng.multivariate_normal(0.0 * roots, w**2 * (np.eye(CLASSES) - np.outer(roots, roots)), size=400_000)
    positive, prior_positive = ((draws > -roots).all(axis=1) for draws in (after, prior))
    expected = evidence + math.log(positive.mean() / prior_positive.mean())
    assert explanation.evidence == pytest.approx(expected, abs=0.6)  # moment matching is near, not exact: of 39 nats
    np.testing.assert_allclose(
        explanation.frequencies, REFERENCE.shares + roots * after[positive].mean(axis=0), atol=0.006
    )


def test_what_the_clip_has_taken_of_a_move_is_given_back():
    move = 3.0 * np.random.default_rng(5).normal(size=D)
    near = Reference.of(*SOURCE, clip=1.0)
    rows = clipped((near.rows + move) * near.scale, near.radius) / near.scale
    seen = rows.mean(axis=0) - near.mean
    restored = near.undone(seen, np.zeros(D), 10**9)
    error = [np.linalg.norm(each - move) / np.linalg.norm(move) for each in (seen, restored)]
    assert error[0] > 0.5
    assert error[1] < 0.25
    assert not near.undone(0.0 * move, np.ones(D), 1).any()


def test_noise_on_a_mean_near_the_radius_makes_no_far_move_of_a_near_one():
    """Against what no noise would mean; of fixed seeds. The move is four times as far as its clipped mean."""
    move = 3.0 * np.random.default_rng(5).normal(size=D)
    near, rng = Reference.of(SOURCE[0][:500], SOURCE[1][:500], clip=1.0), np.random.default_rng(6)
    seen = clipped((near.rows + move) * near.scale, near.radius).mean(axis=0) / near.scale - near.mean
    released, distance = seen + 0.1 * rng.normal(size=(40, D)), np.linalg.norm(move * near.scale)
    error = {
        noise: [
            math.log(np.linalg.norm(near.undone(one, np.full(D, noise), 10**9) * near.scale) / distance)
            for one in released
        ]
        for noise in (1e-6, 0.1)
    }
    assert np.mean(np.square(error[0.1])) < 0.4 * np.mean(np.square(error[1e-6]))
    assert abs(np.median(error[0.1])) < 0.15


@pytest.mark.long
def test_nothing_is_named_where_nothing_has_changed():
    """A Bayes factor of e^3 against the truth has probability e^-3 = 0.05 at most (Ville), and of e^30 none.

    Of 8 releases four may be misnamed in one of two thousand runs, then; the seeds of these are fixed.
    What is misnamed is hardly moved, as far as chance and noise allow.
    """
    misnamed = 0
    for seed in range(8):
        rng = np.random.default_rng(100 + seed)
        observed = _observed(_records(2000, EVEN, rng)[0], rng, noise=10.0 ** rng.uniform(-3, 0))
        verdict = _verdict(observed)
        assert not verdict.clear
        assert np.linalg.norm(verdict.move) < np.linalg.norm(observed.moved)
        misnamed += verdict.outcome not in (AS_IT_IS, UNDECIDED)
    assert misnamed <= 3


@pytest.mark.parametrize("size", [0.1, 1.0])
def test_planted_moves_are_estimated_within_noise(size):
    """The posterior mean's error is at most the release's own: chance and noise, 6 deviations of a chi law (1e-8)."""
    rng = np.random.default_rng(7)
    move = size * rng.normal(size=D)
    records = _records(2000, EVEN, rng)[0]
    observed = _observed(records + move, rng)
    verdict = _verdict(observed)
    assert verdict.outcome in (CHANNELS, BOTH)
    estimate, doubt, _ = inference.moved(observed, REFERENCE, DEVIATIONS, {CHANNELS: 0.0})
    covariance = REFERENCE.along @ REFERENCE.along.T + np.diag(REFERENCE.own)
    chance = math.sqrt(np.trace(covariance) * (1 / 2000 + 1 / 8000) + D * 0.01**2)
    clip = np.linalg.norm(
        clipped(records + move - REFERENCE.center, REFERENCE.radius).mean(axis=0) - REFERENCE.mean - move
    )
    assert np.linalg.norm(estimate - move) < 2.0 * chance + clip
    near = np.abs(estimate - move) < 4.0 * (doubt + clip / math.sqrt(D))
    assert near.mean() > 0.9


def test_planted_frequencies_are_estimated_and_nothing_is_called_moved():
    rng = np.random.default_rng(8)
    shares = np.array([0.2] * 5 + [0.0] * 5)
    verdict = _verdict(_observed(_records(2000, shares, rng)[0], rng))
    assert verdict.outcome == FREQUENCIES
    assert verdict.frequencies is not None
    assert np.all(verdict.frequencies > 0.0)
    assert verdict.frequencies.sum() == pytest.approx(1.0)
    # 7 deviations of a share of 0.2 among 2,000 (1e-11), beside the noise's part.
    np.testing.assert_allclose(verdict.frequencies, shares, atol=7 * math.sqrt(0.2 * 0.8 / 2000))


def test_frequencies_are_no_move_of_channels_where_both_have_changed():
    rng = np.random.default_rng(9)
    shares = np.array([0.2] * 5 + [0.0] * 5)
    move = np.where(np.arange(D) % 7 == 0, 0.5, 0.0)
    observed = _observed(_records(4000, shares, rng)[0] + move, rng, noise=0.003)
    verdict = _verdict(observed)
    assert verdict.channels
    without, _, _ = inference.moved(observed, REFERENCE, DEVIATIONS, {CHANNELS: 0.0})
    beside, _, _ = inference.moved(observed, REFERENCE, DEVIATIONS, verdict.evidence)
    assert np.linalg.norm(beside - move) < 0.7 * np.linalg.norm(without - move)


def test_a_release_that_is_mostly_noise_decides_nothing_and_hardly_moves():
    """The mean under all explanations: little is known, so little is moved."""
    rng = np.random.default_rng(10)
    for noise in (1.0, 10.0):
        observed = _observed(_records(300, EVEN, rng)[0] + 0.1, rng, noise=noise)
        verdict = _verdict(observed)
        assert verdict.outcome in (AS_IT_IS, UNDECIDED)
        assert np.linalg.norm(verdict.move) < 0.2 * np.linalg.norm(observed.moved)
        assert "kept" not in str(verdict)  # whoever shows it says so, once


def test_weak_layers_are_hardly_moved():
    rng = np.random.default_rng(11)
    observed = _observed(_records(500, EVEN, rng)[0], rng, noise=1.0)
    move, doubt, _ = inference.moved(observed, REFERENCE, DEVIATIONS, {CHANNELS: 0.0})
    assert np.linalg.norm(move) < 0.2 * np.linalg.norm(observed.moved)
    assert np.all(doubt > 0.0)


@pytest.mark.parametrize("doubt", [0.01, 1.0, 10.0])
def test_variances_are_read_as_far_as_their_noise_lets_them(doubt):
    """Noise may make one negative; the posterior's deviations are those of its errors, within a factor of two."""
    rng = np.random.default_rng(12)
    logs = 0.4 * rng.normal(size=400)
    measured = np.exp(logs) + doubt * rng.normal(size=400)
    mean, about = inference.log_variances(measured, np.full(400, doubt))
    errors = np.sqrt(np.mean((mean - logs) ** 2))
    assert errors < min(1.1 * 0.4, 0.05 + doubt)
    assert np.sqrt(np.mean(about**2)) == pytest.approx(max(errors, 0.04), rel=0.5)
