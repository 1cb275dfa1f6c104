"""Directions are uniform on the sphere, and H follows the paper's Lemma 1. False-alarm rate at most 1e-6 each."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from scipy.special import hyp1f1
from scipy.stats import beta, kstest, norm

from dpswd.shared.core.noise.directions import directions

pytestmark = pytest.mark.statistical

ALPHA = 1e-6


@pytest.mark.parametrize("d", [2, 3, 20, 320])
def test_one_squared_projection_is_beta(d: int) -> None:
    U = directions(os.urandom(32), d, 20_000, dtype=torch.float64).numpy()
    oblique = np.ones(d) / np.sqrt(d)
    for z in (np.eye(d)[0], np.eye(d)[-1], oblique):
        # DP-SWD, Lemma 1: (z u)^2 ~ Beta(1/2, (d - 1) / 2) for every unit z.
        assert kstest((z @ U) ** 2, beta(0.5, (d - 1) / 2).cdf).pvalue > ALPHA / 3


def test_the_test_of_the_law_notices_columns_that_are_not_uniform() -> None:
    cube = np.random.default_rng(0).uniform(-1, 1, (3, 20_000))
    cube /= np.linalg.norm(cube, axis=0)
    assert kstest(cube[0] ** 2, beta(0.5, 1.0).cdf).pvalue < ALPHA


@pytest.mark.parametrize(("d", "k"), [(4, 3), (50, 10)])
def test_h_has_the_moments_that_the_accountant_uses(d: int, k: int) -> None:
    rounds = 20_000
    U = directions(os.urandom(32), d, k * rounds, dtype=torch.float64)
    z = torch.zeros(d, dtype=torch.float64)
    z[:2] = torch.tensor([0.6, -0.8])
    H = (z @ U).pow(2).reshape(rounds, k).sum(dim=1).numpy()
    reach = norm.isf(ALPHA / 8)
    assert abs(H.mean() - k / d) < reach * H.std() / np.sqrt(rounds)
    # E exp(t H) = 1F1(1/2; d/2; t)^k: the identity on which the exact curve stands (docs/privacy, 2).
    for t in (0.5, 1.0, 2.0):
        values = np.exp(t * H)
        assert abs(values.mean() - hyp1f1(0.5, d / 2, t) ** k) < reach * values.std() / np.sqrt(rounds)


def test_columns_are_independent() -> None:
    d, k = 30, 4000
    U = directions(os.urandom(32), d, k, dtype=torch.float64)
    inner = (U[:, :-1] * U[:, 1:]).sum(dim=0).numpy()  # of neighbours: (inner)^2 ~ Beta(1/2, (d - 1) / 2), any sign
    assert kstest(inner**2, beta(0.5, (d - 1) / 2).cdf).pvalue > ALPHA / 2
    assert abs(np.sign(inner).mean()) < norm.isf(ALPHA / 4) / np.sqrt(k - 1)
