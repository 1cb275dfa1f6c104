"""The sensitivity of class statistics against a second derivation: a numerical search over all pairs of records."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from shared.mechanisms.class_statistics.geometry import (
    FREE_MOMENT_WEIGHT,
    free_count_weight,
    record_norm,
    sensitivity,
)

WEIGHTS = [(a, beta) for a in (0.0, 0.3, 0.7, 1.0, 2.0) for beta in (0.0, 0.2, FREE_MOMENT_WEIGHT, 0.8, 1.0, 3.0)]


def vector(label, u, *, a, beta, classes=3):
    """psi, with second moments as the whole matrix: its norm is svec's."""
    own = np.zeros((classes, 1 + len(u)))
    own[label] = [a, *u]
    return np.concatenate([own.ravel(), beta * np.outer(u, u).ravel()])


def inside(u):
    return u / max(1.0, float(np.linalg.norm(u)))


@pytest.mark.parametrize(("a", "beta"), WEIGHTS)
def test_the_furthest_pair_is_as_far_as_is_said_and_no_pair_is_further(a, beta):
    stated = sensitivity(count_weight=a, moment_weight=beta)
    rng = np.random.default_rng(4)
    worst = 0.0
    for dimension, labels in ((2, (0, 0)), (2, (0, 1)), (4, (0, 0)), (4, (0, 1))):

        def distance(flat, labels=labels, d=dimension):
            one, other = (
                vector(label, inside(u), a=a, beta=beta) for label, u in zip(labels, (flat[:d], flat[d:]), strict=True)
            )
            return float(np.linalg.norm(one - other))

        for scale in (0.3, 1.0, 3.0):
            for _ in range(60):
                found = distance(scale * rng.normal(size=2 * dimension))
                assert found <= stated * (1.0 + 1e-12)
                worst = max(worst, found)
        for _ in range(6):  # climbing from random places
            start = rng.normal(size=2 * dimension)
            climbed = minimize(lambda flat: -distance(flat), start, method="Nelder-Mead", options={"maxiter": 2000})
            assert -climbed.fun <= stated * (1.0 + 1e-12)
            worst = max(worst, -climbed.fun)
    assert worst > stated * (1.0 - 1e-3)


def test_what_is_free_costs_nothing_and_a_little_more_does():
    assert sensitivity(count_weight=0.0, moment_weight=0.0) == pytest.approx(2.0, rel=1e-12)
    for beta in (0.0, 0.4, FREE_MOMENT_WEIGHT, 1.0, 2.0):
        a, alone = free_count_weight(beta), sensitivity(count_weight=0.0, moment_weight=beta)
        assert sensitivity(count_weight=a, moment_weight=beta) == pytest.approx(alone, rel=1e-12)
        assert sensitivity(count_weight=1.01 * a + 0.01, moment_weight=beta) > alone
    assert free_count_weight(FREE_MOMENT_WEIGHT) == pytest.approx(math.sqrt(0.5))
    assert sensitivity(count_weight=0.0, moment_weight=1.01 * FREE_MOMENT_WEIGHT) > 2.0


def test_one_record_that_is_added_moves_the_sum_by_its_norm():
    for a, beta in WEIGHTS:
        u = np.array([0.6, 0.8])
        assert record_norm(count_weight=a, moment_weight=beta) == pytest.approx(
            float(np.linalg.norm(vector(0, u, a=a, beta=beta)))
        )
        assert sensitivity(count_weight=a, moment_weight=beta) <= 2.0 * record_norm(count_weight=a, moment_weight=beta)
