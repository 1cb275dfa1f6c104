"""One-sided moments against alternating sums in mpmath and against direct integration."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from dpswd.shared.accounting.one_sided import one_sided_moment
from dpswd.shared.core.privacy.curves import ShiftLaw

LAWS = [
    ShiftLaw(784, 200, 4.0),
    ShiftLaw(784, 200, 0.1),
    ShiftLaw(100, 1000, 0.25),
    ShiftLaw(5, 1, 1e-3),
    ShiftLaw(5, 1, 1.0),
    ShiftLaw(2, 3, 0.5),
    ShiftLaw(1, 3, 0.5),
    ShiftLaw(320, 200, 0.2, 0.3),
    ShiftLaw(10**6, 10**5, 0.1),
]


def signed_moment(law: ShiftLaw, j: int) -> mpmath.mpf:
    """E (L-1)^j = sum_i (-1)^(j-i) C(j,i) M_i, from mpmath's 1F1."""

    def moment(i: int) -> mpmath.mpf:
        theta = mpmath.mpf(i) * (i - 1) / 2
        sliced = mpmath.hyp1f1(mpmath.mpf(1) / 2, mpmath.mpf(law.feature_dimension) / 2, theta * mpmath.mpf(law.scale))
        return sliced**law.directions * mpmath.exp(theta * mpmath.mpf(law.constant))

    return mpmath.fsum((-1) ** (j - i) * mpmath.binomial(j, i) * moment(i) for i in range(j + 1))


@pytest.mark.parametrize("law", LAWS)
def test_the_two_sides_add_up_to_the_alternating_sum(law: ShiftLaw) -> None:
    above, below = one_sided_moment(law, 16, upper=True), one_sided_moment(law, 16, upper=False)
    with mpmath.workdps(70):
        for j in (2, 3, 4, 5, 8, 12, 16):
            plus, minus = mpmath.exp(mpmath.mpf(above[j])), mpmath.exp(mpmath.mpf(below[j]))
            signed = signed_moment(law, j)
            difference = (plus + (-1) ** j * minus - signed) / (plus + minus)
            # The bounds carry a margin of 1e-7; where they fall back to E L^j that is above B+ by at most 1e-3.
            assert -1.1e-7 <= float(difference) <= 1e-3
            if float(mpmath.mpf(law.mean)) * j < 1.0:
                assert abs(float(difference)) <= 3e-7


@pytest.mark.parametrize("s", [1e-3, 0.05, 0.4, 1.0])
def test_a_plain_gaussian_agrees_with_direct_integration(s: float) -> None:
    law = ShiftLaw(1, 1, s * s)
    for upper in (True, False):
        bound = one_sided_moment(law, 9, upper=upper)
        for j in (2, 3, 5, 9):

            def integrand(y: float, j: int = j, upper: bool = upper) -> float:
                loss = s * y - s * s / 2
                part = math.expm1(loss) if upper else -math.expm1(loss)
                return (max(part, 0.0) / s) ** j * math.exp(-y * y / 2) / math.sqrt(2 * math.pi)

            edge = s / 2
            low, high = (edge, 14 + 10 * s) if upper else (-14.0, edge)
            truth = j * math.log(s) + math.log(quad(integrand, low, high, epsabs=0, epsrel=1e-11, limit=400)[0])
            assert -1e-9 <= bound[j] - truth <= 1e-3 if upper and j * s * s > 5 else abs(bound[j] - truth) <= 2e-7


@settings(max_examples=tried(30))
@given(
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.floats(1e-8, 1e3),
)
def test_moments_are_ordered_and_logarithmically_convex(d: int, k: int, mean: float) -> None:
    law = ShiftLaw(d, k, mean * d / k)
    for upper in (True, False):
        bound = one_sided_moment(law, 160, upper=upper)[2:]
        assert not np.any(np.isnan(bound))
        ceiling = law.log_moment(np.arange(2, 161)) if upper else np.zeros(159)
        assert np.all(bound <= ceiling + 1e-12)
        # Raising B-(j) <= 1 makes B- decrease in j; B+ is convex up to the margins.
        if not upper:
            assert np.all(np.diff(bound) <= 3e-7)
