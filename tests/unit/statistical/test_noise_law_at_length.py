"""The law of the noise over a billion values of the real source, against the exact law; in `make test-exhaustive`.

What a billion values can show is shown in `make test` by counts drawn from laws that are slightly wrong. All questions
together fail by chance with probability at most 1e-6.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, binomtest, chi2, norm

from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.shared.core.noise.grid_gaussian import GRID_EXPONENT, gaussian_weights
from dpswd.shared.core.noise.noise import grid_step

pytestmark = pytest.mark.statistical

ALPHA = 1e-6
COUNT = 10**9
CHUNK = 1 << 22  # values of one release; each has a key of its own
STEPS = 1 << GRID_EXPONENT  # grid steps for each sigma
FARTHEST = 16 * STEPS
LAGS = (1, 2, 64)
FEWEST = 25  # values expected in a class


def exact() -> NDArray[np.float64]:
    """Probabilities of -FARTHEST, ..., FARTHEST from the normal distribution's tails, not from the sampler's table."""
    upper = norm.sf((np.arange(FARTHEST + 2) - 0.5) / STEPS)
    right = upper[:-1] - upper[1:]
    right[0] = norm.cdf(0.5 / STEPS) - norm.cdf(-0.5 / STEPS)
    return np.r_[right[:0:-1], right]


def questions(counts: NDArray[np.int64], law: NDArray[np.float64]) -> dict[str, float]:
    """p-values, by what is asked of the counts of -FARTHEST, ..., FARTHEST."""
    n, cells = int(counts.sum()), np.arange(-FARTHEST, FARTHEST + 1)
    answers = {
        "single cells": _chi_square(counts, n * law),
        "worst cell": _worst(counts, n, law),
        "classes of 256 cells": _chi_square(_by_256(counts), n * _by_256(law)),
    }
    for power in (1, 2, 3, 4):
        z = (cells / STEPS) ** power
        mean = float(law @ z)
        deviation = math.sqrt((float(law @ z**2) - mean**2) / n)
        answers[f"moment {power}"] = 2 * norm.sf(abs(float(counts @ z) / n - mean) / deviation)
    for sigmas in (4.0, 5.0, 5.5, 6.0):
        beyond = np.abs(cells) > sigmas * STEPS
        answers[f"beyond {sigmas:g} sigma"] = binomtest(int(counts[beyond].sum()), n, float(law[beyond].sum())).pvalue
    for modulus in (2, 3, 64, 1000):
        residues = np.bincount(cells % modulus, weights=counts, minlength=modulus)
        answers[f"remainders of {modulus}"] = _chi_square(residues, np.full(modulus, n / modulus))
    return answers


def _worst(counts: NDArray[np.int64], n: int, law: NDArray[np.float64]) -> float:
    """The cell that is least likely, by Bonferroni's inequality over all that values are expected in."""
    there = n * law >= FEWEST
    below = binom.cdf(counts[there], n, law[there])
    above = binom.sf(counts[there] - 1, n, law[there])
    return min(1.0, 2 * int(there.sum()) * float(np.minimum(below, above).min()))


def _by_256(values: NDArray) -> NDArray:
    return np.add.reduceat(values, np.arange(0, values.size, 256))


def _chi_square(counts: NDArray, expected: NDArray[np.float64]) -> float:
    """Classes of fewer than FEWEST values are put together, on each side."""
    enough = np.flatnonzero(expected >= FEWEST)
    first, last = enough[0], enough[-1] + 1
    observed, grouped = (
        np.r_[values[:first].sum(), values[first:last], values[last:].sum()] for values in (counts, expected)
    )
    filled = grouped >= 1
    statistic = float(((observed[filled] - grouped[filled]) ** 2 / grouped[filled]).sum())
    return float(chi2.sf(statistic, filled.sum() - 1))


def test_the_exact_law_is_the_table_s() -> None:
    """Two derivations: scipy's normal distribution, and the sampler's series in 128-bit integers."""
    weights = np.array([weight / 2.0**128 for weight in gaussian_weights(GRID_EXPONENT)])
    law = exact()[FARTHEST:]
    size = min(weights.size, law.size)
    np.testing.assert_allclose(weights[:size], law[:size], rtol=1e-9, atol=1e-18)


FLAWS = {
    "sigma 0.03 % too small": lambda law: _of_normal(1 - 3e-4, 0.0),
    "shifted by 2^-12 sigma": lambda law: _of_normal(1.0, 2.0**-12),
    "nothing beyond 5.5 sigma": lambda law: np.where(np.abs(np.arange(-FARTHEST, FARTHEST + 1)) > 5.5 * STEPS, 0, law),
    "one cell has 3 % too much": lambda law: law + 0.03 * law[FARTHEST + 100] * (np.arange(law.size) == FARTHEST + 100),
    "even numbers 0.05 % too often": lambda law: law * (1 + 5e-4 * (np.arange(law.size) % 2 == FARTHEST % 2)),
}


def _of_normal(scale: float, shift: float) -> NDArray[np.float64]:
    edges = (np.arange(-FARTHEST, FARTHEST + 2) - 0.5) / STEPS
    return np.diff(norm.cdf((edges - shift) / scale))


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_billion_values_show_small_flaws(flaw: str) -> None:
    wrong = FLAWS[flaw](exact())
    counts = np.random.default_rng(0).multinomial(COUNT, wrong / wrong.sum())
    answers = questions(counts, exact())
    assert min(answers.values()) < ALPHA / (len(answers) + len(LAGS)), answers


def test_counts_of_the_exact_law_pass() -> None:
    law = exact()
    answers = questions(np.random.default_rng(0).multinomial(COUNT, law / law.sum()), law)
    assert min(answers.values()) > ALPHA / (len(answers) + len(LAGS)), answers


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_a_billion_values_have_the_exact_law() -> None:
    """In memory is one release of four million at a time; correlations are within a release."""
    source, counts, products, pairs = SystemNoise(), np.zeros(2 * FARTHEST + 1, np.int64), dict.fromkeys(LAGS, 0.0), 0
    left = COUNT
    while left:
        values = source.grid_gaussian((min(CHUNK, left),), sigma=0.7, step=grid_step(0.7))
        left -= values.size
        counts += np.bincount(values + FARTHEST, minlength=counts.size)
        z = values.astype(np.float64) / STEPS
        for lag in LAGS:
            products[lag] += float(z[:-lag] @ z[lag:])
        pairs += values.size
    answers = questions(counts, exact())
    for lag, total in products.items():
        answers[f"neighbours at {lag}"] = 2 * norm.sf(abs(total) / math.sqrt(pairs))
    print(f"\n{counts.sum():,} values, largest {np.abs(np.flatnonzero(counts) - FARTHEST).max() / STEPS:.2f} sigma")
    for name, pvalue in answers.items():
        print(f"  {name}: p = {pvalue:.3g}")
    assert min(answers.values()) > ALPHA / len(answers)
