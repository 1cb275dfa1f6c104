"""Group privacy: against the Gaussian's closed form and against every event of small mechanisms."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpswd.shared.accounting.persons import MOST_RECORDS, allowed_for_record, promised_to_person
from dpswd.shared.core.errors import InvalidValue


def gaussian_delta(epsilon: float, shift: float) -> float:
    """Delta of a Gaussian whose mean moves by `shift` standard deviations (Balle & Wang 2018, Theorem 8)."""
    return float(norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift))


@given(epsilon=st.floats(1e-4, 20.0), delta=st.floats(1e-30, 0.1), records=st.integers(1, 50))
def test_what_is_allowed_for_a_record_promises_a_person_no_less(epsilon, delta, records):
    each = allowed_for_record(epsilon, delta, records)
    promised = promised_to_person(*each, records)
    assert promised[0] <= epsilon
    assert promised[1] <= delta
    assert promised == pytest.approx((epsilon, delta), rel=1e-9)


@given(shift=st.floats(0.05, 3.0), epsilon=st.floats(0.01, 5.0), records=st.integers(1, 12))
def test_the_gaussian_of_k_records_keeps_the_promise(shift, epsilon, records):
    """k records move the mean k times as far at most; the exact delta of that is never above what is promised."""
    whole, promised = promised_to_person(epsilon, max(gaussian_delta(epsilon, shift), 1e-300), records)
    assert gaussian_delta(whole, records * shift) <= promised * (1 + 1e-6) + 1e-15


@given(keep=st.floats(0.5, 0.99), epsilon=st.floats(0.0, 4.0, exclude_min=True))
def test_k_answers_of_randomised_response_keep_the_promise(keep, epsilon):
    """k = 3 records, each answered truthfully with probability `keep`: all 2^3 outcomes are summed."""
    likely = {True: keep, False: 1 - keep}
    one = max(0.0, keep - math.exp(epsilon) * (1 - keep))
    exact = 0.0
    for outcome in itertools.product((True, False), repeat=3):
        left = math.prod(likely[answer] for answer in outcome)
        right = math.prod(likely[not answer] for answer in outcome)
        exact += max(0.0, left - math.exp(3 * epsilon) * right)
    assert exact <= promised_to_person(epsilon, max(one, 1e-300), 3)[1] * (1 + 1e-9) + 1e-12


def test_the_figures_of_a_budget():
    assert promised_to_person(0.5, 1e-6, 2) == pytest.approx((1.0, 1e-6 * (1 + math.exp(0.5))))
    assert promised_to_person(0.7, 1e-6, 1) == (0.7, 1e-6)
    assert promised_to_person(9000.0, 1e-5, 2) == (
        pytest.approx(18000.0),
        1.0,
    )  # nothing is left of it, and no overflow
    assert promised_to_person(0.0, 1e-6, 3) == (0.0, 3e-6)


@pytest.mark.parametrize("records", [0, -1, MOST_RECORDS + 1, 2.0, True])
def test_other_numbers_of_records_are_refused(records):
    with pytest.raises(InvalidValue, match="a person has 1 to 1000 records"):
        promised_to_person(1.0, 1e-5, records)
