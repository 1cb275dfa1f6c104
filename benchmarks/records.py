"""Results of benchmarks on file: every finished run is written at once, so that a stopped benchmark goes on."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """The runs on file, none if there is no file."""
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return runs


def on_file(settings: dict[str, Any], runs: Sequence[dict[str, Any]]) -> bool:
    """Whether a run with these settings is there."""
    return any(all(run.get(name) == value for name, value in settings.items()) for run in runs)


def append(path: Path, run: dict[str, Any]) -> None:
    """Adds one run; the file is replaced as a whole, so a kill leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    fresh.write_text(json.dumps([*read(path), run], indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def mean_and_deviation(values: Sequence[float], digits: int = 1) -> str:
    """For a table: the deviation is over n - 1."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f} (one seed)"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
