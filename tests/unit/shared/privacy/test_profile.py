"""The full-batch profile against closed forms, arbitrary precision and sampled directions."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr

from benchmarks.audit.delta import release_delta, run_delta
from dpswd.shared.accounting import pld, profile
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.curves import ShiftLaw
from dpswd.shared.core.privacy.events import RowProjections, StepEvent


def exact_gaussian(eps: float, s: float) -> mpmath.mpf:
    with mpmath.workdps(40):
        e, s = mpmath.mpf(eps), mpmath.mpf(s)
        return mpmath.ncdf(s / 2 - e / s) - mpmath.exp(e) * mpmath.ncdf(-s / 2 - e / s)


@pytest.mark.parametrize("s", [1e-3, 0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 3.0, 8.0])
def test_one_dimension_is_the_analytic_gaussian_mechanism(s, share):
    eps = s * s / 2 + share * s  # share standard deviations above the mean loss
    exact = float(exact_gaussian(eps, s))
    delta = release_delta(ShiftLaw(1, 1, s * s), eps)
    assert exact * (1 - 1e-11) <= delta <= exact * (1 + 1e-7)
    assert profile.epsilon(ShiftLaw(1, 1, s * s), delta) == pytest.approx(eps, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("d", "sigma", "eps"), [(3, 0.5, 0.3), (784, 0.02, 1.0), (50, 0.1, 5.0), (2, 2.0, 0.1)])
def test_one_direction_is_the_average_over_a_beta_variable(d, sigma, eps):
    with mpmath.workdps(20):
        b = mpmath.mpf(d - 1) / 2

        def integrand(v):  # x = v^2 is Beta(1/2, b); its density in v is smooth
            return exact_gaussian(eps, v / sigma) * 2 * (1 - v * v) ** (b - 1) / mpmath.beta(0.5, b)

        typical = 1 / math.sqrt(d)
        knots = sorted({0.0, *(min(1.0, typical * j) for j in (1, 2, 4, 7, 12)), 1.0})
        exact = float(mpmath.quad(integrand, knots))
    delta = release_delta(ShiftLaw(d, 1, 1 / sigma**2), eps)
    assert exact * (1 - 1e-9) <= delta <= exact * (1 + 2e-3)


@pytest.mark.statistical
@pytest.mark.parametrize(("d", "k", "sigma", "eps"), [(784, 200, 0.25, 4.0), (30, 8, 0.4, 1.0)])
def test_profile_agrees_with_sampled_directions(d, k, sigma, eps):
    """False alarm for each case: |z| > 5.5 with 40,000 draws of a bounded variable, below 1e-7."""
    rng = np.random.default_rng(11)
    h = rng.beta(0.5, (d - 1) / 2, size=(40_000, k)).sum(axis=1)
    s = np.sqrt(h) / sigma
    sample = ndtr(s / 2 - eps / s) - np.exp(eps + log_ndtr(-s / 2 - eps / s))
    delta = release_delta(ShiftLaw(d, k, 1 / sigma**2), eps)
    assert abs(delta - sample.mean()) < 5.5 * sample.std() / 200.0 + 1e-3 * delta


@given(
    d=st.integers(1, 3000),
    k=st.integers(1, 400),
    ratio=st.floats(0.2, 30.0),
    delta=st.floats(-40.0, -0.4).map(lambda x: 10.0**x),
)
@settings(max_examples=tried(12))
@pytest.mark.long
def test_epsilon_and_delta_are_inverse_and_monotone(d, k, ratio, delta):
    law = ShiftLaw(d, k, d / k / ratio**2)
    eps = profile.epsilon(law, delta)
    assert math.isfinite(eps)
    assert eps >= 0.0
    if eps > 0.0:
        assert release_delta(law, eps) == pytest.approx(delta, rel=2e-3)
    assert profile.epsilon(law, min(0.5, delta * 3)) <= eps * (1 + 1e-9)
    # More noise costs no more, but for the lattice of H, which depends on the noise a little.
    assert profile.epsilon(ShiftLaw(d, k, law.scale / 1.1), delta) <= eps * (1 + 1e-9)


def test_full_batch_runs_are_one_release_with_all_directions():
    part = RowProjections(100, 10, 3.0)
    step = StepEvent(500, 500, (part,))
    assert pld.epsilon(step, 30, 1e-6) == profile.epsilon(ShiftLaw(100, 300, 1 / 9.0), 1e-6)
    assert run_delta(step, 30, 1.0) == release_delta(ShiftLaw(100, 300, 1 / 9.0), 1.0)


def test_a_release_without_shift_is_free():
    law = ShiftLaw(5, 3, 0.0, 0.0)
    assert release_delta(law, 0.0) == 0.0
    assert profile.epsilon(law, 1e-10) == 0.0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda law: release_delta(law, -1.0), "epsilon"),
        (lambda law: release_delta(law, math.nan), "epsilon"),
        (lambda law: profile.epsilon(law, 0.0), "delta"),
        (lambda law: profile.epsilon(law, 1e-250), "delta"),
        (lambda law: profile.epsilon(law, 1.0), "delta"),
        (lambda law: profile.epsilon(law, math.nan), "delta"),
    ],
)
def test_values_outside_the_range_are_refused_by_name(call, name):
    with pytest.raises(InvalidValue, match=name):
        call(ShiftLaw(10, 2, 1.0))


@given(
    sigmas=st.lists(st.floats(1.0, 1e3), min_size=1, max_size=40), delta=st.floats(-12.0, -2.0).map(lambda x: 10.0**x)
)
def test_gaussian_releases_compose_to_one(sigmas, delta):
    square = math.fsum(1.0 / sigma**2 for sigma in sigmas)
    epsilon = profile.epsilon(ShiftLaw(1, 1, 0.0, square), delta)
    assert epsilon == pytest.approx(profile.epsilon(ShiftLaw(1, 1, square), delta), rel=1e-9)
    # One more release costs more, and the Renyi bound is above.
    assert profile.epsilon(ShiftLaw(1, 1, 0.0, square + 1.0), delta) > epsilon
    orders = 1.0 + np.geomspace(1e-3, 1e4, 300)
    renyi = square * orders / 2.0 + np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    assert epsilon <= max(0.0, renyi.min())
