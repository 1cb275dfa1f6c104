"""Figures of a benchmark: those on file, and those measured now beside them.

Every benchmark takes ``--seeds`` and ``--results`` from `options`. A run measures anew and writes to a file of its own
(`MEASURED`, which git ignores), cell by cell, so that a stopped benchmark goes on; each figure is printed beside the
one on file, where there is one. Files of the repository are written where they are named, and not else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MEASURED = Path("measured")
Row = dict[str, Any]
Job = tuple[Row, Callable[[], Row | None]]
"""Settings of a run, and what measures it."""


def read(path: Path) -> list[Row]:
    """The runs on file, none if there is no file; one a line where its name ends with .jsonl."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    runs: list[Row] = json.loads(text)
    return runs


def on_file(settings: Mapping[str, Any], runs: Sequence[Row]) -> bool:
    """Whether a run with these settings is there."""
    return any(all(run.get(name) == value for name, value in settings.items()) for run in runs)


def append(path: Path, run: Row) -> None:
    """Adds one run: a line in one write, or the file is replaced as a whole; a kill leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        return
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    fresh.write_text(json.dumps([*read(path), run], indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def options(parser: argparse.ArgumentParser, stored: Path, *, seeds: Sequence[int] | None = None) -> None:
    """What every benchmark takes.

    Args:
        parser: of `run`, or of the whole.
        stored: its file in the repository, whether or not it is there.
        seeds: that are run if none are named; None where the benchmark has no seeds.
    """
    own = MEASURED / stored.name
    parser.add_argument(
        "--results", type=Path, default=None,
        help=f"run: the file to add to, {own} if not given; what it holds is run again where it is times alone. "
        "Else: the file to read",
    )  # fmt: skip
    if seeds is not None:
        seeds_option(parser, seeds)


def seeds_option(parser: argparse.ArgumentParser, seeds: Sequence[int]) -> None:
    """Of a command without --results, too."""
    usual = ",".join(map(str, seeds))
    parser.add_argument("--seeds", type=numbers, default=tuple(seeds), help=f"with commas; {usual} if not given")


def numbers(words: str) -> tuple[int, ...]:
    """Of a list with commas."""
    return tuple(int(word) for word in words.split(","))


class Rows:
    """Runs that are measured now, beside those on file.

    Args:
        stored: the file in the repository.
        results: the file to write; None for the usual one.
    """

    def __init__(self, stored: Path, results: Path | None = None) -> None:
        self.path = results or MEASURED / stored.name
        self._stored = read(stored)

    def run(self, jobs: Iterable[Job], *, minutes: float | None = None, again: bool = False) -> list[Row]:
        """Measures what the file written to does not hold, and says how many are left and how long they take.

        Args:
            jobs: settings of each run, and what measures it; None of what cannot be measured.
            minutes: no run is begun after these.
            again: measures what the file holds, too: times.

        Returns:
            The newest row of each job, of those that have one.
        """
        every, held = list(jobs), read(self.path)
        left = [(settings, measured) for settings, measured in every if again or not on_file(settings, held)]
        self.begin([settings for settings, _ in left], there=len(every) - len(left))
        begun = time.monotonic()
        for number, (settings, measured) in enumerate(left):
            since = time.monotonic() - begun
            if minutes is not None and since > 60.0 * minutes:
                break
            rest = f", about {_minutes(since / number * (len(left) - number))} left" if number else ""
            print(f"run {number + 1} of {len(left)}{rest}", flush=True)
            started = time.monotonic()
            figures = measured()
            if figures is not None:
                self.add(settings, {"seconds": round(time.monotonic() - started, 1)} | figures)
        newest = read(self.path)[::-1]
        rows = (next((row for row in newest if on_file(settings, [row])), None) for settings, _ in every)
        return [row for row in rows if row is not None]

    def begin(self, left: Sequence[Row], *, there: int) -> None:
        """Says how many runs are left, by their settings, how many are there, and how long those on file took."""
        took = [_seconds(row) for settings in left for row in self._stored if on_file(settings, [row])]
        on_record = f"those on file took {_minutes(sum(took))}" if any(took) else "the first tells how long they take"
        held = f" ({there} are there: another --results measures them anew)" if there else ""
        print(f"{len(left)} runs, written to {self.path}{held}; {on_record}", flush=True)

    def add(self, settings: Row, figures: Row) -> None:
        """Writes a run, and prints it beside the one on file."""
        append(self.path, settings | figures)
        print(json.dumps(settings | figures), flush=True)
        for row in self._stored:
            if on_file(settings, [row]):
                before, now = _flat(row), _flat(figures)
                changes = (f"{name} {now[name]:.4g} (on file {before[name]:.4g})" for name in now if name in before)
                print(f"  {', '.join(changes)}", flush=True)
                return


def table(rows: Iterable[Row], columns: Mapping[str, str]) -> str:
    """Markdown of rows; `columns` has each column's head, and the format of its cells: "{ratio:.2f}"."""
    cells = [[*columns], ["---"] * len(columns), *([each.format(**row) for each in columns.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def machine() -> str:
    """Where times were measured, and beside how much else."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{platform.machine()}, {os.cpu_count()} cores, load average {load} at the start"


def written(page: str, path: Path | None) -> None:
    """Writes a page where it is named, and prints it else."""
    if path is None:
        print(page)
    else:
        path.write_text(page, encoding="utf-8")


def _flat(row: Row, within: str = "") -> dict[str, float]:
    """Numbers of a run by their path."""
    numbers: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            numbers |= _flat(value, f"{within}{name} ")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[f"{within}{name}"] = float(value)
    return numbers


def _seconds(row: Row) -> float:
    return float(row.get("seconds", 0.0))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60.0:.0f} min" if seconds >= 60.0 else f"{seconds:.0f} s"


def mean_and_deviation(values: Sequence[float], digits: int = 1) -> str:
    """For a table: the deviation is over n - 1."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f} (one seed)"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
