"""The README as a landing page: its picture is the script's, and its rows say what is on file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import digits, first_contact, generate, records, sites
from benchmarks.records import mean_and_deviation
from deploy import certificate_picture, parties_picture

README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", [certificate_picture, parties_picture])
def test_a_picture_is_the_scripts_and_is_shown(script):
    assert script.PICTURE.read_text(encoding="utf-8") == script.picture(), f"run: python -m {script.__name__}"
    assert f"(docs/figures/{script.PICTURE.name})" in README


def test_the_rows_of_results_are_on_file():
    of_digits = [run for run in records.read(digits.RESULTS) if run["task"] == "mnist-usps"]

    def accuracies(**facts: object) -> list[float]:
        return [run["accuracy"] for run in of_digits if records.on_file(facts, [run])]

    before, after = accuracies(method="source-only"), accuracies(method="replay", epsilon=1.0)
    assert len(before) == len(after) == 5
    assert f"| {sum(before) / 5:.1f} | {mean_and_deviation(after)} |" in README
    stroke = sites.summary(records.read(sites.RESULTS))["stroke 1"]
    assert f"| {stroke['source']['accuracy']:.1f} | {stroke['accuracy']:.1f} |" in README
    drawn = [
        run["accuracy"]["CNN"]
        for run in records.read(generate.RESULTS)
        if (run["data"], run["epsilon"]) == ("mnist", 1.0)
    ]
    assert f"teach a CNN | | {mean_and_deviation(drawn)} |" in README


def test_the_sizes_and_times_of_an_install_are_on_file():
    rows = {row["install"]: row for row in records.read(first_contact.STORED)}
    for side in ("client", "curator"):
        row = rows[side]
        assert f'`pip install "dpswd[{side}]"`, {row["megabytes"] / 1000:.1f} GB, {row["seconds"]} s |' in README
    assert f"first result in {rows['client,curator']['seconds_to_first_result']} s |" in README
