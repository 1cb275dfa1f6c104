"""One-sided moments from the shared table: never below the law's own integral, and close above it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.special import log_ndtr, ndtr

from dpswd.shared.accounting import one_sided, one_sided_table, shift_mixture
from dpswd.shared.core.privacy.curves import ShiftLaw

# Settings of the accountant's table: d, k, sigma.
SETTINGS = [(784, 200, 1.5), (100, 1000, 9.5), (50, 100, 4.2), (784, 1000, 3.4), (8192, 2000, 0.5), (320, 200, 4.21)]


@pytest.mark.parametrize(("d", "k", "sigma"), SETTINGS)
@pytest.mark.parametrize("upper", [True, False])
def test_the_table_costs_little(d, k, sigma, upper):
    law = ShiftLaw(d, k, 1.0 / sigma**2)
    growth = one_sided_table.one_sided_moment(law, 126, upper=upper) - one_sided.one_sided_moment(law, 126, upper=upper)
    assert np.all(growth >= -2e-7)  # the integral carries a margin of 1e-7 of its own
    assert growth[2] < 4e-4
    assert growth[4] < 6e-3


@settings(max_examples=tried(20))
@given(
    d=st.integers(1, 5000),
    k=st.integers(8, 2000),
    ratio=st.floats(8.0, 500.0),
    constant=st.one_of(st.just(0.0), st.floats(1e-6, 4.0)),
    upper=st.booleans(),
)
@pytest.mark.long
def test_the_table_is_never_below_the_integral(d, k, ratio, constant, upper):
    law = ShiftLaw(d, k, d / (ratio * ratio), constant)
    orders = one_sided.COMPUTED_ORDERS
    exact = one_sided.integrated(law, orders, upper=upper)
    table = one_sided_table.one_sided_moment(law, int(orders[-1]), upper=upper)[orders]
    # Where the integral does not vouch for itself it answers with the trivial bound, and the table may be below that.
    trivial = law.log_moment(orders.astype(float)) if upper else np.zeros(orders.size)
    integrated = exact < trivial - 1e-9
    assert np.all(table[integrated] >= exact[integrated] - 2e-7)
    assert np.all(table <= trivial + 1e-12)


@settings(max_examples=tried(25))
@given(shift=st.floats(1e-3, 8.0))
def test_a_fixed_shift_loses_less_than_its_grid(shift):
    law = ShiftLaw(1, 1, 0.0, shift * shift)
    growth = one_sided_table.one_sided_moment(law, 30, upper=True) - one_sided.one_sided_moment(law, 30, upper=True)
    j = np.arange(31.0)
    # Second order in the grid's distance 1/1024: of s^j, and of e^{j (j-1) s^2 / 2} where that is what grows.
    steepness = (j + j * j * shift * shift) ** 2 / (8.0 * 1024.0**2)
    assert np.all(growth[2:] <= 2.0 * steepness[2:] + 1e-6)
    assert np.all(growth[2:] >= -2e-7)


@pytest.mark.long
def test_a_mixture_keeps_the_mass_and_the_total_variation():
    law = ShiftLaw(320, 200, 0.2)
    mixture = shift_mixture.of(law)
    nodes = np.exp(np.array(mixture.indices) / shift_mixture.NODES_PER_NAT)
    assert mixture.weights.sum() == pytest.approx(1.0, abs=1e-9)
    # E t(S) of 50,000 sampled directions against the mixture's: 5 standard errors, 6e-7 false alarms.
    rng = np.random.default_rng(1)
    h = rng.beta(0.5, 159.5, size=(50_000, 200)).sum(axis=1)
    sampled = np.array([math.erf(math.sqrt(0.2 * value / 8.0)) for value in h])
    variation = float(mixture.weights @ np.array([math.erf(s / math.sqrt(8.0)) for s in nodes]))
    error = 5.0 * sampled.std() / math.sqrt(sampled.size)
    assert sampled.mean() - error <= variation <= sampled.mean() * (1.0 + 2e-3) + error


@pytest.mark.parametrize(("d", "ratio"), [(1196, 0.2), (50, 0.5), (50, 2.0), (50, 30.0), (7, 1.0), (4, 5.0)])
def test_one_direction_is_bounded_at_any_noise(d, ratio):
    law = ShiftLaw(d, 1, d / (ratio * ratio))
    # B-(2) at a fixed shift s: Phi(s/2) - 2 Phi(-s/2) + e^{s^2} Phi(-3s/2), averaged over the direction's cosine.
    cosine = np.linspace(0.0, 1.0, 1_000_001)
    density = (1.0 - np.minimum(cosine, 1.0 - 1e-12) ** 2) ** ((d - 3) / 2)
    s = math.sqrt(law.scale) * cosine
    inner = ndtr(s / 2) - 2 * ndtr(-s / 2) + np.exp(s * s + log_ndtr(-1.5 * s))
    exact = math.log(trapezoid(inner * density, cosine) / trapezoid(density, cosine))
    moment = one_sided_table.precise_moment(law, 12, upper=False)[2]
    assert exact - 1e-7 <= moment <= exact + 5e-3
