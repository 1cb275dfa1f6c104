"""The ladder's page tells what is on file."""

from __future__ import annotations

from pathlib import Path

from benchmarks import ladder, records

PAGE = Path(__file__).parents[3] / "docs" / "ml-team" / "ladder.md"


def test_the_page_has_the_figures_on_file_and_no_others():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "±" in line]
    rows = records.read(ladder.RESULTS)
    hospitals = {(row["shift"], row["records"], row["epsilon"]) for row in rows}
    assert len(lines) == len(hospitals)
    for shift, count, epsilon in hospitals:
        own = [row for row in rows if (row["shift"], row["records"], row["epsilon"]) == (shift, count, epsilon)]
        before, after = (records.mean_and_deviation([row[name] for row in own]) for name in ("source", "delivered"))
        assert any(f"{count:,} records" in line and f"| {epsilon:g} | {before} | {after} |" in line for line in lines)
