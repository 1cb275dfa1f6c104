"""The C_gamma moments against arbitrary precision, sampling, and the exact curve of the full batch."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.shared.accounting import c_gamma
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.curves import ShiftLaw


def exact_log_moment(s: float, gamma: float, alpha: float) -> float:
    """The formula of docs/privacy 3 for one shift, in 30 digits."""
    with mpmath.workdps(30):
        s, gamma, alpha = mpmath.mpf(s), mpmath.mpf(gamma), mpmath.mpf(alpha)

        def integrand(y):
            ratio = 1 + gamma * mpmath.expm1(s * y - s * s / 2)
            power = ratio**alpha
            return (power + ratio / power - 1 - ratio) * mpmath.npdf(y)

        knots = sorted({s / 2 + j for j in (0, 1, 3, 6, 10)} | {max(s / 2, alpha * s + j) for j in (-8, -3, 0, 3, 12)})
        return float(mpmath.log1p(mpmath.quad(integrand, knots)))


@pytest.mark.long
@pytest.mark.parametrize(
    "alpha", [1.05, 3.7, 40.0, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (1.5, 2.0, 12.0))]
)
@pytest.mark.parametrize(("s", "gamma"), [(1.0, 0.0128), (0.1, 0.3), (2.5, 0.0016), (1e-3, 0.5), (1e-5, 1e-6)])
def test_one_shift_is_the_formula_in_arbitrary_precision(s, gamma, alpha):
    exact = exact_log_moment(s, gamma, alpha)
    moment = float(c_gamma.log_moment(ShiftLaw(1, 1, s * s), gamma, [alpha])[0])
    assert exact * (1 - 1e-12) <= moment <= exact * (1 + 2e-2)
    if alpha <= 2.0:
        assert moment <= exact * (1 + 3e-4)


def test_order_two_in_closed_form():
    # alpha = 2: E[(L^2 + 1/L - 1 - L) 1{L >= 1}]; for tiny gamma it is 2 gamma^2 E[(e^v - 1)_+^2] to first order.
    s, gamma = 0.8, 1e-6
    from scipy.special import ndtr

    second = math.exp(s * s) * ndtr(1.5 * s) - 2 * ndtr(0.5 * s) + ndtr(-0.5 * s)
    moment = float(c_gamma.log_moment(ShiftLaw(1, 1, s * s), gamma, [2.0])[0])
    assert moment == pytest.approx(2 * gamma**2 * second, rel=5e-5)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("d", "k", "sigma", "gamma"), [(784, 200, 0.6, 0.0128), (50, 100, 2.0, 0.064), (6, 3, 1.5, 0.2)]
)
def test_moments_agree_with_sampled_directions(d, k, sigma, gamma):
    """False alarm for each case: |z| > 5.5 for 3 means of 4,000 draws with light tails, below 1e-6."""
    rng = np.random.default_rng(3)
    h = rng.beta(0.5, (d - 1) / 2, size=(4000, k)).sum(axis=1)
    s = np.sqrt(h) / sigma
    nodes, weights = np.polynomial.legendre.leggauss(200)
    orders = np.array([1.5, 2.0, 4.0])
    moments = np.expm1(c_gamma.log_moment(ShiftLaw(d, k, 1 / sigma**2), gamma, orders))
    half = (orders.max() * s + 9.0 - s / 2) / 2
    y = s[:, None] / 2 + half[:, None] * (1 + nodes)
    log_ratio = np.log1p(gamma * np.expm1(s[:, None] * y - s[:, None] ** 2 / 2))
    density = np.exp(-y * y / 2) / math.sqrt(2 * math.pi)
    for alpha, value in zip(orders, moments, strict=True):
        bracket = np.expm1((alpha - 1) * log_ratio) * -np.expm1(-alpha * log_ratio) * np.exp(log_ratio)
        sample = (bracket * density) @ weights * half
        assert abs(value - sample.mean()) < 5.5 * sample.std() / math.sqrt(4000) + 2e-3 * value


def test_the_full_batch_is_the_exact_curve_and_nothing_is_above_it():
    law = ShiftLaw(100, 30, 4.0, 0.2)
    orders = np.array([1.01, 2.0, 7.7, 64.0, 1e4])
    np.testing.assert_array_equal(c_gamma.log_moment(law, 1.0, orders), law.log_moment(orders))
    for gamma in (1e-6, 0.01, 0.5, 0.999):
        assert np.all(c_gamma.log_moment(law, gamma, orders) <= law.log_moment(orders))


@given(
    d=st.integers(1, 5000),
    k=st.integers(1, 2000),
    ratio=st.floats(0.1, 100.0),
    gamma=st.floats(-8.0, -0.01).map(lambda x: 10.0**x),
)
@settings(max_examples=tried(6))
@pytest.mark.long
def test_moments_are_finite_increasing_in_the_order_and_in_gamma(d, k, ratio, gamma):
    law = ShiftLaw(d, k, d / k / ratio**2)
    orders = np.array([1.1, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 65.0, 1000.0])
    moments = c_gamma.log_moment(law, gamma, orders)
    assert np.all(np.isfinite(moments))
    assert np.all(moments > 0.0)
    assert np.all(np.diff(moments / (orders - 1)) >= -2e-2 * (moments / (orders - 1))[1:])
    more = c_gamma.log_moment(law, min(1.0, 1.3 * gamma), orders)
    assert np.all(more >= moments * (1 - 1e-2))


@pytest.mark.parametrize(
    ("gamma", "orders", "name"),
    [
        (0.0, [2.0], "gamma"),
        (1.1, [2.0], "gamma"),
        (math.nan, [2.0], "gamma"),
        (0.1, [1.0], "orders"),
        (0.1, [math.inf], "orders"),
    ],
)
def test_values_outside_the_range_are_refused_by_name(gamma, orders, name):
    with pytest.raises(InvalidValue, match=name):
        c_gamma.log_moment(ShiftLaw(10, 2, 1.0), gamma, orders)
