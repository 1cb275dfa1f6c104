"""T2 attacked: exact inner moments of random and adversarial triples must stay below the proved bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpswd.shared.accounting.ternary import _then_gaussian, log_second_moment
from dpswd.shared.core.privacy.events import Part, QuantileCoefficients, RowProjections, SanitizedGradient, StepEvent

DRAWS = 4000


def directions(rng: np.random.Generator, d: int, k: int) -> np.ndarray:
    u = rng.standard_normal((DRAWS, d, k))
    return u / np.linalg.norm(u, axis=1, keepdims=True)


def inner(mp: np.ndarray, mq: np.ndarray, m0: np.ndarray, sigma: float) -> np.ndarray:
    """E_{q0} ((p - q)/q0)^2 for each draw of U: means of shape (draws, values)."""
    a, b = (mp - m0) / sigma, (mq - m0) / sigma
    return np.exp((a * a).sum(1)) + np.exp((b * b).sum(1)) - 2 * np.exp((a * b).sum(1))


def half_ball(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    x = rng.standard_normal(shape)
    x /= 2 * np.linalg.norm(x, axis=1, keepdims=True)
    return x * rng.uniform(0, 1, (shape[0], 1)) ** rng.choice([0.0, 0.0, 0.2])


def bound(*parts: Part, batch: int = 20) -> float:
    return math.exp(log_second_moment(StepEvent(records=100, batch=batch, parts=parts)))


@pytest.mark.statistical
@pytest.mark.parametrize("grid", [0.0, 2.0**-4])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_rows_stay_below_the_bound(sigma: float, grid: float) -> None:
    """Exact over the noise, 4000 draws of U, five standard errors: false alarms below 1e-5 over all triples."""
    rng = np.random.default_rng(2)
    d, k = 3, 4
    u = directions(rng, d, k)
    limit = bound(RowProjections(d, k, sigma, grid * sigma))
    closest = 0.0
    for trial in range(60):
        x = half_ball(rng, (3, d))
        if trial < 20:  # antipodal pairs reach the largest distance
            x[1] = -x[0]
        values = np.einsum("nd,rdk->rnk", x, u)
        if grid:
            values = np.round(values / (grid * sigma)) * grid * sigma
        draws = inner(values[:, 0], values[:, 1], values[:, 2], sigma)
        assert draws.mean() - 5 * draws.std() / math.sqrt(DRAWS) <= limit
        closest = max(closest, draws.mean() / limit)
    assert closest > 0.2  # the attack is not a toy


@pytest.mark.statistical
@pytest.mark.parametrize("sigma", [0.4, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (1.0, 4.0))])
@pytest.mark.long
def test_sorted_coefficients_stay_below_the_bound(sigma: float) -> None:
    """Sorting is not linear: three batches that differ in one row, cosine coefficients of sorted projections."""
    rng = np.random.default_rng(3)
    d, k, b, order = 2, 3, 8, 2
    u = directions(rng, d, k)
    r = np.arange(b)
    basis = np.stack([np.full(b, 1 / math.sqrt(b)), math.sqrt(2 / b) * np.cos(math.pi * (r + 0.5) / b)], axis=1)
    limit = bound(QuantileCoefficients(d, k, order, sigma), batch=b)
    closest = 0.0
    for trial in range(60):
        rest = half_ball(rng, (b - 1, d)) * (0.01 if trial % 3 == 0 else 1.0)
        x = half_ball(rng, (3, d))
        if trial % 2:
            x[1] = -x[0]
        means = []
        for row in x:
            sorted_values = np.sort(np.einsum("nd,rdk->rnk", np.vstack([rest, row]), u), axis=1)
            means.append(np.einsum("bl,rbk->rlk", basis, sorted_values).reshape(DRAWS, -1))
        draws = inner(*means, sigma)
        assert draws.mean() - 5 * draws.std() / math.sqrt(DRAWS) <= limit
        closest = max(closest, draws.mean() / limit)
    assert closest > 0.02


@pytest.mark.parametrize("squared", [1e-4, 0.05, 1.0])
def test_an_adaptive_gaussian_stays_below_the_bound(squared: float) -> None:
    """A gradient whose lengths are chosen after seeing the first output: the worst vertex at every outcome.

    The first release is a one-dimensional Gaussian with collinear triples; its outcome is integrated on a grid.
    """
    y = np.linspace(-12, 12, 4001)
    density = np.exp(-y * y / 2) / math.sqrt(2 * math.pi) * (y[1] - y[0])  # q0 = N(0, 1)
    w = math.exp(squared / 2)
    for s in (0.02, 0.3, 1.0):
        for mp, mq in ((s, -s), (s, 0.0), (s, s / 2), (0.0, 0.0)):
            p, q = np.exp(mp * y - mp * mp / 2), np.exp(mq * y - mq * mq / 2)
            first = float(((p - q) ** 2 * density).sum())
            second = float(((p * p + q * q) / 2 * density).sum())
            worst = np.full_like(y, -np.inf)
            for big_p in (1.0, w):
                for big_q in (1.0, w):
                    value = (p * big_p) ** 2 + (q * big_q) ** 2 - 2 * p * big_p * q * big_q / w
                    worst = np.maximum(worst, value)
            joint, moment = _then_gaussian(first, second, squared)
            assert float((worst * density).sum()) <= joint * (1 + 1e-9)
            assert moment == pytest.approx(second * w * w)


def test_one_corner_reaches_the_bound_for_rows() -> None:
    """x = -x', t = x': f = e^S - 1, so m(1) - 1 is the supremum, not only a bound."""
    step = StepEvent(records=100, batch=20, parts=(RowProjections(3, 4, 0.7),))
    assert math.exp(log_second_moment(step)) == pytest.approx(math.expm1(float(step.shift().log_moment(2.0))), rel=1e-9)


def test_the_scalar_inequality_behind_the_bound() -> None:
    """e^{mr} + e^{mq} - 2 e^{mE} <= e^m - 1 with r = sin^2 a, q = sin^2 b, E = -sin a sin b cos(a+b)."""
    a, b = np.linspace(0, math.pi / 2, 301)[:, None], np.linspace(0, math.pi / 2, 301)[None, :]
    r, q, e = np.sin(a) ** 2, np.sin(b) ** 2, -np.sin(a) * np.sin(b) * np.cos(a + b)
    for m in (1e-6, 1e-2, 0.3, 1.0, 4.0, 30.0, 300.0):
        scaled = np.exp(m * (r - 1)) + np.exp(m * (q - 1)) - 2 * np.exp(m * (e - 1))
        assert np.all(scaled <= -math.expm1(-m) * (1 + 1e-9))


def test_first_order_is_the_squared_distance() -> None:
    """For large noise T2 tends to E S, the distance of p and q; a factor of two here would cost sqrt 2 in sigma."""
    rows = RowProjections(784, 200, 1e4)
    coefficients = QuantileCoefficients(784, 200, 2, 1e3)
    gradient = SanitizedGradient(100, 1.0, 1e3)
    for parts in ((rows,), (coefficients,), (gradient,), (rows, gradient), (coefficients, gradient)):
        step = StepEvent(records=100, batch=20, parts=parts)
        assert math.exp(log_second_moment(step)) == pytest.approx(step.shift().mean, rel=5e-3)


def test_the_trivial_bound_takes_over_for_tiny_noise() -> None:
    step = StepEvent(records=100, batch=20, parts=(RowProjections(10, 10, 1e-3),))
    assert log_second_moment(step) == pytest.approx(math.log(2) + float(step.shift().log_moment(2.0)))
