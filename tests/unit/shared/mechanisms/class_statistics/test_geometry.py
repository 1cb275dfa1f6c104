"""The sensitivity of class statistics against a second derivation: a numerical search over all pairs of records."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize

from benchmarks.labelled import record_norm
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.models.free_weights import free_count, free_moment_weight

FREE = math.sqrt(0.5)
WEIGHTS = [
    Weights(classes, a, beta, kappa)
    for classes, a, beta, kappa in itertools.product(
        (2, 3), (0.0, 0.7, 2.0), (0.0, 0.3, FREE, 1.0, 3.0), (0.0, 0.5, 1.0)
    )
]


def vector(weights, label, u):
    """psi, with second moments as the whole matrix: its norm is svec's."""
    code = np.eye(weights.classes)[label] - weights.centring / weights.classes
    return np.concatenate([np.outer(code, [weights.count, *u]).ravel(), weights.moment * np.outer(u, u).ravel()])


def inside(u):
    return u / max(1.0, float(np.linalg.norm(u)))


@pytest.mark.long
@pytest.mark.parametrize(
    "weights",
    [
        pytest.param(each, marks=() if number % 8 == 0 else pytest.mark.exhaustive)
        for number, each in enumerate(WEIGHTS)
    ],
    ids=str,
)
def test_the_furthest_pair_is_as_far_as_is_said_and_no_pair_is_further(weights):
    stated = weights.sensitivity()
    rng = np.random.default_rng(4)
    worst = 0.0
    for dimension, labels in itertools.product((2, 4), ((0, 0), (0, 1))):

        def distance(flat, labels=labels, d=dimension):
            one, other = (vector(weights, k, inside(u)) for k, u in zip(labels, (flat[:d], flat[d:]), strict=True))
            return float(np.linalg.norm(one - other))

        distances = [distance(scale * rng.normal(size=2 * dimension)) for scale in (0.3, 1.0, 3.0) for _ in range(40)]
        for _ in range(3):  # climbing from random places
            start = rng.normal(size=2 * dimension)
            climbed = minimize(lambda flat: -distance(flat), start, method="Nelder-Mead", options={"maxiter": 800})
            distances.append(-climbed.fun)
        assert max(distances) <= stated * (1.0 + 1e-12)
        worst = max(worst, *distances)
    assert worst > stated * (1.0 - 1e-3)


def test_what_is_free_costs_nothing_and_a_little_more_does():
    for classes, kappa in itertools.product((2, 3, 10), (0.0, 0.5, 1.0)):
        alone = Weights(classes, 0.0, 0.0, kappa).sensitivity()
        beta = free_moment_weight(classes, kappa)
        assert Weights(classes, 0.0, beta, kappa).sensitivity() == pytest.approx(alone, rel=1e-12)
        assert Weights(classes, 0.0, 1.01 * beta, kappa).sensitivity() > alone * (1.0 + 1e-6)
        for moment in (0.0, beta, 2.0):
            base = Weights(classes, 0.0, moment, kappa)
            a = free_count(base)
            assert Weights(classes, a, moment, kappa).sensitivity() == pytest.approx(base.sensitivity(), rel=1e-12)
            assert Weights(classes, 1.01 * a + 0.01, moment, kappa).sensitivity() > base.sensitivity()


def test_the_figures_of_the_page():
    assert Weights(10, 1.0, 0.0, 0.0).sensitivity() == pytest.approx(2.0)
    assert Weights(10, FREE, FREE, 0.0).sensitivity() == pytest.approx(2.0)
    assert Weights(2, 0.0, 0.5, 1.0).sensitivity() == pytest.approx(math.sqrt(2.0))


def test_one_record_that_is_added_moves_the_sum_by_its_norm():
    for weights in WEIGHTS:
        norm = float(np.linalg.norm(vector(weights, 0, np.array([0.6, 0.8]))))
        assert record_norm(weights) == pytest.approx(norm)
        assert weights.sensitivity() <= 2.0 * record_norm(weights)
