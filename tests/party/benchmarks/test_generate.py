"""The command that makes the figures of the page on generators: what is on file is what the page says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import generate, generate_tables, records

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_holds_the_table_of_the_runs_on_file():
    runs = records.read(generate.RESULTS)
    assert runs
    page = (ROOT / "docs" / "ml-team" / "generate.md").read_text()
    assert generate.table(runs) in page
    for run in runs:
        assert run["priced"] <= run["epsilon"] * (1 + 1e-9)
        assert run["method"] == generate.Replayed(low=0.0, high=1.0).to_json()
        assert 10.0 < run["accuracy"]["CNN"] < 100.0


def test_the_summary_is_a_line_of_json():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.generate", "summary", "--format", "json"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert json.loads(done.stdout) == generate.summary(records.read(generate.RESULTS))


def test_the_page_holds_the_table_of_synthetic_tables():
    runs = records.read(generate_tables.RESULTS)
    assert {run["data"] for run in runs} == set(generate_tables.DATA)
    assert generate_tables.table(runs) in (ROOT / "docs" / "ml-team" / "generate.md").read_text()
