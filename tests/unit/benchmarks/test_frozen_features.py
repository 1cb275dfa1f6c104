"""What pages say of runs without labels on real tables and features is on file, and nothing lost there."""

from __future__ import annotations

from pathlib import Path

from benchmarks import frozen_features, records, sites

PAGE = Path(__file__).parents[3] / "docs" / "ml-team" / "normalisation.md"


def test_the_page_shows_what_is_on_file_of_natural_sites():
    runs = records.read(sites.WITHOUT)
    assert len(runs) == 17 * 2 * len(sites.UNLABELLED)
    assert sites.unlabelled_words(runs) in PAGE.read_text()
    assert min(run["delivered"]["accuracy"] - run["source"]["accuracy"] for run in runs) > -0.5


def test_no_run_on_frozen_features_lost():
    figures = frozen_features.summary(records.read(frozen_features.RESULTS))
    assert {figures[f"googlenet {epsilon:g}"]["runs"] for epsilon in frozen_features.EPSILONS} == {18}
    assert all(row["lost_over_0.3"] == 0 for row in figures.values())
