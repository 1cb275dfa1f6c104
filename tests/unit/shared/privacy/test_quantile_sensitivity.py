"""The sensitivity of sliced quantile coefficients, attacked: docs/privacy/sliced-quantile-coefficients.md.

Thousands of data sets of several shapes, and a hill climb, look for the record swap that moves the coefficients
farthest. The search must come close to (kappa / b) ||z U||^2 and never exceed it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis
from dpswd.shared.core.privacy.events import QuantileCoefficients, RowProjections, StepEvent


def ratio(basis: np.ndarray, records: np.ndarray, other: np.ndarray, directions: np.ndarray, kappa: float) -> float:
    """||c - c'||_F^2 over its bound (kappa / b) ||z U||^2, where the first record becomes ``other``."""
    b = records.shape[0]
    changed = records.copy()
    changed[0] = other
    moved = basis.T @ (np.sort(records @ directions, axis=0) - np.sort(changed @ directions, axis=0))
    energy = float((((records[0] - other) @ directions) ** 2).sum())
    return float((moved**2).sum()) / (kappa / b * energy) if energy > 1e-12 else 0.0


def ball(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Points in the ball of radius 1/2, where the curator's clipping puts them."""
    x = rng.standard_normal(shape)
    return 0.5 * x / np.linalg.norm(x, axis=-1, keepdims=True) * rng.random((*shape[:-1], 1)) ** rng.uniform(0.1, 1.0)


def data_set(rng: np.random.Generator, b: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Records and the first one's replacement: spread out, in a cluster of any size, or in two clusters."""
    kind = rng.integers(0, 3)
    records = ball(rng, (b, d))
    if kind == 1:
        records = records[0] * rng.random() + 10.0 ** rng.uniform(-6, -0.5) * (records - records[0])
    elif kind == 2:
        records = np.where(rng.random((b, 1)) < 0.5, 0.5, -0.5) * np.eye(d)[0] + 1e-3 * records
    norms = np.linalg.norm(records, axis=1, keepdims=True)
    records *= np.minimum(1.0, 0.5 / np.maximum(norms, 1e-300))
    other = -records[0] if rng.random() < 0.5 else ball(rng, (d,))
    return records, other


def units(rng: np.random.Generator, d: int, k: int) -> np.ndarray:
    x = rng.standard_normal((d, k))
    return x / np.linalg.norm(x, axis=0)


@pytest.mark.parametrize(("b", "count"), [(2, 1), (2, 2), (8, 3), (64, 2), (64, 10), (512, 2), (32, 32)])
@pytest.mark.long
def test_the_worst_of_thousands_of_swaps_is_close_to_the_bound_and_never_above(b, count):
    rng = np.random.default_rng(b * 1000 + count)
    basis = cosine_basis(b, count).numpy()
    kappa = 1 + 2 * (count - 1)
    attained = b * (basis**2).sum(axis=1).max()  # the bound's leverage form, docs page, theorem 2
    assert attained <= kappa * (1 + 1e-12)
    worst = 0.0
    for _ in range(2500):
        d, k = int(rng.integers(1, 12)), int(rng.integers(1, 12))
        records, other = data_set(rng, b, d)
        worst = max(worst, ratio(basis, records, other, units(rng, d, k), kappa))
    assert worst <= attained / kappa * (1 + 1e-9)
    assert worst >= 0.98 * attained / kappa
    if count**2 < b:
        assert worst >= 0.95


def test_an_annealed_climb_from_spread_out_data_approaches_the_bound_from_below():
    rng = np.random.default_rng(9)
    b, d, k, count, kappa = 12, 2, 2, 2, 3.0
    basis = cosine_basis(b, count).numpy()
    attained = b * (basis**2).sum(axis=1).max() / kappa
    reached = 0.0
    for _ in range(3):
        directions = units(rng, d, k)
        records, other = ball(rng, (b, d)), ball(rng, (d,))
        current = ratio(basis, records, other, directions, kappa)
        assert current < 0.9 * attained
        for i in range(5000):
            trial, swap = records.copy(), other.copy()
            row = rng.integers(0, b + 1)
            moved = swap if row == b else trial[row]
            moved += 10.0 ** rng.uniform(-2.5, 0) * rng.standard_normal(d)
            moved *= min(1.0, 0.5 / float(np.linalg.norm(moved)))
            value = ratio(basis, trial, swap, directions, kappa)
            assert value <= attained * (1 + 1e-9)
            if value > current - 0.02 * rng.exponential() * (1 - i / 5000) ** 2:
                current, records, other = value, trial, swap
        reached = max(reached, current)
    assert reached > 0.95 * attained


@given(
    values=hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1, 1, width=32)),
    new=st.floats(-1, 1, width=32),
)
@settings(max_examples=tried(150))
def test_sorting_moves_every_entry_the_same_way_and_by_the_change_in_total(values, new):
    # Lemma 1 of the page: the sorted vectors differ entrywise with one sign, and in L1 by |new - old|.
    changed = values.copy()
    changed[0] = new
    moved = np.sort(changed) - np.sort(values)
    change = new - values[0]
    assert np.all(moved * np.sign(change) >= 0.0)
    assert np.abs(moved).sum() == pytest.approx(abs(change), abs=1e-12)


def test_one_coordinate_at_the_end_attains_the_cosine_bound_but_for_a_cosine():
    # All records at one place, one of them moves up: the sorted vector moves in its last entry alone.
    b, count = 512, 4
    basis = cosine_basis(b, count).numpy()
    records = np.full((b, 1), -0.5)
    value = ratio(basis, records, np.array([0.5]), np.ones((1, 1)), 1 + 2 * (count - 1))
    exact = (1 + 2 * sum(math.cos(math.pi * j / (2 * b)) ** 2 for j in range(1, count))) / (1 + 2 * (count - 1))
    assert value == pytest.approx(exact, rel=1e-12)
    assert value > 0.9999


def haar_like_blocks(b: int, count: int) -> np.ndarray:
    return np.repeat(np.eye(count), b // count, axis=0) * math.sqrt(count / b)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_orthonormal_basis_has_leverage_at_least_its_size_and_block_means_attain_it(count):
    b = 64
    rng = np.random.default_rng(count)
    random_basis = np.linalg.qr(rng.standard_normal((b, count)))[0]
    for basis in (random_basis, cosine_basis(b, count).numpy(), haar_like_blocks(b, count)):
        assert b * (basis**2).sum(axis=1).max() >= count - 1e-9  # theorem 3 of the page
    assert b * (haar_like_blocks(b, count) ** 2).sum(axis=1).max() == pytest.approx(count)


def test_the_leverage_bound_holds_for_block_means_where_the_sum_of_sup_norms_is_far_above():
    rng = np.random.default_rng(4)
    b, count = 64, 8
    basis = haar_like_blocks(b, count)
    worst = 0.0
    for _ in range(2000):
        d, k = int(rng.integers(1, 8)), int(rng.integers(1, 8))
        records, other = data_set(rng, b, d)
        worst = max(worst, ratio(basis, records, other, units(rng, d, k), float(count)))
    assert 0.98 < worst <= 1 + 1e-9
    assert b * (basis**2).max(axis=0).sum() == pytest.approx(count**2)


@pytest.mark.parametrize(("b", "count"), [(512, 2), (64, 10), (32, 32), (8, 8)])
def test_the_event_charges_what_the_attack_can_reach(b, count):
    sigma = 0.7
    law = StepEvent(1000, b, (QuantileCoefficients(16, 4, count, sigma),)).shift()
    basis = cosine_basis(b, count).numpy()
    reachable = (basis**2).sum(axis=1).max()  # per unit of H
    assert law.scale >= reachable / sigma**2 * (1 - 1e-12)
    assert law.scale <= min(1.0, 1.5 * reachable) / sigma**2
    assert law.constant == 0.0


def test_all_coefficients_of_an_orthonormal_basis_cost_what_rows_cost():
    rows = StepEvent(1000, 32, (RowProjections(16, 4, 0.7),)).shift()
    assert StepEvent(1000, 32, (QuantileCoefficients(16, 4, 32, 0.7),)).shift() == rows


def share_inside(basis: np.ndarray, difference: np.ndarray) -> float:
    """Share of a difference's squared norm inside the span of orthonormal columns."""
    return float(((basis.T @ difference) ** 2).sum() / (difference @ difference))


@pytest.mark.parametrize(
    ("name", "count", "kappa", "lost"),
    [
        ("cosine", 2, 3, 10.0),
        ("cosine", 5, 9, 4.2),
        ("blocks", 2, 2, 36.3),
        ("blocks", 4, 4, 13.9),
        ("clipped", 2, 3, 9.0),
    ],
)
def test_the_pages_comparison_of_bases_on_the_scale_of_a_normal_law(name, count, kappa, lost):
    from scipy.stats import norm

    b = 4096
    score = norm.ppf((np.arange(b) + 0.5) / b)
    if name == "cosine":
        basis = cosine_basis(b, count).numpy()
    elif name == "blocks":
        basis = haar_like_blocks(b, count)
    else:  # the clipped normal score of largest value sqrt(2) and norm 1, by bisection on its slope
        low, high = 1.0, 100.0
        for _ in range(80):
            slope = 0.5 * (low + high)
            g = np.clip(slope * score, -math.sqrt(2), math.sqrt(2))
            low, high = (slope, high) if g @ g < b else (low, slope)
        basis = np.stack([np.ones(b), g], axis=1) / math.sqrt(b)
    assert b * (basis**2).sum(axis=1).max() == pytest.approx(kappa, rel=1e-5)
    assert 100 * (1 - share_inside(basis, score)) == pytest.approx(lost, abs=0.06)
