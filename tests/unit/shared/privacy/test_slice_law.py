"""The rounded law of H: above the exact one in every profile, and close to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import erf, log_ndtr, ndtr

from dpswd.shared.accounting.slice_law import shift_nodes, slice_law, with_largest
from dpswd.shared.core.privacy.curves import ShiftLaw


def gaussian_profile(eps: float, s: np.ndarray) -> np.ndarray:
    return ndtr(s / 2 - eps / s) - np.exp(eps + log_ndtr(-s / 2 - eps / s))


@given(eps=st.floats(0.0, 20.0), centre=st.floats(1e-3, 30.0), width=st.floats(1e-3, 0.5))
@settings(max_examples=tried(200))
def test_profiles_are_convex_in_the_total_variation(eps, centre, width):
    # The lemma of slice_law.py, on three points: s1 < s2 < s3, chord in t above the middle.
    s = np.array([centre * (1 - width), centre, centre * (1 + width)])
    t = erf(s / math.sqrt(8.0))
    value = gaussian_profile(eps, s)
    if t[2] - t[0] < 1e-9 or 1.0 - t[0] < 1e-9:
        return
    share = (t[1] - t[0]) / (t[2] - t[0])
    assert (1 - share) * value[0] + share * value[2] >= value[1] - 1e-12


@pytest.mark.parametrize("d", [2, 3, 4, 7, 50, 784, 1_000_000])
def test_one_direction_is_above_the_beta_law_and_within_the_step(d):
    law = slice_law(d, 1, scale=1.0, log_tail=-60.0)
    exact = stats.beta(0.5, (d - 1) / 2.0)
    points = law.single.step * np.arange(law.log_survival.size)
    survival = np.exp(law.log_survival)
    check = slice(1, None, max(1, points.size // 50))
    # A split keeps the mean of sqrt(x), so single points of the survival function may lie on either side;
    # its integral against an increasing function that is convex in sqrt(x) may not.
    np.testing.assert_allclose(
        survival[check],
        0.5 * (exact.sf(points[check]) + exact.sf(points[check] - law.single.step)),
        rtol=2e-2,
        atol=1e-12,
    )
    h, masses = law.support()
    assert 0.0 <= (h @ masses) * d - 1.0 < 1e-4
    assert masses @ np.exp(0.2 * d * h) >= math.exp(float(ShiftLaw(d, 1, 1.0).log_mgf(0.2 * d))) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("d", "k"), [(2, 5), (3, 100_000), (5, 10), (50, 100), (784, 200), (8192, 2000), (1_000_000, 100_000)]
)
def test_sums_have_the_right_mean_and_a_generating_function_just_above_the_exact_one(d, k):
    law = slice_law(d, k, scale=d / 30.0, log_tail=-80.0)
    h, masses = law.support()
    exact = ShiftLaw(d, k, 1.0)
    assert masses.sum() == pytest.approx(1.0, abs=1e-12)
    assert 0.0 <= (h @ masses) / (k / d) - 1.0 < 1.5e-4
    for theta in np.array([0.1, 1.0, 2.0]) * d / math.sqrt(k + 9):
        bound = math.log(masses @ np.exp(theta * (h - k / d))) + theta * k / d
        log_mgf = float(exact.log_mgf(theta))
        assert log_mgf * (1 - 1e-10) <= bound <= log_mgf * (1 + 3e-4)


@pytest.mark.parametrize(("d", "k", "sigma"), [(784, 200, 0.5), (50, 100, 1.5), (5, 3, 0.6), (8192, 2000, 0.3)])
def test_upper_tails_follow_the_chernoff_exponent(d, k, sigma):
    # Against the exact Chernoff exponent: the tail lies below exp(-I) and not more than a polynomial factor below.
    law = slice_law(d, k, scale=1.0 / sigma**2, log_tail=-100.0)
    points = law.single.step * (law.low + np.arange(law.log_survival.size))
    theta = d * np.concatenate((np.geomspace(1e-3, 0.5, 400), np.geomspace(0.5, 1e3, 200)))
    mgf = ShiftLaw(d, k, 1.0).log_mgf(theta)
    for level in (-10.0, -30.0, -60.0, -90.0):
        i = int(np.searchsorted(-law.log_survival, -level))
        if i >= points.size or points[i] >= k:
            continue
        chernoff = float(np.min(mgf - theta * points[i]))
        assert chernoff - 9.0 < law.log_survival[i] < chernoff + 0.1


@given(
    d=st.integers(2, 2000),
    k=st.integers(1, 300),
    sigma=st.floats(0.05, 20.0),
    eps=st.floats(0.0, 10.0),
    constant=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=tried(60))
def test_nodes_never_lower_a_profile_of_the_lattice(d, k, sigma, eps, constant):
    law = ShiftLaw(d, k, 1.0 / sigma**2, constant)
    nodes = shift_nodes(law, log_tail=-40.0)
    h, masses = slice_law(d, k, scale=law.scale, log_tail=-40.0).support()
    fine = np.sqrt(law.scale * h + law.constant)
    present = fine > 0
    exact = masses[present] @ gaussian_profile(eps, fine[present])
    average = nodes.weights @ gaussian_profile(eps, nodes.shifts)
    assert average >= exact * (1 - 1e-9) - 1e-14
    assert average <= exact * 1.1 + 1e-14  # far out in the tail that is a thousandth of epsilon


def test_a_constant_law_is_one_node():
    nodes = with_largest(shift_nodes(ShiftLaw(1, 7, 2.0, 0.5), log_tail=-40.0), ShiftLaw(1, 7, 2.0, 0.5))
    np.testing.assert_allclose(nodes.shifts, [math.sqrt(14.5)])
    assert nodes.weights.tolist() == [1.0]
    assert shift_nodes(ShiftLaw(1, 1, 0.0), log_tail=-40.0).shifts.size == 0


@pytest.mark.statistical
def test_profile_average_agrees_with_sampled_directions():
    """False alarm: |z| > 5.5 for three means of 20,000 draws, below 2e-7 (the law is bounded, so nearly normal)."""
    rng = np.random.default_rng(7)
    d, k, sigma = 40, 12, 0.7
    z = rng.standard_normal((20_000, k, d))
    first = z[:, :, 0] ** 2 / (z**2).sum(axis=2)  # squared first coordinates of uniform unit vectors
    s = np.sqrt(first.sum(axis=1)) / sigma
    nodes = shift_nodes(ShiftLaw(d, k, 1.0 / sigma**2), log_tail=-60.0)
    for eps in (0.0, 0.5, 2.0):
        sample = gaussian_profile(eps, s)
        average = nodes.weights @ gaussian_profile(eps, nodes.shifts)
        assert abs(average - sample.mean()) < 5.5 * sample.std() / math.sqrt(s.size) + 2e-4 * average
