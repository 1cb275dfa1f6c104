"""The examples, run as they stand in an empty folder: a script, and notebooks of which only the code is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
OUTPUT = {
    "images.ipynb": "before",
    "table.ipynb": "log-loss before",
    "published.ipynb": "the adapted model gets",
    "own_table.py": "Your model",
}
"""What each says in the end."""


def cells(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text())["cells"]


def test_there_are_three_notebooks_without_outputs_and_a_script_of_forty_lines():
    assert {path.name for path in (*NOTEBOOKS, EXAMPLES / "own_table.py")} == set(OUTPUT)
    assert len((EXAMPLES / "own_table.py").read_text().splitlines()) <= 40
    for cell in (cell for notebook in NOTEBOOKS for cell in cells(notebook)):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OUTPUT)
def test_an_example_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_example.py")), str(EXAMPLES / name)],
        cwd=tmp_path, env={**os.environ, "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    print(done.stdout)
    assert OUTPUT[name] in done.stdout
    assert (tmp_path / "adapted.safetensors").is_file() == (name != "table.ipynb")
