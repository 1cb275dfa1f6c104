"""The pages docs/privacy/accountant*.md and the first one's figure, into `measured` if no file is named.

Each but the figure's writes its numbers as rows of --results, too. Takes no seeds: nothing is drawn.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks.records import MEASURED, Rows, options

RESULTS = Path(__file__).parents[1] / "results" / "accountant.json"
PAGES = {
    "table": ("accountant.md", "sigma and epsilon for the papers' settings, and the figure (half a minute)"),
    "figure": ("figures/epsilon-vs-steps.png", "the figure alone"),
    "speed": ("accountant-speed.md", "ratios beside autodp and dp_accounting (a few minutes)"),
    "crosscheck": ("accountant-crosscheck.md", "the digits of autodp's forward differences"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accountant", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (page, description) in PAGES.items():
        command = commands.add_parser(name, help=description, description=description)
        command.add_argument("--page", type=Path, default=MEASURED / page, help=f"default {MEASURED / page}")
        options(command, RESULTS)
    arguments = parser.parse_args()
    arguments.page.parent.mkdir(parents=True, exist_ok=True)
    # Only `figure` needs matplotlib and only `speed` dp_accounting.
    rows = Rows(RESULTS, arguments.results)
    importlib.import_module(f"benchmarks.accountant.{arguments.command}").write(arguments.page, rows)
    if arguments.command == "table":
        figure = arguments.page.parent / PAGES["figure"][0]
        figure.parent.mkdir(parents=True, exist_ok=True)
        importlib.import_module("benchmarks.accountant.figure").write(figure, rows)
    print(f"wrote {arguments.page}")


if __name__ == "__main__":
    main()
