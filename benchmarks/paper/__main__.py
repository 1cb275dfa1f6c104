"""The DP-SWD paper's figures and tables, computed anew: figures/paper-*.png and results.md of docs/ml-team.

python -m benchmarks.paper figures      # half a minute, into `measured`; --docs docs/ml-team writes the page's own
python -m benchmarks.paper table        # from what is on file in benchmarks/results
python -m benchmarks.paper hearts       # prints what exact knowledge would bring to the tables of heart disease
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.records import MEASURED


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["figures", "table", "hearts"])
    parser.add_argument("--docs", type=Path, default=MEASURED, help="folder of the page and of figures/")
    arguments = parser.parse_args()
    if arguments.what == "figures":
        from benchmarks.paper import figures  # only the figures need matplotlib

        figures.write(arguments.docs / "figures")
        return
    from benchmarks.paper import table

    if arguments.what == "hearts":
        print(table.hearts())
    else:
        table.write(arguments.docs / "results.md")


if __name__ == "__main__":
    main()
