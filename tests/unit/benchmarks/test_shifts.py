"""The battery of shifts: its cells, its made shifts, its summary and its page."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from benchmarks.shifts import __main__ as battery
from benchmarks.shifts.cells import EPSILONS, SEEDS, all_cells, composed_cells
from benchmarks.shifts.composed import Composed
from benchmarks.shifts.made import LOW_RANK, SHIFTS
from benchmarks.shifts.summary import composed_table, page, summary, table
from dpswd.public_client.data.datasets import Labelled


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
    counts = summary(runs)
    assert counts["cells"] == 4
    assert counts["share_above_minus_1"] == 0.5
    assert counts["share_above_minus_3"] == 0.75
    assert counts["worst"] == -4.0
    assert counts["gained_where_adapted"] == pytest.approx(1 / 3, abs=1e-4)
    assert counts["held_out"]["cells"] == 3
    assert summary([])["gained_where_adapted"] is None
    assert math.isclose(counts["mean_gain"], -0.25)
    assert "| usps | half | 1 | 0 | 1 | 0 | 80.0 | 76.0 | -4.0 |" in table(runs)
    assert "hundred times rarer ones | " in page(runs, [], [])


def test_the_page_on_file_is_current():
    runs = battery.read(battery.RESULTS)
    assert runs
    assert battery.PAGE.read_text(encoding="utf-8") == page(
        runs,
        battery.read(battery.UNSEEN),
        battery.read(battery.COMPOSED),
    )


def test_compositions_are_listed_by_what_they_are_and_by_what_changed():
    numbers = {outside: next(n for n in range(40) if Composed(n).outside is outside) for outside in (True, False)}

    def of(outside: bool, n: int, outcome: str, adapted: float) -> dict[str, object]:
        own = {"shift": f"composed {numbers[outside]}", "source": "usps", "n": n, "epsilon": 3.0, "source_only": 80.0}
        return own | {"outcome": outcome, "adapted": adapted}

    view = "adapted by a view"
    runs = [of(True, 200, view, 90.0), of(False, 2000, view, 78.0), of(False, 4000, "kept", 80.0)]
    table = composed_table(runs)
    assert "| all | 3 | 2 | +4.0 | -2.0 | 1 |" in table
    assert "| no view can | 1 | 1 | +10.0 | +10.0 | 0 |" in table
    assert "| a view can express it | 2 | 1 | -2.0 | -2.0 | 1 |" in table
    assert "| n x epsilon below 1,000 | 1 | 1 | +10.0 | +10.0 | 0 |" in table
    assert "| 10,000 and more | 1 | 0 | none | none | 0 |" in table


def test_compositions_are_many_and_none_of_the_battery():
    cells = composed_cells()
    assert len(set(cells)) == len(cells) == 300
    assert not set(cells) & set(all_cells())
    assert {cell.source for cell in cells} == {"fashion", "mnist", "usps"}


@pytest.mark.parametrize("number", range(30))
def test_a_composition_is_its_number_and_keeps_what_it_does_not_befall(number):
    before, composed = data("images"), Composed(number)
    after = composed(before, torch.Generator())
    again = Composed(number)(before, torch.Generator().manual_seed(5))
    assert torch.equal(after.images, again.images)
    assert bool(torch.isfinite(after.images).all())
    assert -1.0 <= float(after.images.min()) <= float(after.images.max()) <= 1.0
    assert not torch.equal(after.images, before.images)
    if len(after) == len(before):
        same = (after.images == before.images).flatten(1).all(dim=1).double().mean()
        assert float(same) == pytest.approx(1.0 - composed.part, abs=0.13)
