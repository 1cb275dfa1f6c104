from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.steps.sampling import sample_without_replacement

ALPHA = 1e-6  # the false-alarm rate of each statistical test below


@given(records=st.integers(1, 200), data=st.data())
def test_records_are_distinct_and_in_range(records: int, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, records))
    sample = sample_without_replacement(records, batch)
    assert sample.shape == (batch,)
    assert sample.dtype == np.int64
    assert len(set(sample.tolist())) == batch
    assert sample.min() >= 0
    assert sample.max() < records


@pytest.mark.statistical
@pytest.mark.parametrize(("records", "batch"), [(4, 4), (5, 3), (7, 2)])
def test_every_ordered_tuple_is_equally_likely(records: int, batch: int) -> None:
    tuples = {t: i for i, t in enumerate(itertools.permutations(range(records), batch))}
    counts = np.zeros(len(tuples))
    for _ in range(200 * len(tuples)):
        counts[tuples[tuple(sample_without_replacement(records, batch).tolist())]] += 1
    assert chisquare(counts).pvalue > ALPHA


@pytest.mark.statistical
def test_every_ordered_pair_of_places_is_uniform() -> None:
    records, batch, rounds = 30, 12, 30_000
    samples = np.stack([sample_without_replacement(records, batch) for _ in range(rounds)])
    for first, second in [(0, 1), (1, 0), (0, 11), (5, 6), (10, 11)]:
        counts = np.bincount(samples[:, first] * records + samples[:, second], minlength=records**2)
        pairs = counts.reshape(records, records)
        assert not pairs.diagonal().any()
        assert chisquare(pairs[~np.eye(records, dtype=bool)]).pvalue > ALPHA / 5


@pytest.mark.statistical
def test_a_full_batch_is_a_uniform_permutation() -> None:
    records, rounds = 40, 4_000
    samples = np.stack([sample_without_replacement(records, records) for _ in range(rounds)])
    assert (np.sort(samples, axis=1) == np.arange(records)).all()
    counts = np.zeros((records, records))
    for place in range(records):
        counts[place] = np.bincount(samples[:, place], minlength=records)
    # Rows and columns each sum to `rounds`: (n - 1)^2 degrees of freedom.
    assert chisquare(counts.ravel(), ddof=2 * records - 2).pvalue > ALPHA


def test_words_that_would_favour_small_numbers_are_redrawn() -> None:
    # 2^64 = 1 (mod 3): only the word 2^64 - 1 must be refused for n = 3.
    answers = [b"\xff" * 8, (2**64 - 2).to_bytes(8, "little")]
    sample = sample_without_replacement(3, 1, entropy=lambda count: answers.pop(0))
    assert sample.tolist() == [(2**64 - 2) % 3]
    assert not answers
    # A power of two divides 2^64: every word is good.
    assert sample_without_replacement(4, 1, entropy=lambda count: b"\xff" * count).tolist() == [3]


def test_the_draw_is_the_shuffle_of_the_words() -> None:
    # Offsets 2, 2, 0 on [0, 1, 2, 3]: take 2 (0 moves there), take 3 of [_, 1, 0, 3], take what stands third.
    words = [2, 2, 0]
    entropy = b"".join(word.to_bytes(8, "little") for word in words)
    assert sample_without_replacement(4, 3, entropy=lambda count: entropy).tolist() == [2, 3, 0]


def test_memory_follows_the_batch_not_the_records() -> None:
    tracemalloc.start()
    sample_without_replacement(10_000_000, 512)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000  # bytes; a list of all records would take 80 MB


@pytest.mark.parametrize(("records", "batch"), [(3, 4), (3, 0), (0, 0), (3, -1)])
def test_impossible_samples_are_refused(records: int, batch: int) -> None:
    with pytest.raises(InvalidValue, match="between 1 and"):
        sample_without_replacement(records, batch)
