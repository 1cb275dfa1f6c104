"""The pages of results say what is on file, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import digits, recipe, records, small_hospitals
from benchmarks.heart import auc
from benchmarks.local import released
from benchmarks.paper import table
from benchmarks.vectors import Domain, principal_components, standardised


def digits_run(**changes):
    run = {"task": "mnist-usps", "geometry": "stretched", "method": "replay", "seed": 0, "epsilon": 0.5}
    return run | {"accuracy": 90.0, "source_only": 80.0, "steps": 1, "spent": 0.5, "seconds": 1.0} | changes


def test_means_and_deviations():
    assert records.mean_and_deviation([1.0, 3.0]) == "2.0 ± 1.4"
    assert records.mean_and_deviation([1.0]) == "1.0 (one seed)"


def test_the_digits_table_puts_seeds_together_and_says_what_is_missing():
    shown = table.digits_table([digits_run(), digits_run(seed=1, accuracy=92.0), digits_run(epsilon=3.0)])
    lines = [line for line in shown.splitlines() if "replayed" in line]
    assert len(lines) == 2
    assert "| 3 | 90.0 (one seed) | not run |" in lines[0]
    assert "| 0.5 | 91.0 ± 1.4 | not run |" in lines[1]
    assert "| published: DP-SWD | 10, nominal | 94.0 | 83.4 |" in shown


def test_the_office_table_averages_pairs_and_not_runs():
    base = {"epsilon": 8.0, "trained_on": 50.0, "source_only": 50.0, "records": 10}
    runs = [
        base | {"source": "a", "target": "b", "accuracy": 60.0},
        base | {"source": "a", "target": "b", "accuracy": 60.0},
        base | {"source": "b", "target": "a", "accuracy": 50.0},
    ]
    assert "| 8 | 50.0 | 50.0 | 55.0 | +5.0 | 1 of 2 | a to b +10.0 | b to a +0.0 |" in table.office_table(runs)


def test_the_table_of_recipes_names_recipes_that_were_not_run():
    run = {"task": "usps-mnist", "proxy": "digits", "recipe": "default", "seed": 0, "epsilon": 0.1}
    shown = recipe.table([run | {"accuracy": 84.1, "source_only": 80.0}])
    assert "| source only | 80.0 |" in shown
    assert "replay` does) | 84.1 |" in shown
    assert "(the control) | not run |" in shown


def test_the_table_of_small_hospitals_shows_the_worst_and_what_no_release_reaches():
    control = {"epsilon": None, "accuracy": 80.0, "source_only": 50.0, "records": 898}
    runs = [
        {"epsilon": 1.0, "release": i, "accuracy": value, "outcome": outcome}
        for i, (value, outcome) in enumerate([(92.0, "adapted by a view"), (60.0, "kept"), (94.0, "adapted by a view")])
    ]
    shown = small_hospitals.table([control, *runs])
    assert "| no release | 80.0 (one run) |" in shown
    assert "| 1 | 82.0 ± 19.1 | 92.0 | 60.0 | 60.0 | 1 of 3 | 1 |" in shown
    assert "| 4 | not run |" in shown


def test_the_area_under_the_curve():
    labels = np.array([0, 0, 1, 1])
    assert auc(np.array([0.1, 0.2, 0.3, 0.4]), labels) == 100.0
    assert auc(np.array([0.4, 0.3, 0.2, 0.1]), labels) == 0.0
    assert auc(np.array([0.5, 0.5, 0.5, 0.5]), labels) == 50.0
    assert auc(np.array([0.1, 0.3, 0.2, 0.4]), labels) == 75.0


def test_public_maps_of_vectors():
    generator = np.random.default_rng(0)
    source = Domain(
        "a", (generator.normal(size=(200, 6)) * [1, 2, 3, 4, 5, 6] + 7).astype(np.float32), np.zeros(200, int)
    )
    with torch.no_grad():
        plain = standardised(source)(torch.from_numpy(source.records))
        components = principal_components(source, 3)(torch.from_numpy(source.records))
    torch.testing.assert_close(plain.mean(dim=0), torch.zeros(6), rtol=0.0, atol=1e-5)
    torch.testing.assert_close(plain.std(dim=0), torch.ones(6), rtol=1e-4, atol=0.0)
    correlation = torch.corrcoef(components.T) - torch.eye(3)
    assert float(correlation.abs().max()) < 1e-3
    assert float(components.square().mean()) == pytest.approx(1.0, rel=0.02)


def test_a_local_release_has_the_noise_that_its_epsilon_asks_for():
    """600 residuals of the source itself: a mean square outside [0.8, 1.3] has a chance below 1e-3."""
    features = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    residuals = released(features, features, epsilon=1.0, delta=1e-3, seed=bytes(32))
    assert 0.8 < float(residuals.of(features, torch.ones(500), 0).square().mean()) < 1.3
    dearer = released(features, features, epsilon=4.0, delta=1e-3, seed=bytes(32))
    shift = [float(m.of(features + 0.5, torch.ones(500), 0).square().mean()) for m in (residuals, dearer)]
    assert shift[1] > 2 * shift[0]  # the same shift stands out more where the noise is smaller


def test_pages_on_file_are_current():
    docs = Path(__file__).parents[3] / "docs"
    assert (docs / "ml-team" / "results.md").read_text(encoding="utf-8") == table.page()
    every = recipe.table(records.read(recipe.RESULTS)).splitlines()
    shown = [line for line in (docs / "studies.md").read_text(encoding="utf-8").splitlines() if line in every]
    assert shown[:2] == every[:2]
    assert len(shown) >= 8


def test_the_seeds_of_a_task_are_listed_with_their_gap():
    runs = [digits_run(), digits_run(method="non-private", epsilon=float("inf"), steps=2000, accuracy=100.0)]
    assert "| 0.5 | steps 1 | 90.0 (one seed) | 50% | 90.0 | 1 |" in digits.table(runs)
