from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dpswd.shared.core.noise.grid_gaussian import AliasTable, gaussian_weights, grid_gaussian_table
from dpswd.shared.core.noise.keystream import Keystream


class Replay:
    """A keystream that returns prepared words, for the paths that chance reaches once in 2^48 values."""

    position = 0

    def __init__(self, *words: int, ties: list[int] | None = None) -> None:
        self.prepared = np.array(words, dtype=np.uint64)
        self.ties = ties or []

    def words(self, count: int) -> np.ndarray:
        assert len(self.prepared) == count
        return self.prepared

    def tie_word(self, place: int) -> int:
        return self.ties[place]


@pytest.mark.parametrize("exponent", [0, 1, 4, 11])
def test_weights_agree_with_mpmath(exponent: int) -> None:
    steps = 1 << exponent
    weights = gaussian_weights(exponent)
    half = mpmath.mpf(1) / 2
    with mpmath.workdps(80):
        for n in {1, 2, steps, 3 * steps + 1, 7 * steps, len(weights) - 1}:
            exact = mpmath.ncdf(-(n - half) / steps) - mpmath.ncdf(-(n + half) / steps)
            assert abs(weights[n] - exact * 2**128) <= 1  # half a unit of rounding, a little of the constant
        # The centre takes up what rounding left, at most half a unit from each of the others.
        exact = mpmath.ncdf(half / steps) - mpmath.ncdf(-half / steps)
        assert abs(weights[0] - exact * 2**128) <= len(weights)


def test_table_holds_exactly_the_weights() -> None:
    weights = gaussian_weights(11)
    table = grid_gaussian_table.__wrapped__()  # made here and now, so that a fault in its making is this test's
    masses: dict[int, int] = {}
    for column in range(1 << 16):
        word, low = int(table.thresholds[column]), int(table.tie_breaks[column])
        assert word >> 48 == column
        own = ((word & (2**48 - 1)) << 64) | low
        masses[column - 2**15] = masses.get(column - 2**15, 0) + own
        alias = int(table.aliases[column])
        masses[alias] = masses.get(alias, 0) + 2**112 - own
    assert sum(masses.values()) == 2**128
    for value, mass in masses.items():
        assert mass == (weights[abs(value)] if abs(value) < len(weights) else 0), value


def test_threshold_is_compared_to_all_its_bits() -> None:
    table = grid_gaussian_table()
    shared = (table.tie_breaks > 0) & (table.thresholds & np.uint64(2**48 - 1) > 0)
    column = int(np.flatnonzero(shared & (table.aliases != np.arange(1 << 16) - 2**15))[0])
    threshold, low = int(table.thresholds[column]), int(table.tie_breaks[column])
    own, alias = column - 2**15, int(table.aliases[column])
    assert table.sample(Replay(threshold - 1, threshold + 1), 2).tolist() == [own, alias]
    tied = Replay(threshold - 1, threshold, threshold, ties=[0, low - 1, low])
    assert table.sample(tied, 3).tolist() == [own, own, alias]


def test_small_table_follows_its_columns() -> None:
    # Every word below 2^63 belongs to its own column, every other word to the alias 7.
    columns = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    full = columns | np.uint64(2**48 - 1)
    table = AliasTable(
        thresholds=np.where(columns < 2**63, full, columns),
        tie_breaks=np.zeros(1 << 16, dtype=np.uint64),
        aliases=np.full(1 << 16, 7, dtype=np.int64),
    )
    drawn = table.sample(Keystream(b"s" * 32), 40_000)
    words = Keystream(b"s" * 32).words(40_000)
    expected = np.where(words < 2**63, (words >> np.uint64(48)).astype(np.int64) - 2**15, 7)
    assert np.array_equal(drawn, expected)
