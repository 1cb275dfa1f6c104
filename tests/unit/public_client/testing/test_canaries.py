"""The two bounds of one run hold with their confidence. Seeds are fixed: nothing fails by chance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from dpswd.public_client.testing.canaries import CANARIES, DESIGNS, Reply, divided, guess_p_value, one_run, units
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.privacy.events import BoundedSum, RunEvent, StepEvent


def event(sigma: float = 4.0) -> RunEvent:
    part = BoundedSum(values=3, sensitivity=1.0, changed=3, sigma=sigma, grid_step=0.0)
    return RunEvent(StepEvent(records=CANARIES, batch=CANARIES, parts=(part,)), steps=1)


def reply(theta: float, rho: float, rng: np.random.Generator, values: int = 500) -> Reply:
    mean = torch.from_numpy(rng.normal(size=values))
    released = theta * mean + rho * torch.from_numpy(rng.normal(size=values))
    return Reply(event(), released, mean[None], torch.ones(1), torch.ones(1))


@pytest.mark.parametrize(("theta", "rho"), [(1.0, 1.0), (1.0, 0.5), (2.0, 1.0), (0.7, 1.3)])
def test_the_factor_is_below_the_truth_with_its_confidence(theta, rho):
    rng = np.random.default_rng(5)
    factors = [reply(theta, rho, rng).factor(0.95) for _ in range(300)]
    assert sum(factor > theta / rho for factor in factors) <= 300 * 0.05  # most: both limits are exact, and added up
    assert np.mean(factors) > 0.75 * theta / rho


def test_noise_of_another_shape_lowers_the_bound():
    rng = np.random.default_rng(6)
    sound = reply(1.0, 1.0, rng)
    misfit = Reply(
        sound.event, sound.values + 0.5 * torch.sin(torch.arange(500.0)), sound.blocks, sound.coins, sound.scores
    )
    assert misfit.factor(0.95) < sound.factor(0.95)


def test_the_lower_bound_is_the_epsilon_of_the_factor():
    one = reply(1.0, 1e-7, np.random.default_rng(7))
    assert one.least(event(), 1e-5, 0.95) > 50.0
    assert divided(event(), 2.0).step.parts[0].sigma == 2.0
    assert epsilon_of(divided(event(), 1.0), 1e-5) == epsilon_of(event(), 1e-5)


@given(st.integers(1, 40), st.floats(0.0, 3.0), st.integers(0, 40))
def test_without_delta_the_p_value_is_a_binomial_tail(guesses, epsilon, right):
    right = min(right, guesses)
    rate = 1.0 / (1.0 + math.exp(-epsilon))
    expected = sum(binom.pmf(v, guesses, rate) for v in range(right, guesses + 1))
    assert guess_p_value(guesses, guesses, right, epsilon, 0.0) == pytest.approx(min(1.0, expected), abs=1e-9)


def test_delta_adds_what_the_theorem_says():
    """Theorem 5.2 by its own words: f(v) + 2 m delta max_i (f(v - i) - f(v)) / i."""
    m, r, v, epsilon, delta = 50, 12, 10, 0.7, 1e-3

    def tail(least: int) -> float:
        return float(binom.sf(least - 1, r, 1.0 / (1.0 + math.exp(-epsilon))))

    expected = tail(v) + 2 * m * delta * max((tail(v - i) - tail(v)) / i for i in range(1, m + 1))
    assert guess_p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_guesses_never_prove_more_than_a_gaussian_mechanism_spends():
    """mu = 1 at delta 1e-3: epsilon is 3.3 by the exact profile (Balle and Wang 2018); 200 runs of 300 coins."""
    rng, mu, delta = np.random.default_rng(8), 1.0, 1e-3
    exact = next(
        e
        for e in np.arange(0.0, 9.0, 0.01)
        if norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu) < delta
    )
    bounds = []
    for _ in range(200):
        coins = torch.from_numpy(rng.choice([-1.0, 1.0], 300))
        scores = coins * mu / 2 + torch.from_numpy(rng.normal(size=300))
        bounds.append(Reply(event(), scores, scores[None], coins, scores).guessed(delta, 0.95))
    assert sum(bound > exact for bound in bounds) <= 10
    assert np.median(bounds) > 0.3


@pytest.mark.parametrize("groups", [1, 3])
def test_canaries_of_a_class_disturb_neither_each_other_nor_the_other_records(groups):
    coins = torch.tensor([1.0, -1.0, 1.0])
    rows = units(coins, groups)
    assert torch.allclose(torch.linalg.vector_norm(rows, dim=1), torch.ones(6))
    assert torch.equal(rows[3:], rows[3:4].expand(3, -1))
    assert not torch.any(rows[:3] @ rows[3])
    for one, other in itertools.combinations(range(3), 2):
        assert abs(float(rows[one] @ rows[other])) == (groups == 3)


@pytest.mark.parametrize("name", ["evaluation", "feature_sums", "class_statistics"])
def test_a_coin_moves_the_mean_as_far_as_is_priced_and_along_what_no_other_moves(name):
    """Its own share of the distance that the sensitivity allows: all but the correct predictions' part."""
    reply = one_run(name, epsilon=1.0, delta=1e-5, seed=0)
    design = DESIGNS[name]()
    coins = torch.ones(CANARIES, dtype=torch.float64)

    def moved(number: int) -> torch.Tensor:
        turned = coins.clone()
        turned[number] = -1.0
        apart = design.means(coins, None, None) - design.means(turned, None, None)
        return apart.sum(dim=0)

    first, second = moved(0), moved(1)
    furthest = max(part.sensitivity for part in reply.event.step.parts)
    assert float(torch.linalg.vector_norm(first)) == pytest.approx(furthest, rel=0.02)
    assert float(first @ second) == pytest.approx(0.0, abs=1e-9)
