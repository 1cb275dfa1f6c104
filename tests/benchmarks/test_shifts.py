"""The battery of shifts: its cells, its made shifts, its summary and its page."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from benchmarks import records
from benchmarks.shifts import __main__ as battery
from benchmarks.shifts import low_rank
from benchmarks.shifts.cells import EPSILONS, SEEDS, all_cells, thin_cells
from benchmarks.shifts.made import LOW_RANK, SHIFTS
from benchmarks.shifts.summary import page, summary, table, thin_table
from public_client.data.datasets import Labelled


def data(kind: str) -> Labelled:
    generator = torch.Generator().manual_seed(0)
    shape = (1, 14, 14) if kind == "images" else (12,)
    records = torch.rand(400, *shape, generator=generator) * 2.0 - 1.0
    return Labelled(records, torch.arange(400) % (2 if kind == "tables" else 10))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, own in SHIFTS.items() for name in own])
def test_a_made_shift_keeps_shapes_and_changes_what_it_says(kind, name):
    before = data(kind)
    after = SHIFTS[kind][name](before, torch.Generator().manual_seed(1))
    assert after.images.shape[1:] == before.images.shape[1:]
    assert len(after.labels) == len(after.images) > 0
    assert bool(torch.isfinite(after.images).all())
    fewer = name in {"half", "ten-to-one", "hundred-to-one", "half-and-turned", "covariate"}
    assert (len(after) < len(before)) is fewer
    unchanged = name in {"none", "concept"}
    if not fewer:
        assert torch.equal(after.images, before.images) is unchanged
        assert torch.equal(after.labels, before.labels) is (name != "concept")


@pytest.mark.parametrize("name", LOW_RANK)
def test_a_shift_along_few_directions_leaves_the_others(name):
    """Of 400 records' differences, in columns of deviation 1, two directions hold all but the rounding."""
    before = data("vectors")
    after = LOW_RANK[name](before, torch.Generator().manual_seed(1))
    changed = (after.images - before.images) / before.images.std(dim=0)
    sizes = torch.linalg.svdvals(changed.double())
    assert float(sizes[0]) > 5.0
    assert float(sizes[2]) < 1e-3 * float(sizes[0])
    assert torch.equal(after.labels, before.labels)


def test_half_of_the_classes_is_half_and_ten_to_one_is_about_a_tenth():
    """20 expected of 200, deviation 4.2: outside [1, 45] has a chance below 1e-6."""
    before = data("images")
    half = SHIFTS["images"]["half"](before, torch.Generator().manual_seed(1))
    assert half.labels.unique().tolist() == [0, 1, 2, 3, 4]
    rarer = SHIFTS["images"]["ten-to-one"](before, torch.Generator().manual_seed(1))
    assert 1 <= int((rarer.labels >= 5).sum()) <= 45


def test_cells_are_many_and_each_is_there_once_for_every_epsilon_and_seed():
    cells = all_cells()
    assert cells == all_cells()
    assert len(set(cells)) == len(cells) > 2000
    for changes in ({"epsilon": 0.3}, {"seed": 2}):
        assert all(dataclasses.replace(cell, **changes) in set(cells) for cell in cells[:50])
    assert {cell.epsilon for cell in cells} == set(EPSILONS)
    assert {cell.seed for cell in cells} == set(SEEDS)


def run(source: str, outcome: str, gain: float) -> dict[str, object]:
    return {"source": source, "shift": "half", "outcome": outcome, "source_only": 80.0, "adapted": 80.0 + gain}


def test_a_summary_counts_what_it_says():
    runs = [
        run("mnist", "kept", 0.0),
        run("fashion", "priors corrected", 5.0),
        run("fashion", "adapted by a view", -2.0),
        run("usps", "priors corrected", -4.0),
    ]
    found = summary(runs)
    assert found["cells"] == 4
    assert found["share_above_minus_1"] == 0.5
    assert found["share_above_minus_3"] == 0.75
    assert found["worst"] == -4.0
    assert found["gained_where_adapted"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["held_out"]["cells"] == 3
    assert summary([])["gained_where_adapted"] is None
    assert math.isclose(found["mean_gain"], -0.25)
    assert "| usps | half | 1 | 0 | 1 | 0 | 80.0 | 76.0 | -4.0 |" in table(runs)
    assert "| all | 4 | 50.0% | 75.0% | -4.0 |" in page(runs, [], [], [], [])


def test_the_page_on_file_is_current():
    runs = battery.read(battery.RESULTS)
    assert runs
    assert battery.PAGE.read_text(encoding="utf-8") == page(
        runs,
        battery.read(battery.REPEATS),
        battery.read(battery.UNSEEN),
        records.read(low_rank.RESULTS),
        battery.read(battery.THIN),
    )


def test_thin_releases_are_told_by_shift_and_by_what_changed():
    own = {"shift": "turned", "source_only": 80.0}
    runs = [own | {"outcome": "adapted by a view", "adapted": adapted} for adapted in (90.0, 78.0)]
    runs += [own | {"outcome": "kept", "adapted": 80.0}, own | {"shift": "none", "outcome": "kept", "adapted": 80.0}]
    told = thin_table(runs)
    assert "| all | 4 | 2 | +4.0 | -2.0 | 1 |" in told
    assert "| none | 1 | 0 | none | none | 0 |" in told
    assert "| turned | 3 | 2 | +4.0 | -2.0 | 1 |" in told


def test_thin_cells_are_none_of_the_battery():
    cells = thin_cells()
    assert len(set(cells)) == len(cells)
    assert not set(cells) & set(all_cells())
