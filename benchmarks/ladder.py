"""What the whole ladder makes of shifts, as a team would call it.

    python -m benchmarks.ladder run --data-dir ../shared/data --seeds 5,6 [--shifts usps,blur] [--sizes 4000:1]
    python -m benchmarks.ladder summary [--format json]     # "noise 4000 1": mean delivered accuracy, in percent

Shifts, networks and hospitals are those of `benchmarks.normalisation`: Fashion-MNIST and a five-layer BatchNorm
network, MNIST -> USPS stretched, a GRU whose records have an offset; and `digits`, the demo's hospital. Releases are
made in this process by the curator's own admission, price, clipping, sums and noise, with a seeded source of noise.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.in_process import in_process, trained
from benchmarks.normalisation.__main__ import CACHE, cells, target_of
from benchmarks.records import Rows, options, read
from dpswd import adapt
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.data.accuracy import accuracy

RESULTS = Path(__file__).parent / "results" / "ladder.json"
DEMO = {"shift": "digits", "records": 898, "epsilon": 2.0}


def measured(cell: dict[str, Any], data_dir: Path, cache: Path) -> dict[str, Any]:
    """One cell, with accuracies in percent and what was asked."""
    if cell["shift"] == "digits":
        task, origin = trained("digits", None, cell["seed"])
        source, records, test = task.source, task.target, task.target
    else:
        origin, records, test = target_of(cell, data_dir, cache)
        source = origin.source
    hospital = Hospital(in_process(records.images, epsilon=2.0 * cell["epsilon"], seed=cell["seed"]))
    network = nn.Sequential(origin.extractor, origin.classifier)
    begun = time.monotonic(), time.process_time()
    adapted = adapt(
        network, (source.images, source.labels), hospital,
        epsilon=cell["epsilon"], seed=cell["seed"], device="cpu", progress=False,
    )  # fmt: skip
    return {
        "source": accuracy(network, nn.Identity(), test),
        "delivered": accuracy(adapted.model.extractor, adapted.model.classifier, test),
        "outcome": adapted.outcome,
        "asked": [[one.rung, one.outcome, one.plain, one.finding] for one in adapted.answers],
        "spent": hospital.describe().spent,
        "seconds": round(time.monotonic() - begun[0], 1),
        "processor_seconds": round(time.process_time() - begun[1], 1),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means over seeds: of delivered models "noise 4000 1", of source models "noise source"; and the worst change."""
    figures: dict[str, float] = {}
    for row in rows:
        alike = [one for one in rows if one["shift"] == row["shift"]]
        figures[f"{row['shift']} source"] = statistics.mean({one["seed"]: one["source"] for one in alike}.values())
        size = [
            one["delivered"] for one in alike if (one["records"], one["epsilon"]) == (row["records"], row["epsilon"])
        ]
        figures[f"{row['shift']} {row['records']} {row['epsilon']:g}"] = statistics.mean(size)
    figures["worst"] = min(row["delivered"] - row["source"] for row in rows)
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cache", type=Path, default=CACHE)
    options(parser, RESULTS, seeds=(5, 6, 7))  # of networks and noise; methods were made on those before
    parser.add_argument("--shifts", default=None, help="with commas; all if not given")
    parser.add_argument("--sizes", default="4000:1,1000:0.3,7000:0.3,2000:1,898:2", help="records and epsilons")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    if asked.what == "run":
        torch.set_num_threads(1)
        shifts, sizes = asked.shifts and asked.shifts.split(","), asked.sizes.split(",")
        chosen = [
            cell
            for cell in [*cells(asked.seeds), *(DEMO | {"seed": seed} for seed in asked.seeds)]
            if (shifts is None or cell["shift"] in shifts) and f"{cell['records']}:{cell['epsilon']:g}" in sizes
        ]
        jobs = [(cell, functools.partial(measured, cell, asked.data_dir, asked.cache)) for cell in chosen]
        Rows(RESULTS, asked.results).run(jobs)
        return
    figures = summary(read(asked.results or RESULTS))
    print(
        json.dumps(figures, indent=1)
        if asked.format == "json"
        else "\n".join(f"{k:<32} {v}" for k, v in figures.items())
    )


if __name__ == "__main__":
    main()
