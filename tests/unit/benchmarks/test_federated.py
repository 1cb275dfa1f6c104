"""The page on Flower and NVFlare says what is on file."""

from __future__ import annotations

from pathlib import Path

from benchmarks import federated, records

PAGE = Path(__file__).resolve().parents[3] / "docs" / "ml-team" / "federated.md"


def test_the_page_holds_the_table_of_the_runs_on_file():
    runs = records.read(federated.RESULTS)
    assert {(run["way"], run["seed"]) for run in runs} == {(way, seed) for way in federated.WAYS for seed in (0, 1, 2)}
    assert federated.table(runs) in PAGE.read_text(encoding="utf-8")


def test_nvflares_filters_had_the_updates_that_flowers_nodes_had():
    reached = {(run["way"], run["seed"]): run["accuracy"] for run in records.read(federated.RESULTS)}
    for seed in (0, 1, 2):
        assert reached["unfiltered", seed] == reached["none", seed]
