"""Every mechanism against its price: neighbours that try to move it further, and the price derived a second time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance_attack import Bench, climbed, neighbours, shift_of
from conformance_cases import CASES, FEATURES, RECORDS, Case
from scipy.optimize import brentq
from scipy.stats import beta, norm

from dpswd.shared.accounting import calibration
from dpswd.shared.accounting.crosscheck import check_with_autodp
from dpswd.shared.core.mechanisms.declared import Declared
from dpswd.shared.core.mechanisms.interface import RunSize
from dpswd.shared.core.privacy.events import RunEvent
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.rows.mechanism import LABELLED_ROWS, LabelledRows

DELTA = 1e-5
FACTOR = 1.05
"""The price of one step on the full batch is at most so much above the exact one."""

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def _bench(case: Case, *, records: int) -> Bench:
    return Bench(ALL_MECHANISMS[case.declared[0]], case, records=records)


@by_case
@pytest.mark.long
@pytest.mark.parametrize("rounds", [10, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_no_neighbour_moves_the_release_further_than_is_accounted_and_one_comes_near(case, rounds):
    batch = 8
    bench, rng = _bench(case, records=batch), np.random.default_rng(17)
    count = len(bench.parts(batch))
    best, nearest = [0.0] * count, [None] * count

    def tried(pair, seed):
        shifts = bench.squared_shifts(*pair, seed)
        allowed, distance = bench.accounted(*pair, seed)
        assert distance <= 1.0
        for place, (shift, most) in enumerate(zip(shifts, allowed, strict=True)):
            assert shift <= most * (1.0 + 1e-5), (place, shift, most, pair)
            sliced = shift_of(bench.parts(batch)[place], batch)[0] > 0.0
            if shift > best[place] * most and (not sliced or distance > 0.9):
                best[place], nearest[place] = shift / most, pair

    for number, pair in enumerate(neighbours(batch, rng)):
        tried(pair, bytes([number]) * 32)
    for round_ in range(rounds):
        for place in range(count):
            tried(climbed(nearest[place], rng, 0.3 * 0.95**round_), bytes([round_]) * 32)
    assert min(best) > 0.5, best


def test_a_sensitivity_that_is_stated_too_small_is_detected(monkeypatch):
    """The search is worth something: a clip norm that the price takes for two thirds of what it is does not pass."""
    (case,) = [case for case in CASES if case.name == "labelled gradient"]
    bench = _bench(case, records=8)
    parts = bench.parts(8)
    monkeypatch.setattr(bench, "parts", lambda _: tuple(replace(p, clip_norm=p.clip_norm * 2 / 3) for p in parts))
    rng = np.random.default_rng(17)
    worst = max(
        bench.squared_shifts(*pair, bytes(32))[0] / bench.accounted(*pair, bytes(32))[0][0]
        for pair in neighbours(8, rng)
    )
    assert worst > 1.4


# ---- the price -------------------------------------------------------------------------------------------------------


def _directions_law(d: int, k: int, *, upper: bool) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of H, k independent Beta(1/2, (d-1)/2), rounded up or down to cells of one size."""
    cells = 1024
    edges = beta.cdf(np.linspace(0.0, 1.0, cells + 1), 0.5, (d - 1) / 2)
    law = single = np.diff(edges)
    for _ in range(k - 1):
        law = np.convolve(law, single)
    return (np.arange(len(law)) + (k if upper else 0)) / cells, law


def _roots(event: RunEvent, *, upper: bool) -> tuple[np.ndarray, np.ndarray]:
    """The law of the shift's norm: with what rounding adds for an upper bound, without it for a lower one."""
    batch = event.step.batch
    shifts = [shift_of(part, batch) for part in event.step.parts]
    fixed = sum(c**2 for a, c in shifts if a == 0.0)
    ((a, c),) = [shift for shift in shifts if shift[0] > 0.0] or [(0.0, 0.0)]
    if a == 0.0:
        return np.array([math.sqrt(fixed)]), np.array([1.0])
    part = event.step.parts[0]
    values, law = _directions_law(part.feature_dimension, part.directions, upper=upper)
    return np.sqrt((a * np.sqrt(values) + (c if upper else 0.0)) ** 2 + fixed), law


def _solved(delta) -> float:
    return brentq(lambda epsilon: delta(epsilon) - DELTA, 1e-6, 200.0, rtol=1e-10)


def _gaussian(roots: np.ndarray, law: np.ndarray) -> float:
    """Epsilon of one step on the full batch: the analytic Gaussian profile (Balle, Wang 2018), averaged over U."""
    roots = np.maximum(roots, 1e-12)

    def delta(epsilon: float) -> float:
        below = np.exp(epsilon + norm.logcdf(-roots / 2 - epsilon / roots))
        return float(law @ (norm.cdf(roots / 2 - epsilon / roots) - below))

    return _solved(delta)


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _attained(roots: np.ndarray, law: np.ndarray, gamma: float) -> float:
    """Epsilon that a sampled step cannot stay below: the others' releases at 0, the replaced record's at +-root/2."""
    x = np.linspace(-12.0, 12.0 + roots.max(), 6001)
    likely = law > 1e-12
    halves = roots[likely, None] / 2
    one, other = ((1 - gamma) * _normal(x) + gamma * _normal(x + side * halves) for side in (-1, 1))

    def delta(epsilon: float) -> float:
        return float(law[likely] @ np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0.0), x, axis=1))

    return _solved(delta) if delta(1e-6) > DELTA else 0.0


def _coarser(roots: np.ndarray, law: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Neighbouring values taken together at the smallest of them: still a lower bound."""
    groups = range(0, len(law), max(1, len(law) // count))
    starts = np.array(list(groups))
    return roots[starts], np.add.reduceat(law, starts)


@by_case
def test_one_step_on_all_records_costs_what_the_gaussian_profile_says(case):
    bench = _bench(case, records=RECORDS)
    event = Declared(bench.mechanism, case.declaration, RunSize(RECORDS, 1), bench.facts).event
    price = calibration.epsilon(event, DELTA)
    lower, upper = (_gaussian(*_roots(event, upper=side)) for side in (False, True))
    assert lower * (1 - 1e-6) <= price <= FACTOR * upper, (lower, price, upper)


@pytest.mark.long
@by_case
def test_a_run_costs_at_most_what_autodp_says_and_at_least_what_one_step_attains(case):
    """autodp's Theorem 27, composed and converted by the classic formula; and a pair of data sets with that epsilon."""
    bench = _bench(case, records=RECORDS)
    steps = 30
    event = Declared(bench.mechanism, case.declaration, RunSize(case.batch, steps), bench.facts).event
    checked = check_with_autodp(event)
    price = calibration.epsilon(event, DELTA)
    composed = (
        steps * cost + math.log(1 / DELTA) / (order - 1)
        for order, cost in zip(checked.orders, checked.autodp, strict=True)
    )
    assert price <= min(composed)
    roots, law = _coarser(*_roots(event, upper=False), 150)
    attained = _attained(roots, law, event.step.sampling_ratio)
    assert 0.0 < attained <= price


def test_a_price_that_is_too_low_would_be_detected():
    """The bracket is narrow enough: noise of 1.1 times what is declared does not cost what is declared."""
    for case in CASES:
        bench = _bench(case, records=RECORDS)
        event = Declared(bench.mechanism, case.declaration, RunSize(RECORDS, 1), bench.facts).event
        cheaper = replace(event.step, parts=tuple(replace(part, sigma=1.1 * part.sigma) for part in event.step.parts))
        assert calibration.epsilon(RunEvent(cheaper, 1), DELTA) < _gaussian(*_roots(event, upper=False))


class _LabelsApart(LabelledRows):
    """Clips the values alone, and appends the label afterwards."""

    def released(self, features, U, declared, noise):
        values, labels = features[:, :FEATURES], features[:, FEATURES:]
        values = 0.5 * values / values.norm(dim=1, keepdim=True).clamp(min=1e-9)
        whole = torch.cat([values, declared.label_weight * (labels > 0.0)], dim=1)
        return super().released(whole, U, declared, noise)


def test_a_label_that_is_appended_after_the_clip_is_detected():
    """Rows whose values alone are clipped move further than is accounted; the honest ones of the same search do not."""
    (case,) = [case for case in CASES if case.name == "labelled rows"]

    def worst(mechanism):
        bench, rng = Bench(mechanism, case, records=8), np.random.default_rng(17)
        return max(
            bench.squared_shifts(*pair, bytes(32))[0] / bench.accounted(*pair, bytes(32))[0][0]
            for pair in neighbours(8, rng)
        )

    assert worst(LABELLED_ROWS) <= 1.0 + 1e-5
    assert worst(_LabelsApart()) > 1.1
