"""The law of the noise, on the real source. Each test fails by chance with probability at most 1e-6.

`law_pvalue` is itself tested against noise that is slightly wrong, so a pass means something.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, chisquare, norm

from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.shared.core.noise.noise import grid_step

pytestmark = pytest.mark.statistical

ALPHA = 1e-6
COUNT = 1 << 21
STEPS = 2048  # grid steps for each sigma


@pytest.fixture(scope="module")
def drawn() -> NDArray[np.int64]:
    return SystemNoise().grid_gaussian((COUNT,), sigma=0.7, step=grid_step(0.7))


def law_pvalue(values: NDArray[np.int64]) -> float:
    """Chi-square of integers against round(2048 Z), in classes of 16 steps; the tails beyond 3.25 sigma in one each."""
    edges = np.r_[-np.inf, np.arange(-6664, 6665, 16) - 0.5, np.inf]
    probabilities = np.diff(norm.cdf(edges / STEPS))
    counts = np.bincount(np.searchsorted(edges, values) - 1, minlength=probabilities.size)
    assert probabilities.min() * values.size > 20
    return float(chisquare(counts, values.size * probabilities / probabilities.sum()).pvalue)


def test_law_of_the_values(drawn: NDArray[np.int64]) -> None:
    assert law_pvalue(drawn) > ALPHA


@pytest.mark.parametrize("flaw", ["sigma 1% off", "shifted by 2^-6 sigma", "logistic tails"])
def test_the_test_of_the_law_notices_small_flaws(flaw: str) -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal(COUNT)
    if flaw == "sigma 1% off":
        z *= 1.01
    elif flaw == "shifted by 2^-6 sigma":
        z += 2.0**-6
    else:
        z = rng.logistic(size=COUNT) * np.sqrt(3) / np.pi
    assert law_pvalue(np.rint(z * STEPS).astype(np.int64)) < ALPHA


def test_single_cells_near_the_centre(drawn: NDArray[np.int64]) -> None:
    cells = np.arange(-2000, 2001)
    inside = drawn[np.abs(drawn) <= 2000] + 2000
    probabilities = norm.cdf((cells + 0.5) / STEPS) - norm.cdf((cells - 0.5) / STEPS)
    expected = inside.size * probabilities / probabilities.sum()
    assert chisquare(np.bincount(inside, minlength=cells.size), expected).pvalue > ALPHA


@pytest.mark.parametrize("modulus", [2, 3, 64, 1000])
def test_low_digits_are_uniform_so_every_grid_point_is_used(drawn: NDArray[np.int64], modulus: int) -> None:
    # The sum over a residue class differs from 1 / modulus by less than exp(-2 (pi STEPS / modulus)^2).
    assert digits_pvalue(drawn, modulus) > ALPHA


def digits_pvalue(values: NDArray[np.int64], modulus: int) -> float:
    return float(chisquare(np.bincount(values % modulus, minlength=modulus)).pvalue)


def test_the_test_of_low_digits_notices_a_coarser_float() -> None:
    coarse = np.random.default_rng(0).standard_normal(COUNT).astype(np.float16).astype(np.float64)
    assert digits_pvalue(np.rint(coarse * STEPS).astype(np.int64), 64) < ALPHA


def test_tails_have_their_mass(drawn: NDArray[np.int64]) -> None:
    for sigmas in (3.0, 4.0, 4.5):
        limit = int(sigmas * STEPS)
        mass = 2 * norm.sf((limit + 0.5) / STEPS)
        assert binomtest(int((np.abs(drawn) > limit).sum()), COUNT, mass).pvalue > ALPHA / 3


def test_mean_and_variance(drawn: NDArray[np.int64]) -> None:
    z = drawn / STEPS
    reach = norm.isf(ALPHA / 4)
    assert abs(z.mean()) < reach / np.sqrt(COUNT)
    variance = 1 + 1 / 12 / STEPS**2  # rounding adds a uniform error (Sheppard)
    assert abs(z.var() - variance) < reach * np.sqrt(2 / COUNT)


@pytest.mark.parametrize(
    "transform", [np.asarray, np.abs, np.sign, lambda n: n % 2], ids=["n", "|n|", "sign", "parity"]
)
def test_values_are_independent_of_their_neighbours(drawn: NDArray[np.int64], transform: object) -> None:
    x = transform(drawn).astype(np.float64)  # type: ignore[operator]
    x -= x.mean()
    lags = [1, 2, 3, 4, 7, 8, 64, 1 << 13, 1 << 14, 1 << 16]  # some at the sampler's block sizes
    reach = norm.isf(ALPHA / 2 / len(lags))
    for lag in lags:
        correlation = (x[:-lag] * x[lag:]).mean() / x.var()
        assert abs(correlation) < reach / np.sqrt(COUNT - lag), lag


def test_releases_are_independent_of_each_other() -> None:
    source, step = SystemNoise(), grid_step(1.0)
    releases = np.stack([source.grid_gaussian((1 << 14,), sigma=1.0, step=step) / STEPS for _ in range(40)])
    pairs = np.triu_indices(40, k=1)
    correlations = np.corrcoef(releases)[pairs]
    assert np.abs(correlations).max() < norm.isf(ALPHA / 2 / correlations.size) / np.sqrt(1 << 14)
    # The same place in every release: a stuck prefix would show here.
    means = releases.mean(axis=0) * np.sqrt(40)
    assert np.abs(means).max() < norm.isf(ALPHA / 2 / means.size)
