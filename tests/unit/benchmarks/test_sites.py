"""The benchmark of natural sites: columns in the source's units, and a summary and a page of what is on file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import records, sites

PAGE = Path(__file__).parents[3] / "docs" / "ml-team" / "recalibrate.md"


def test_columns_are_in_units_of_the_source():
    rng = np.random.default_rng(0)
    raw = np.stack([rng.integers(0, 3, 400), rng.normal(50.0, 10.0, 400), np.ones(400)], axis=1).astype(np.float32)
    raw[::7, 1] = np.nan
    public = np.arange(400) < 300
    made = sites.columns(raw, ["ward", "age", "constant"], {"ward": ["a", "b", "c"]}, public)
    assert made.shape == (400, 5)  # three codes, the age, whether it is missing; a constant column says nothing
    np.testing.assert_allclose(made[public].mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose(made[public].std(axis=0), 1.0, atol=0.05)
    assert np.isfinite(made).all()


def test_measures_of_a_calibrated_law():
    rng = np.random.default_rng(1)
    chance = rng.uniform(size=200_000)
    labels = (rng.uniform(size=200_000) < chance).astype(np.int64)
    measures = sites.measured(np.stack([1.0 - chance, chance], axis=1), labels)
    assert measures["accuracy"] == pytest.approx(75.0, abs=0.6)  # six deviations of a count
    assert measures["log_loss"] == pytest.approx(0.5, abs=0.01)
    assert measures["calibration_error"] < 0.02
    wrong = sites.measured(np.stack([chance, 1.0 - chance], axis=1), labels)
    assert wrong["calibration_error"] > 0.4
    assert wrong["auc"] == pytest.approx(100.0 - measures["auc"])


def row(site, fall, **changed):
    good = dict.fromkeys(("accuracy", "auc"), 70.0) | {"log_loss": 0.6, "calibration_error": 0.1}
    defaults = {"table": "stroke", "site": site, "epsilon": 1.0, "seed": 0, "records": 300, "outcome": "adapted"}
    return defaults | {"source": good, "own_labels": good, "delivered": good | {"log_loss": 0.6 - fall}} | changed


def test_the_summary_takes_means_over_sites_and_counts_what_is_worse():
    counts = sites.summary([row("north", 0.1), row("south", -0.03, records=900, outcome="kept")])
    assert counts["stroke 1"]["log_loss"] == pytest.approx(0.565)
    assert counts["stroke 1"]["by_record"]["log_loss"] == pytest.approx(0.5 * 0.25 + 0.63 * 0.75)
    assert counts["stroke 1"]["kept"] == 1
    assert (counts["site_runs"], counts["share_worse"]) == (2, 0.5)
    assert counts["worst"] == pytest.approx(0.03)
    assert "| stroke | delivered, epsilon 1 | 70.0 | 0.565 | 70.0 | 0.100 |" in "\n".join(sites.lines(counts))
    with pytest.raises(SystemExit, match="no results on file"):
        sites.summary([])


def test_the_page_says_what_is_on_file():
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(sites.lines(sites.summary(records.read(sites.RESULTS)))) in page
    assert len(page.split()) < 700
