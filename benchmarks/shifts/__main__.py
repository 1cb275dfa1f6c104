"""The battery of shifts.

    python -m benchmarks.shifts run --data-dir ../shared/data --minutes 60   # in a random order, what is not on file
    python -m benchmarks.shifts repeat --data-dir ../shared/data --shifts half --records 500  # with fresh noise; and
    python -m benchmarks.shifts repeat --data-dir ../shared/data --shifts "composed 41" --times 5  # a composition
    python -m benchmarks.shifts composed --data-dir ../shared/data  # images: random compositions of shifts
    python -m benchmarks.shifts summary --format json
    python -m benchmarks.shifts.unseen run --minutes 30   # other data and shifts: see there
    python -m benchmarks.shifts write                                        # docs/ml-team/shifts.md

needs mnist.npz, usps16.npz, office_caltech10_surf.npz, heart_uci.npz and adult.npz in the folder, and Debian's package
dataset-fashion-mnist. Images are brought to 14 x 14; releases are made in this process by the curator's mechanism
(`benchmarks.local`). Source-trained models are kept in --cache. Every finished cell is written at once; one that was
run because of a choice (--shifts and the like) says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.records import read
from benchmarks.shifts.cells import Cell, all_cells, composed_cells, run_alone
from benchmarks.shifts.summary import figures_of, page, repeated, summary, table

RESULTS = Path(__file__).parents[1] / "results" / "shifts.jsonl"
REPEATS = RESULTS.with_name("shifts_repeated.jsonl")
UNSEEN = RESULTS.with_name("shifts_unseen.jsonl")
COMPOSED = RESULTS.with_name("shifts_composed.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "ml-team" / "shifts.md"
CACHE = Path.home() / ".cache" / "dpswd" / "shifts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    battery = commands.add_parser("run", help="measures anew, beside what is on file")
    again = commands.add_parser("repeat", help="runs the same cells again and again, with fresh noise")
    again.add_argument("--times", type=int, default=16, help="that each cell is to be on file")
    made = commands.add_parser("composed", help="measures anew, beside what is on file, of random compositions")
    for command in (battery, again, made):
        command.add_argument("--data-dir", type=Path, required=True)
        command.add_argument("--cache", type=Path, default=CACHE, help="folder that keeps source-trained models")
        command.add_argument("--minutes", type=float, default=None, help="begin no cell after these")
        command.add_argument("--processes", type=int, default=1, help="cells side by side, each on one thread")
        for name, of in (("sources", str), ("shifts", str), ("records", int), ("epsilons", float)):
            command.add_argument(f"--{name}", type=_several(of), default=None, help="these alone, in the same order")
    records.options(battery, RESULTS, seeds=(0, 1, 2))
    records.options(made, COMPOSED, seeds=(0, 1, 2))
    records.options(again, REPEATS, seeds=(0, 1, 2))
    summarise = commands.add_parser("summary", help="says what is on file")
    summarise.add_argument("--format", choices=["text", "json"], default="text")
    written = commands.add_parser("write", help="the page of what is on file")
    written.add_argument("--page", type=Path, default=None, help=f"write {PAGE.name} here, and do not print it")
    for command in (summarise, written):
        records.options(command, RESULTS)
    arguments = parser.parse_args()
    if arguments.command in ("run", "composed"):
        cells, stored = (all_cells(), RESULTS) if arguments.command == "run" else (composed_cells(), COMPOSED)
        rows = records.Rows(stored, arguments.results)
        done = {_key(run) for run in read(rows.path)}
        asked = [*_asked(arguments, cells)]
        left = [cell for cell in asked if _key(asdict(cell)) not in done]
        _run(left, arguments, rows, said={"chosen": any(_selection(arguments))}, there=len(asked) - len(left))
    elif arguments.command == "repeat":
        rows = records.Rows(REPEATS, arguments.results)
        times = Counter(_key(run) for run in read(rows.path))
        asked = [*_asked(arguments, [*all_cells(), *composed_cells()])]
        left = [cell for cell in asked for _ in range(arguments.times - times[_key(asdict(cell))])]
        _run(left, arguments, rows, said={}, there=arguments.times * len(asked) - len(left))
        print(repeated(read(rows.path)))
    elif arguments.command == "write":
        records.written(page(read(arguments.results or RESULTS), read(UNSEEN), read(COMPOSED)), arguments.page)
    elif arguments.format == "json":
        others = {"composed": figures_of(read(COMPOSED)), "second_list": figures_of(read(UNSEEN))}
        print(json.dumps(summary(read(arguments.results or RESULTS)) | others, indent=1))
    else:
        print(table(read(arguments.results or RESULTS)))


def _several(of: type) -> Callable[[str], list[Any]]:
    return lambda words: [of(word) for word in words.split(",")]


def _key(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(_settings(run).values())


def _settings(run: Mapping[str, Any]) -> records.Row:
    return {key: run[key] for key in ("source", "shift", "records", "epsilon", "seed")}


def _selection(arguments: argparse.Namespace) -> tuple[list[Any] | None, ...]:
    """Values of each part of a cell's key; None for any."""
    return arguments.sources, arguments.shifts, arguments.records, arguments.epsilons, arguments.seeds


def _asked(arguments: argparse.Namespace, cells: Iterable[Cell]) -> Iterator[Cell]:
    for cell in cells:
        if all(not own or value in own for own, value in zip(_selection(arguments), _key(asdict(cell)), strict=True)):
            yield cell


def _run(
    cells: Sequence[Cell], arguments: argparse.Namespace, rows: records.Rows, *, said: dict[str, Any], there: int
) -> None:
    """Runs cells side by side and writes each when it has ended, with what is `said` of all."""
    rows.begin([_settings(asdict(cell)) for cell in cells], there=there)
    begun, left = time.monotonic(), iter(cells)
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        under_way: set[Future[dict[str, Any]]] = set()
        while True:
            if arguments.minutes is None or time.monotonic() - begun < 60 * arguments.minutes:
                for cell in itertools.islice(left, arguments.processes - len(under_way)):
                    under_way.add(pool.submit(run_alone, cell, arguments.data_dir, arguments.cache))
            if not under_way:
                return
            ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for one in ended:
                if (failed := one.exception()) is not None:  # the cells beside it are kept
                    print(f"a cell failed: {failed!r}", file=sys.stderr)
                    continue
                row = one.result() | said
                rows.add(_settings(row), row)


if __name__ == "__main__":
    main()
