"""The benchmark of moved columns: its worlds are what they say, and the page shows what is on file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import moved_columns, records

PAGE = Path(__file__).parents[3] / "docs" / "ml-team" / "normalisation.md"


def test_the_page_shows_what_is_on_file():
    runs = records.read(moved_columns.RESULTS)
    seeds = sum(map(len, moved_columns.SEEDS.values()))
    assert len(runs) == seeds * len((*moved_columns.OFFSETS, *moved_columns.UNITS))
    assert "\n".join(moved_columns.lines(moved_columns.summary(runs))) in PAGE.read_text()


@pytest.mark.parametrize("seed", [40, 41, 42])
def test_one_column_is_in_other_units_and_the_others_stay(seed):
    world = moved_columns.World(seed)
    rows, labels = world.drawn(2000, 1, "first")
    assert (labels == 0).mean() > 0.65
    made, one = world.moved(rows, "x 2.2", 0.0), seed % world.columns
    np.testing.assert_allclose(made[:, one], 2.2 * rows[:, one])
    np.testing.assert_array_equal(np.delete(made, one, 1), np.delete(rows, one, 1))
    elsewhere = world.moved(rows, "up", 0.5) - rows
    np.testing.assert_allclose(elsewhere, np.broadcast_to(elsewhere[0], elsewhere.shape), atol=1e-9)
