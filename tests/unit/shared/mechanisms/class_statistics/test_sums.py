"""Exact sums of class statistics: the same bits in any parts, and never further apart than the theorem says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from exploring import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.private_curator.cluster.task import sum_from_bytes, sum_to_bytes
from dpswd.private_curator.steps.shards import shards
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.class_statistics import sums
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.core.mechanisms.class_statistics.sums import ClassSums, feature_bits, signed_bytes
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts
from dpswd.shared.core.mechanisms.linear import Shard, ShardSum, added, block_records, blocks
from dpswd.shared.core.mechanisms.rounded_features import radius, rounded_features
from dpswd.shared.core.noise.feature_map import FeatureMap

CPU = torch.device("cpu")


def sums_of(features, labels, *, classes=3, bits=13, rows=None, order=None):
    counter = ClassSums(
        classes=classes, dimension=features.shape[1], moments=True, bits=bits, feature_map=None, device=CPU
    )
    order = np.arange(len(features)) if order is None else order
    for start in range(0, len(features), rows or len(features)):
        part = order[start : start + (rows or len(features))]
        counter.add(torch.from_numpy(features[part]), labels[part])
    return counter.sums


def test_sums_are_those_of_python_integers_whatever_the_rows_the_order_and_the_threads():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(5000, 6)).astype(np.float32)
    features[7, 2], features[8, 0] = np.nan, np.inf
    labels = rng.integers(3, size=5000)
    whole = sums_of(features, labels)
    v = [[int(x) for x in row] for row in rounded_features(torch.from_numpy(features), None, bits=13).tolist()]
    for a in range(6):
        assert whole[1][1, a] == sum(row[a] for row, label in zip(v, labels, strict=True) if label == 1)
        for b in range(6):
            exact = sum(row[a] * row[b] for row in v) if b >= a else 0
            assert whole[2][a, b] == exact  # in Python's integers, without a last bit
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        parts = [sums_of(features, labels, rows=rows) for rows in (1000, 4096, 617)]
    finally:
        torch.set_num_threads(threads)
    for other in (*parts, sums_of(features, labels, rows=999, order=rng.permutation(5000))):
        for one, two in zip(whole, other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.fixture(params=[True, False], ids=["bytes", "float64"])
def by_bytes(request, monkeypatch):
    """Both ways of a processor to the same products."""
    if request.param and not sums.short_products():
        pytest.skip("this processor multiplies no bytes exactly and fast")
    monkeypatch.setattr(sums, "short_products", lambda: request.param)


@pytest.mark.usefixtures("by_bytes")
def test_the_largest_sums_that_are_allowed_stay_exact():
    """A block of records, all equal and as large as can be: 2^11 in float32, products in int32, 2^36 in int64."""
    assert {feature_bits(records) for records in (2, 10**8, 2**36)} == {13}
    ones = np.zeros((sums._ROWS, 2), dtype=np.float32)
    ones[:, 0] = -9.0
    _, features, moments = sums_of(ones, np.zeros(len(ones), dtype=np.int64), rows=len(ones))
    v = int(rounded_features(torch.from_numpy(ones[:1]), None, bits=13)[0, 0])
    assert v == -(2**13)
    assert features.tolist() == [[len(ones) * v, 0], [0, 0], [0, 0]]
    assert moments.tolist() == [[len(ones) * v * v, 0], [0, 0]]
    assert len(ones) * 128**2 < 2**31  # of the lowest bytes, wherever they stand
    assert 2048 * -v <= 2**24
    for records in (2, 60_000, 10**8, 2**40):
        assert records * radius(2, feature_bits(records)) ** 2 < 2**63


def test_products_by_bytes_and_in_float64_are_the_same(monkeypatch):
    rng = np.random.default_rng(3)
    features = rng.normal(size=(3000, 65)).astype(np.float32) * rng.choice([0.01, 0.1, 9.0], size=(3000, 1))
    labels = rng.integers(-1, 3, size=3000)  # some records have none
    ways = []
    for short in {False, sums.short_products()}:
        monkeypatch.setattr(sums, "short_products", lambda short=short: short)
        ways.append(sums_of(features.astype(np.float32), labels, rows=1999))
    v = rounded_features(torch.from_numpy(features.astype(np.float32)), None, bits=13).numpy()[labels >= 0]
    for counts, by_class, moments in ways:
        np.testing.assert_array_equal(counts, np.bincount(labels[labels >= 0], minlength=3))
        np.testing.assert_array_equal(by_class.sum(axis=0), v.sum(axis=0, dtype=np.float64))
        np.testing.assert_array_equal(moments, np.triu(v.astype(np.int64).T @ v.astype(np.int64)))


def test_bytes_hold_every_number_that_they_may():
    v = torch.arange(-32640, 32640)[:, None]
    halves = signed_bytes(v.float()).long()
    assert torch.equal(halves[:, :1] + 256 * halves[:, 1:], v)


@settings(max_examples=tried(80))
@given(st.data())
def test_rounded_records_stay_within_the_radius_and_the_theorem_holds_for_them(data):
    """Also for records that the clip cannot shorten further, and many coordinates that round up together."""
    d = data.draw(st.integers(1, 200))
    scale = data.draw(st.sampled_from([1e-3, 0.05, 0.5, 1.0, 1e20]))
    bits = data.draw(st.sampled_from([3, 13, 20]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    pair = (scale * rng.choice([-1.0, 1.0, rng.normal()], size=(2, d))).astype(np.float32)
    own_map = FeatureMap(torch.zeros(d), torch.full((d,), 0.9))
    v = rounded_features(torch.from_numpy(pair), own_map, bits=bits).double().numpy()
    reach = radius(d, bits)
    assert (v == np.round(v)).all()
    assert int((v * v).sum(axis=1).max()) <= reach**2
    one, other = v / reach
    weights = Weights(3, 0.7, 0.7, 0.5)
    for labels in ((0, 0), (0, 1)):
        code = np.eye(3)[list(labels)] - weights.centring / 3
        first, second = (
            np.concatenate([np.outer(c, [0.7, *u]).ravel(), 0.7 * np.outer(u, u).ravel()])
            for c, u in zip(code, (one, other), strict=True)
        )
        assert np.linalg.norm(first - second) <= weights.sensitivity() * (1 + 1e-12)


def facts(records, *, values=64, d=64):
    return Facts(DataSetFacts(records, (values,), 2), ModelFacts((values,), d, {}))


def test_shards_hold_every_record_once_and_end_where_blocks_do():
    for records, count in ((5, 3), (16384, 7), (200_003, 7), (200_003, 1), (10**8, 96)):
        parts = shards(facts(records), count)
        assert len(parts) <= count
        assert parts[0].start == 0
        assert parts[-1].stop == records
        assert all(a.stop == b.start for a, b in itertools.pairwise(parts))
        assert all(part.count > 0 and part.start % block_records(facts(records)) == 0 for part in parts)
    whole = list(blocks(Shard(0, 200_003), facts(200_003)))
    divided = [block for part in shards(facts(200_003), 7) for block in blocks(part, facts(200_003))]
    assert divided == whole
    assert block_records(facts(10)) == 16384
    assert block_records(facts(10, values=3 * 224 * 224)) == 16
    assert block_records(facts(10, values=2**30)) == 1


def test_a_total_needs_each_record_exactly_once():
    def part(start, stop, value=1):
        return ShardSum(Shard(start, stop), (np.full(2, value, dtype=np.int64),))

    total = added([part(6, 9, 4), part(0, 4, 1), part(4, 6, 2)], records=9)
    np.testing.assert_array_equal(total.sums[0], [7, 7])
    for wrong in ([part(0, 4)], [part(0, 5), part(4, 9)], [part(0, 4), part(0, 4), part(4, 9)], [part(4, 9)], []):
        with pytest.raises(InvalidValue, match="exactly once"):
            added(wrong, records=9)
    like = (np.zeros((2, 3), dtype=np.int64), np.zeros((0, 0), dtype=np.int64))
    sent = ShardSum(Shard(4, 9), (np.arange(6).reshape(2, 3) - 2**40, like[1]))
    back = sum_from_bytes(sum_to_bytes(sent), shard=sent.shard, like=like)
    assert back.shard == sent.shard
    np.testing.assert_array_equal(back.sums[0], sent.sums[0])
    for broken in (b"", sum_to_bytes(sent)[:-1], sum_to_bytes(sent) + b"x"):
        with pytest.raises(InvalidValue, match="bytes"):
            sum_from_bytes(broken, shard=sent.shard, like=like)
    with pytest.raises(InvalidValue, match="sizes"):
        sum_from_bytes(sum_to_bytes(sent), shard=sent.shard, like=like[::-1])
    with pytest.raises(InvalidValue, match="another shard"):
        sum_from_bytes(sum_to_bytes(sent), shard=Shard(4, 8), like=like)
