"""The battery of shifts.

    python -m benchmarks.shifts run --data-dir ../shared/data --minutes 60   # in a random order, what is not on file
    python -m benchmarks.shifts summary --format json
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
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.shifts.cells import Cell, all_cells, run_alone
from benchmarks.shifts.summary import page, summary, table

RESULTS = Path(__file__).parents[1] / "results" / "shifts.jsonl"
PAGE = Path(__file__).parents[2] / "docs" / "ml-team" / "shifts.md"
CACHE = Path.home() / ".cache" / "dpswd" / "shifts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    battery = commands.add_parser("run", help="runs what is not on file yet")
    battery.add_argument("--data-dir", type=Path, required=True)
    battery.add_argument("--cache", type=Path, default=CACHE, help="folder that keeps source-trained models")
    battery.add_argument("--minutes", type=float, default=None, help="begin no cell after these")
    battery.add_argument("--processes", type=int, default=1, help="cells side by side, each on one thread")
    for name, of in (("sources", str), ("shifts", str), ("records", int), ("epsilons", float), ("seeds", int)):
        battery.add_argument(f"--{name}", type=_several(of), default=None, help="these alone, in the same order")
    told = commands.add_parser("summary", help="says what is on file")
    told.add_argument("--format", choices=["text", "json"], default="text")
    written = commands.add_parser("write", help="writes the page from what is on file")
    for command in (battery, told, written):
        command.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "run":
        _run(arguments)
    elif arguments.command == "write":
        PAGE.write_text(page(read(arguments.results)), encoding="utf-8")
    elif arguments.format == "json":
        print(json.dumps(summary(read(arguments.results)), indent=1))
    else:
        print(table(read(arguments.results)))


def read(path: Path) -> list[dict[str, Any]]:
    """The cells on file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _several(of: type) -> Callable[[str], list[Any]]:
    return lambda words: [of(word) for word in words.split(",")]


def _run(arguments: argparse.Namespace) -> None:
    begun = time.monotonic()
    keys = ("source", "shift", "records", "epsilon", "seed")
    wanted = (arguments.sources, arguments.shifts, arguments.records, arguments.epsilons, arguments.seeds)
    done = {tuple(one[key] for key in keys) for one in read(arguments.results)}

    def asked(cell: Cell) -> bool:
        values = tuple(getattr(cell, key) for key in keys)
        return values not in done and all(not own or value in own for own, value in zip(wanted, values, strict=True))

    left = filter(asked, all_cells())
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
                found = one.result() | {"chosen": any(wanted)}
                with arguments.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
