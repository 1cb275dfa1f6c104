"""Sliced distribution functions as a sum: what is counted, how far one record moves it, and what it says."""

from __future__ import annotations

import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from exploring import tried
from hospital import NoNoise
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.core.mechanisms.linear import Shard, ShardSum, added
from dpswd.shared.core.noise.directions import orthogonal_directions, orthogonal_norm
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.published_mechanisms.distributions import histograms
from dpswd.shared.published_mechanisms.distributions.encoding import (
    CELLS,
    THRESHOLDS,
    cell_table,
    encoded,
    largest_coefficient,
)
from dpswd.shared.published_mechanisms.distributions.histograms import ProjectionCounts, public_directions
from dpswd.shared.published_mechanisms.distributions.mechanism import (
    DISTRIBUTIONS,
    LABELLED_DISTRIBUTIONS,
    DistributionsDeclaration,
    Released,
)

CPU = torch.device("cpu")


def counted(features, labels=None, *, classes=0, k=10, window=0.5, feature_map=None):
    counter = ProjectionCounts(
        classes=classes, seed=3, dimension=features.shape[1], directions=k, window=window,
        feature_map=feature_map, device=CPU,
    )  # fmt: skip
    counter.add(torch.from_numpy(features.astype(np.float32)), labels)
    return counter.sums


@pytest.mark.parametrize(("d", "k"), [(1, 3), (2, 5), (7, 7), (64, 200), (300, 40)])
def test_directions_are_whole_multiples_and_no_unit_vector_reaches_further_than_is_said(d, k):
    U = orthogonal_directions(bytes(31) + b"\x01", d, k)
    assert torch.equal(U, orthogonal_directions(bytes(31) + b"\x01", d, k))
    assert torch.equal(U * 2**20, (U * 2**20).round())
    reached = float(torch.linalg.matrix_norm(U, 2))
    assert reached <= orthogonal_norm(d, k) < reached * (1.0 + 1e-4)
    np.testing.assert_allclose(U.norm(dim=0), 1.0, atol=1e-5)
    if k % d == 0:  # every unit vector reaches as far
        np.testing.assert_allclose(torch.linalg.svdvals(U), math.sqrt(k / d), rtol=1e-5)


def test_counts_are_those_of_a_loop_over_records_whatever_the_parts():
    rng = np.random.default_rng(1)
    features = (rng.normal(size=(700, 4)) * 0.3).astype(np.float32)
    labels = rng.integers(UNLABELLED, 3, size=700)
    features[5], features[6, 1] = np.nan, np.inf
    own_map = FeatureMap(torch.full((4,), 0.1), torch.full((4,), 0.7))
    (whole,) = counted(features, labels, classes=3, feature_map=own_map)
    parts = [slice(0, 1), slice(1, 333), slice(333, 700)]
    halves = [counted(features[part], labels[part], classes=3, feature_map=own_map) for part in parts]
    total = added(
        [ShardSum(Shard(part.start, part.stop), sums) for part, sums in zip(parts, halves, strict=True)], records=700
    )
    np.testing.assert_array_equal(total.sums[0], whole)
    U = public_directions(3, 4, 10).numpy()
    clipped = own_map.clipped(torch.from_numpy(features)).double().numpy()
    looped, near = np.zeros((3, 10, CELLS), dtype=np.int64), 0
    for row, label in zip(clipped, labels, strict=True):
        for j in range(10):
            place = float(row @ U[:, j]) * THRESHOLDS / 0.5
            near += abs(place - math.floor(place) - 0.5) < 1e-3  # on an edge, within float32's rounding
            if label != UNLABELLED:
                cell = min(max(round(place), -THRESHOLDS // 2), THRESHOLDS // 2)
                looped[label, j, cell + THRESHOLDS // 2] += 1
    assert np.abs(whole - looped).sum() <= 2 * near < 200
    assert (whole.sum(axis=2) == np.bincount(labels[labels >= 0], minlength=3)[:, None]).all()


def test_the_release_without_noise_is_the_smooth_encoding_summed_by_class():
    rng = np.random.default_rng(2)
    d, k, L, n = 5, 10, 12, 4000
    features, labels = (rng.normal(size=(n, d)) * 0.15).astype(np.float32), rng.integers(3, size=n)
    for mechanism, classes in ((LABELLED_DISTRIBUTIONS, 3), (DISTRIBUTIONS, 0)):
        declared = DistributionsDeclaration(classes, k, L, 0.6, 2.0 if classes else 0.0, 1e-3, directions_seed=3)
        facts = Facts(DataSetFacts(n, (d,), 3), ModelFacts((d,), d, {}))
        counter = mechanism.accumulator(declared, facts, CPU)
        counter.add(torch.from_numpy(features), labels if classes else None)
        reply = mechanism.released(declared, facts, ShardSum(Shard(0, n), counter.sums), NoNoise())
        released = Released.of(mechanism.reply.from_bytes(reply.to_bytes()), declared)
        clipped = FeatureMap.identity(d).clipped(torch.from_numpy(features)).double()
        each = encoded(clipped @ public_directions(3, d, k), window=0.6, coefficients=L)  # (n, L, k)
        kinds = labels if classes else np.zeros(n, dtype=np.int64)
        exact = np.stack([each[kinds == c].sum(dim=0).numpy() for c in range(max(1, classes))])
        # A cell is a 256th of the window; that each record lies at its middle averages out.
        assert np.abs(released.coefficients - exact).max() < 4.0 * math.sqrt(n / THRESHOLDS)
        np.testing.assert_allclose(released.counts, np.bincount(labels, minlength=3)[: max(0, classes)], atol=0.01)
    assert np.abs(cell_table(THRESHOLDS)).max() <= largest_coefficient()


def _reached(table, one, other, same, weight):
    apart = table[one] - table[other] if same else np.concatenate([table[one], table[other]])
    return float((apart**2).sum()) + (0.0 if same else 2.0 * weight**2)


@settings(max_examples=tried(25))
@given(st.data())
def test_no_two_records_are_further_apart_than_the_theorem_says(data):
    """Cells of pairs on and inside the ball, opposite and spread out, for windows of all widths."""
    d, k = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 70))
    L = data.draw(st.sampled_from([1, 2, 3, 9, 60, 256]))
    window = data.draw(st.sampled_from([0.01, 0.2, 0.5, 1.0]))
    weight = data.draw(st.sampled_from([0.0, 1.0, 30.0]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    declared = DistributionsDeclaration(2, k, L, window, weight, 1.0, directions_seed=3)
    U, table = public_directions(3, d, k).numpy(), cell_table(L)
    # Towards the vector whose projections are all alike, which is where the bound is reached.
    level = np.linalg.lstsq(U.T, rng.choice([-1.0, 1.0], size=k), rcond=None)[0]
    records = []
    for base in (level, rng.normal(size=d), U[:, 0]):
        one = base / max(np.linalg.norm(base), 1e-9) * 5.0
        others = -one, one * rng.normal(), one + 0.02 * rng.normal(size=d), rng.normal(size=d), 0.0 * one
        records += [one, *others]
    # Each record is a class of its own, so that one pass tells the cells of all.
    (counts,) = counted(np.stack(records), np.arange(18), classes=18, k=k, window=window)
    bound = declared.sensitivity(d) ** 2
    for one, *others in counts.argmax(axis=2).reshape(3, 6, k):
        for other, same in itertools.product(others, (True, False)):
            assert _reached(table, one, other, same, weight) <= bound


def test_the_bound_is_nearly_reached_and_the_price_does_not_grow_with_coefficients():
    """At opposite records whose projections are all alike, of one class and of two."""
    d = 16
    U = public_directions(3, d, d).numpy()
    level = U @ np.ones(d)  # orthogonal: its projections are all 1
    for L, floor in ((1, 0.97), (256, 0.97)):
        for weight in (0.0, 5.0):
            declared = DistributionsDeclaration(2, d, L, 0.3, weight, 1.0, directions_seed=3)
            cells = counted(np.stack([level, -level]), np.array([0, 1]), classes=2, k=d, window=0.3)[0].argmax(axis=2)
            worst = max(_reached(cell_table(L), *cells, same, weight) for same in (True, False))
            assert floor * declared.sensitivity(d) ** 2 <= worst <= declared.sensitivity(d) ** 2
    many, few = (DistributionsDeclaration(0, d, L, 0.6, 0.0, 1.0) for L in (256, 3))
    assert many.sensitivity(d) == few.sensitivity(d)
    facts = Facts(DataSetFacts(1000, (d,), 4), ModelFacts((d,), d, {}))
    (part,) = LABELLED_DISTRIBUTIONS.parts(DistributionsDeclaration(4, d, 3, 0.6, 1.0, 50.0), RunSize(1000), facts)
    assert (part.values, part.changed) == (4 + 4 * 3 * d, 2 + 2 * 3 * d)


def test_shards_that_begin_together_wait_for_one_draw_of_their_directions(monkeypatch):
    drawn = []

    def slow(*arguments):
        drawn.append(arguments)
        time.sleep(0.05)
        return orthogonal_directions(*arguments)

    monkeypatch.setattr(histograms, "orthogonal_directions", slow)
    seed = 2**31 - 5  # of no other test: directions are remembered
    with ThreadPoolExecutor(3) as threads:
        directions = list(threads.map(lambda _: public_directions(seed, 3, 4), range(3)))
    assert directions[0] is directions[1] is directions[2]
    public_directions(seed + 1, 3, 4)  # of a run that is tried in the middle of the pass
    assert public_directions(seed, 3, 4) is directions[0]
    assert len(drawn) == 2
