"""Writes accountant.md, its figure, accountant-speed.md and accountant-crosscheck.md, all in docs/privacy."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

DOCS = Path("docs/privacy")
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
        command.add_argument("--output", type=Path, default=DOCS / page, help=f"default {DOCS / page}")
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    # Only `figure` needs matplotlib and only `speed` dp_accounting.
    importlib.import_module(f"benchmarks.accountant.{arguments.command}").write(arguments.output)
    if arguments.command == "table":
        figure = arguments.output.parent / PAGES["figure"][0]
        figure.parent.mkdir(parents=True, exist_ok=True)
        importlib.import_module("benchmarks.accountant.figure").write(figure)


if __name__ == "__main__":
    main()
