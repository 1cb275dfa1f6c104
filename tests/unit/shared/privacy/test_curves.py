"""The exact curve against mpmath, closed forms, Monte Carlo and its own shape."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.curves import ShiftLaw, log_kummer

DIMENSIONS = [2, 3, 5, 10, 320, 784, 8192, 10**5, 10**6]


def oracle(b: float, x: float) -> float:
    """mpmath: its series, or (where that is too long) its quadrature of E exp(x sin^2 phi) around the peak."""
    with mpmath.workdps(30):
        if x < 2e4:
            return float(mpmath.log(mpmath.hyp1f1(mpmath.mpf(1) / 2, mpmath.mpf(b), mpmath.mpf(x), maxterms=10**6)))
        d, x = mpmath.mpf(2 * b), mpmath.mpf(x)

        def exponent(phi: mpmath.mpf) -> mpmath.mpf:
            return x * mpmath.sin(phi) ** 2 + (d - 2) * mpmath.log(mpmath.cos(phi))

        peak = mpmath.acos(min(mpmath.mpf(1), mpmath.sqrt((d - 2) / (2 * x)))) if d > 2 else mpmath.pi / 2
        width = 1 / mpmath.sqrt(x)  # at least a tenth of every peak's true width
        top = mpmath.pi / 2 - mpmath.mpf(10) ** -25
        steps = (-300, -40, -12, -4, 0, 4, 12, 40, 300)
        edges = sorted({min(max(peak + step * width, mpmath.mpf(0)), top) for step in steps})
        height = exponent(min(peak, top))
        integral = mpmath.quad(lambda phi: mpmath.exp(exponent(phi) - height), edges)
        return float(height + mpmath.log(2 * integral / mpmath.beta(mpmath.mpf(1) / 2, (d - 1) / 2)))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_kummer_agrees_with_mpmath_to_eleven_digits(d: int) -> None:
    arguments = np.array([1e-12, 1e-9, 1e-4, 0.3, 7.0, 29.0, 31.0, 400.0, 1e4, 1e6])
    arguments = np.append(arguments, [0.249 * d, 0.251 * d, 0.499 * d, 0.501 * d, 2.0 * d])
    expected = [oracle(d / 2, float(x)) for x in arguments]
    np.testing.assert_allclose(log_kummer(d / 2, arguments), expected, rtol=5e-11)


def test_kummer_in_one_dimension_is_the_exponential() -> None:
    x = np.array([0.0, 1e-300, 1e-3, 5.0, 1e12])
    np.testing.assert_array_equal(log_kummer(0.5, x), x)


@pytest.mark.parametrize("b", [1.5, 50.0, 5e5])
def test_kummer_far_out_follows_its_asymptotic_series(b: float) -> None:
    x = 1e13  # DLMF 13.7.2, first term; the next one is b/x
    expected = x + (0.5 - b) * math.log(x) + math.lgamma(b) - 0.5 * math.log(math.pi)
    assert log_kummer(b, x) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("b", "x"), [(0.4, 1.0), (math.nan, 1.0), (1.0, -1e-9), (1.0, math.nan), (1.0, math.inf)])
def test_kummer_refuses_what_it_cannot_evaluate(b: float, x: float) -> None:
    with pytest.raises(InvalidValue):
        log_kummer(b, x)


laws = st.builds(
    ShiftLaw,
    feature_dimension=st.one_of(st.integers(1, 20), st.integers(1, 10**6)),
    directions=st.integers(1, 10**5),
    scale=st.floats(1e-12, 1e6),
    constant=st.one_of(st.just(0.0), st.floats(1e-9, 1e3)),
)


@settings(max_examples=tried(60))
@given(laws)
def test_the_curve_lies_between_its_bounds_increases_and_is_convex(law: ShiftLaw) -> None:
    orders = 1.0 + np.geomspace(1e-6, 1e6, 61)
    curve, moment = law.renyi(orders), law.log_moment(orders)
    assert np.all(curve >= orders * law.mean / 2 * (1 - 1e-9))  # Jensen
    assert np.all(curve <= orders * law.largest / 2 * (1 + 1e-9))  # H <= k
    assert np.all(np.diff(curve) >= -1e-9 * curve[1:])
    slopes = np.diff(moment) / np.diff(orders)
    assert np.all(np.diff(slopes) >= -1e-7 * np.abs(slopes[1:]))


@settings(max_examples=tried(40))
@given(laws, st.floats(1.01, 1e4), st.floats(1.0, 3.0))
def test_more_noise_never_costs_more(law: ShiftLaw, order: float, factor: float) -> None:
    quieter = ShiftLaw(law.feature_dimension, law.directions, law.scale / factor**2, law.constant / factor**2)
    assert quieter.renyi(order) <= law.renyi(order) * (1 + 1e-10)


def test_moments_of_h_match_the_beta_law() -> None:
    law = ShiftLaw(feature_dimension=7, directions=3, scale=2.0, constant=0.5)
    assert law.mean == pytest.approx(2 * 3 / 7 + 0.5)
    variance = 4 * 3 * 2 * 6 / (49 * 9)
    step = 1e-4  # the cumulant generating function's derivatives at 0 (theta >= 0 only)
    k = law.log_mgf(np.array([0.0, step, 2 * step]))
    assert (k[1] - k[0]) / step == pytest.approx(law.mean, rel=1e-3)
    assert (k[2] - 2 * k[1] + k[0]) / step**2 == pytest.approx(variance, rel=1e-2)


@pytest.mark.statistical
def test_the_curve_agrees_with_simulated_directions() -> None:
    """False alarm below 1e-6: five standard errors on 400,000 draws of bounded variables, fixed seed."""
    rng = np.random.default_rng(1)
    d, k, sigma = 6, 4, 1.3
    law = ShiftLaw(feature_dimension=d, directions=k, scale=1 / sigma**2)
    z = rng.standard_normal(d)
    z /= np.linalg.norm(z)
    u = rng.standard_normal((400_000, k, d))
    u /= np.linalg.norm(u, axis=2, keepdims=True)
    h = np.einsum("nkd,d->nk", u, z) ** 2
    for alpha in (1.5, 2.0, 4.0):
        draws = np.exp(alpha * (alpha - 1) * h.sum(axis=1) / (2 * sigma**2))
        error = draws.std() / math.sqrt(draws.size)
        assert abs(draws.mean() - math.exp(float(law.log_moment(alpha)))) < 5 * error


@pytest.mark.parametrize(
    ("field", "value"),
    [("feature_dimension", 0), ("directions", 1.0), ("scale", math.nan), ("constant", -1.0), ("scale", math.inf)],
)
def test_a_malformed_law_is_refused_by_name(field: str, value: object) -> None:
    fields: dict[str, object] = {"feature_dimension": 2, "directions": 2, "scale": 1.0, "constant": 0.0, field: value}
    with pytest.raises(InvalidValue, match=field):
        ShiftLaw(**fields)  # type: ignore[arg-type]
