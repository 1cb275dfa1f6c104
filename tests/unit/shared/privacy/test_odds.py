"""What an attacker finds out, held against exact values that share nothing with the code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpswd.shared.accounting import pld
from dpswd.shared.accounting.odds import FALSE_POSITIVES, PrivacyCurve, composed
from dpswd.shared.core.privacy.events import BoundedSum, QuantileCoefficients, RowProjections, RunEvent, StepEvent

ROOM = 1e-3
"""Relative: how far a bound may lie above the exact value."""


def summed(sigma: float, *, records: int = 1000, batch: int = 1000) -> StepEvent:
    """A sum of sensitivity 1: a Gaussian that is shifted by 1/sigma deviations."""
    return StepEvent(records, batch, (BoundedSum(5, 1.0, 1, sigma),))


def between(exact: float, value: float) -> bool:
    return exact - 1e-9 <= value <= exact * (1 + ROOM) + 1e-6


@pytest.mark.parametrize("records", [1, 2, 3, 10])
@pytest.mark.parametrize(
    ("runs", "shift"),
    [
        ([(2.0, 1)], 0.5),
        ([(0.8, 1)], 1.25),
        ([(2.0, 1), (3.0, 4), (1.0, 1)], math.sqrt(0.25 + 4 / 9 + 1.0)),
        ([(20.0, 900)], 1.5),
    ],
)
def test_gaussian_runs_are_one_gaussian_whose_shift_grows_with_the_records(runs, shift, records):
    """Known in closed form: Dong, Roth and Su 2022, corollary 2.1 and theorem 2.14."""
    odds = composed(RunEvent(summed(sigma), steps) for sigma, steps in runs).odds(records=records)
    moved = records * shift
    assert between(2 * norm.cdf(moved / 2) - 1, odds.advantage)
    hits = norm.cdf(norm.ppf(FALSE_POSITIVES) + moved)
    assert between(hits, odds.true_positives)
    for prior in (0.5, 0.01):
        sure = prior * hits / (prior * hits + (1 - prior) * FALSE_POSITIVES)
        assert between(sure, odds.posterior(prior))


def test_one_step_of_a_secret_sample_is_the_mixture_that_it_is():
    """The attacker's best test of N(0, 1) against a mixture, by quadrature and by where its threshold lies."""
    gamma, shift = 0.05, 1.25
    odds = composed([RunEvent(summed(1 / shift, batch=50), 1)]).odds()

    def with_him(y: float) -> float:
        return (1 - gamma) * norm.pdf(y) + gamma * norm.pdf(y - shift)

    distance, _ = quad(lambda y: 0.5 * abs(with_him(y) - norm.pdf(y)), -12, 14, points=[shift / 2], epsabs=1e-12)
    assert between(distance, odds.advantage)
    at = norm.isf(FALSE_POSITIVES)
    # Sure only of what the sample shows: the pair is symmetric, and below its kink this test is the best one.
    hits = (1 - gamma) * norm.sf(at) + gamma * norm.sf(at - shift)
    assert between(hits, odds.true_positives)


def test_two_steps_of_a_secret_sample_by_another_grid():
    """The losses of both, on a grid of observations and not of losses."""
    gamma, shift = 0.2, 1.0
    y = np.linspace(-9.0, 10.0, 3801)
    width = y[1] - y[0]
    loss = np.log1p(gamma * np.expm1(shift * y - shift**2 / 2))
    # The symmetric pair: above 0 as the mixture against N(0, 1), below 0 its mirror image.
    up = loss > 0
    x = np.concatenate([loss[up], -loss[up]])
    mixed = (1 - gamma) * norm.pdf(y[up]) + gamma * norm.pdf(y[up] - shift)
    p = np.concatenate([mixed, norm.pdf(y[up])]) * width
    q = np.concatenate([norm.pdf(y[up]), mixed]) * width
    rest = 1.0 - p.sum()
    x, p, q = np.append(x, 0.0), np.append(p, rest), np.append(q, rest)
    apart = np.maximum(np.multiply.outer(p, p) - np.multiply.outer(q, q), 0.0).sum()
    odds = composed([RunEvent(summed(1 / shift, batch=200), 2)]).odds()
    assert apart == pytest.approx(odds.advantage, rel=3e-3)


@pytest.mark.parametrize(
    ("step", "steps"),
    [
        (summed(2.0, batch=50), 200),
        (StepEvent(4096, 256, (RowProjections(4, 20, 8.0),)), 40),
        (StepEvent(898, 898, (QuantileCoefficients(64, 20, 8, 2.0),)), 3),
    ],
)
def test_the_curve_runs_through_what_the_accountant_charges(step, steps):
    curve = composed([RunEvent(step, steps)])
    for delta in (1e-2, 1e-3, 1e-5):
        epsilon = pld.epsilon(step, steps, delta)
        assert np.interp(epsilon, curve.epsilons, curve.deltas) == pytest.approx(delta, rel=5e-3)


def test_the_order_of_runs_and_how_they_are_cut_does_not_matter():
    whole, again = [RunEvent(summed(3.0), 4)], [RunEvent(summed(3.0), 1), RunEvent(summed(3.0), 3)]
    assert composed(whole).odds() == composed(again[::-1]).odds()


def test_what_a_budget_promises_is_the_best_attacker_of_epsilon_and_delta():
    epsilon, delta = 1.0, 1e-3
    odds = PrivacyCurve.promised(epsilon, delta).odds()
    assert odds.true_positives == pytest.approx(delta + math.e * FALSE_POSITIVES)
    # Where both lines meet: Kairouz, Oh and Viswanath 2015, remark 4.
    assert odds.advantage == pytest.approx(1 - 2 * (1 - delta) / (1 + math.e))


def test_the_ends():
    nothing = composed([]).odds(records=5)
    assert (nothing.advantage, nothing.true_positives) == (0.0, FALSE_POSITIVES)
    assert nothing.posterior(0.01) == pytest.approx(0.01)
    for everything in (PrivacyCurve.promised(1000.0, 1e-5), composed([RunEvent(summed(0.01), 1)])):
        assert (everything.odds().advantage, everything.odds().true_positives) == (1.0, 1.0)
