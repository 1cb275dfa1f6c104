"""The tilted FFT against exact tails: binomial laws, and sums in arbitrary precision."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpswd.shared.accounting.convolution import LatticeMeasure, tilted_power


def bernoulli(p: float, step: float = 1.0) -> LatticeMeasure:
    return LatticeMeasure(np.array([0, 1]), np.log(np.array([1.0 - p, p])), step)


@pytest.mark.parametrize("where", [520, 600, 700, 800, 950])
def test_survival_is_the_binomial_tail_down_to_1e_200_and_never_below_it(where):
    measure, count = bernoulli(0.5), 1000
    tilt = math.log((where / count) / (1.0 - where / count))  # the tilted mean sits at `where`
    power = tilted_power(measure, count=count, tilt=tilt, low=0, size=1024)
    exact = stats.binom.logsf(where - 1, count, 0.5)
    survival = power.log_survival()[where]
    assert exact - 1e-9 <= survival <= exact + 1e-6
    assert exact < -0.5


def test_survival_without_a_tilt_is_right_in_the_bulk():
    power = tilted_power(bernoulli(0.3), count=500, tilt=0.0, low=0, size=512)
    exact = stats.binom.sf(np.arange(0, 200) - 1, 500, 0.3)
    survival = np.exp(power.log_survival()[:200])
    assert np.all(survival >= exact - 1e-14)
    np.testing.assert_allclose(survival, exact, rtol=1e-6, atol=1e-9)


def test_mass_below_the_window_wraps_upwards_and_never_lowers_a_tail():
    measure = bernoulli(0.5)
    whole = tilted_power(measure, count=200, tilt=0.8, low=0, size=256).log_survival()
    part = tilted_power(measure, count=200, tilt=0.8, low=120, size=64).log_survival()
    assert np.all(part[:40] >= whole[120:160] - 1e-9)
    assert part[10] < whole[130] + 1e-4


def test_hockey_stick_agrees_with_fifty_digit_arithmetic():
    # Loss +-step with the probabilities of randomised response: the composition is a binomial law.
    step, count = 0.25, 40
    p = math.exp(step) / (1.0 + math.exp(step))
    measure = LatticeMeasure(np.array([-1, 1]), np.log(np.array([1.0 - p, p])), step)
    power = tilted_power(measure, count=count, tilt=1.5, low=-40, size=128)
    log_d, log_b = power.log_hockey_stick()
    with mpmath.workdps(50):
        weight = [
            mpmath.binomial(count, j) * mpmath.mpf(p) ** j * (1 - mpmath.mpf(p)) ** (count - j) for j in range(41)
        ]
        for eps in (0.0, 0.6, 1.0, 3.1, 5.0, 8.9):
            exact = sum(
                w * max(0, 1 - mpmath.exp(eps - (2 * j - count) * mpmath.mpf(step))) for j, w in enumerate(weight)
            )
            i = math.ceil(eps / step) + 40
            tau = (i - 40) * step - eps
            delta = math.exp(log_d[i]) - math.expm1(-tau) * math.exp(log_b[i])
            assert float(exact) * (1 - 1e-12) <= delta <= float(exact) * (1 + 1e-8) + 1e-15


def test_the_error_bound_covers_the_real_error_of_many_compositions():
    # N(0,1)-like lattice law, T = 1e6: the exact answer is known by the same law's cumulants only to 1e-4, so the
    # comparison is with a binomial law, exact for every T.
    measure, count = bernoulli(0.5), 1_000_000
    where = 502_500  # five standard deviations
    tilt = math.log((where / count) / (1.0 - where / count))
    low = 490_000
    power = tilted_power(measure, count=count, tilt=tilt, low=low, size=2**15)
    exact = stats.binom.logsf(where - 1, count, 0.5)
    assert exact <= power.log_survival()[where - low] <= exact + 1e-3


def test_chernoff_is_above_the_exact_tail():
    measure = bernoulli(0.5)
    bound = measure.log_chernoff(100, 80.0, np.geomspace(0.1, 10.0, 50))
    assert stats.binom.logsf(79, 100, 0.5) < bound < stats.binom.logsf(79, 100, 0.5) + 4.0
