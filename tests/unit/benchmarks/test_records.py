"""Figures are measured anew beside those on file, and files of the repository are written where they are named."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

import pytest

from benchmarks import records

FOLDER = Path(records.__file__).parent
STORED = re.compile(r'(?:"results" / |with_name\()"([\w.-]+\.jsonl?)"')
WITH_FIGURES = [file for file in FOLDER.rglob("*.py") if STORED.search(file.read_text(encoding="utf-8"))]
NOT_MEASURING = {
    "paper/__main__.py": "makes pages and pictures of rows on file",
    "accountant/memory.py": "a process that `accountant speed` starts",
    "audit/curators.py": "a process that the audit starts",
}
"""Programs without these options, and why."""
PROGRAMS = [
    file
    for file in FOLDER.rglob("*.py")
    if re.search(r"^def main", file.read_text(encoding="utf-8"), re.MULTILINE)
    and str(file.relative_to(FOLDER)) not in NOT_MEASURING
]


def test_a_killed_benchmark_goes_on_where_it_was(tmp_path):
    for name in ("runs.json", "runs.jsonl"):
        path = tmp_path / "results" / name
        assert records.read(path) == []
        records.append(path, {"seed": 0, "accuracy": 1.5})
        records.append(path, {"seed": 1, "accuracy": 2.5})
        assert records.on_file({"seed": 1}, records.read(path))
        assert not records.on_file({"seed": 2}, records.read(path))
        assert records.read(path)[1]["accuracy"] == 2.5


def test_a_run_measures_anew_and_compares(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stored = tmp_path / "stored.json"
    records.append(stored, {"seed": 0, "delivered": {"accuracy": 90.0}, "seconds": 120.0})
    before = stored.read_bytes()
    jobs = [({"seed": seed}, lambda: {"delivered": {"accuracy": 91.5}}) for seed in (0, 1)]
    records.Rows(stored).run(jobs)
    output = capsys.readouterr().out
    assert "2 runs, written to measured/stored.json; those on file took 2 min" in output
    assert "delivered accuracy 91.5 (on file 90)" in output
    assert stored.read_bytes() == before
    assert len(records.read(tmp_path / "measured" / "stored.json")) == 2
    records.Rows(stored).run(jobs)
    assert "0 runs" in capsys.readouterr().out


def test_what_cannot_be_measured_is_left_out_and_the_time_stays(tmp_path):
    own = tmp_path / "own.json"
    rows = records.Rows(tmp_path / "none.json", own)
    rows.run([({"seed": 0}, lambda: None), ({"seed": 1}, lambda: {"accuracy": 1.0})])
    assert [row["seed"] for row in records.read(own)] == [1]
    rows.run([({"seed": 2}, lambda: {"accuracy": 1.0})], minutes=0.0)
    assert [row["seed"] for row in records.read(own)] == [1]


def test_options_are_alike():
    parser = argparse.ArgumentParser()
    records.options(parser, Path("results/x.json"), seeds=(0, 1, 2))
    assert parser.parse_args([]).seeds == (0, 1, 2)
    assert parser.parse_args(["--seeds", "5,6", "--results", "a.json"]).seeds == (5, 6)


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: str(file.relative_to(FOLDER)))
def test_every_benchmark_takes_the_same_options(file):
    """And says so where nothing is drawn that a figure depends on."""
    text = file.read_text(encoding="utf-8")
    assert re.search(r"\boptions\([^)]*[A-Z]{4}", text), "takes --results, and --seeds where it has, by records.options"
    assert "Rows(" in text, "measures by records.Rows, which compares and prints as it goes"
    said = "Takes no seeds:" in " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    assert ("seeds=" in text) is not said, "has seeds, or its docstring says why it takes none"
    assert '"--seed"' not in text, "records.seeds_option"


def test_what_a_test_leaves_out_is_there():
    assert all((FOLDER / name).exists() for name in NOT_MEASURING)


def test_times_are_measured_again_and_others_are_not(tmp_path):
    own, asked = tmp_path / "own.json", {"seed": 0}
    rows = records.Rows(tmp_path / "none.json", own)
    values = iter((1.0, 2.0, 3.0))
    job = asked, lambda: {"ratio": next(values)}
    assert [row["ratio"] for row in rows.run([job])] == [1.0]
    assert [row["ratio"] for row in rows.run([job])] == [1.0]
    assert [row["ratio"] for row in rows.run([job], again=True)] == [2.0]
    assert [row["ratio"] for row in records.read(own)] == [1.0, 2.0]


def test_a_table_of_rows():
    text = records.table([{"step": "rows", "ratio": 1.234}], {"step": "{step}", "ratio": "{ratio:.2f}"})
    assert text == "| step | ratio |\n| --- | --- |\n| rows | 1.23 |\n"


@pytest.mark.parametrize("file", [*FOLDER.rglob("*.py")], ids=lambda file: str(file.relative_to(FOLDER)))
def test_a_benchmark_writes_no_file_of_the_repository_unasked(file):
    text = file.read_text(encoding="utf-8")
    for unasked in (
        "append(RESULTS",
        "RESULTS.open",
        "RESULTS.write_text",
        "PAGE.write_text",
        '"--write"',
        '"--output", type',
    ):
        assert unasked not in text
    assert not re.search(r"(default=|write\()[^\n]*(docs/|DOCS|RESULTS)", text)
    assert file.name == "records.py" or '"--seeds", type=' not in text, "records.seeds_option"


def test_every_file_of_results_has_a_benchmark():
    named = {name for file in WITH_FIGURES for name in STORED.findall(file.read_text(encoding="utf-8"))}
    assert {path.name for path in (FOLDER / "results").iterdir()} <= named
