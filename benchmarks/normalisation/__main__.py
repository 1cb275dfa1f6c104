"""What statistics of normalisation layers recover of shifts, over the real mechanism.

    python -m benchmarks.normalisation run --seeds 5,6,7      # beside what is on file
    python -m benchmarks.normalisation summary --format json  # "noise 4000 1": mean delivered accuracy

Fashion-MNIST and a five-layer batch normalisation network, MNIST -> USPS stretched, and a GRU whose records have an
offset. Releases are made in this process by `MockCurator`: the curator's own admission, price, clipping, sums and noise
behind the wire format, with a seeded noise source in the place of the operating system's; no server and no worker.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.in_process import in_process
from benchmarks.normalisation import sources
from benchmarks.normalisation.shifts import NAMES, shifted
from benchmarks.records import Rows, mean_and_deviation, options, read
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.source import source_loader
from dpswd.public_client.methods.normalisation import Normalisation

RESULTS = Path(__file__).parents[1] / "results" / "normalisation.json"
CACHE = Path.home() / ".cache" / "dpswd-benchmarks"
IMAGES = ((4000, 1.0), (4000, 0.3), (1000, 1.0), (1000, 0.3))
SEEDS = (5, 6, 7)  # of networks; those before were looked at while the method was made
OTHERS = {"usps": ((7000, 0.3), (7000, 1.0)), "sequence offset": ((2000, 1.0), (2000, 0.3))}


def cells(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """All, seed by seed."""
    settings = [(shift, *size) for shift in NAMES for size in IMAGES]
    settings += [(name, *size) for name, sizes in OTHERS.items() for size in sizes]
    return [
        {"shift": shift, "records": records, "epsilon": epsilon, "seed": seed}
        for seed in seeds
        for shift, records, epsilon in settings
    ]


def target_of(cell: dict[str, Any], data_dir: Path, cache: Path) -> tuple[sources.Origin, Labelled, Labelled]:
    """The network, the hospital's records, and those on which accuracy is measured."""
    seed, records = cell["seed"], cell["records"]
    if cell["shift"] == "usps":
        origin = sources.mnist_usps(seed, cache, data_dir)
        order = torch.randperm(len(origin.pool), generator=torch.Generator().manual_seed(seed))
        return origin, origin.pool.part(order[:records]), origin.test
    if cell["shift"] == "sequence offset":
        origin = sources.sequences(seed, cache)
        moved = [Labelled(data.images + 0.6, data.labels) for data in (origin.pool, origin.test)]
        return origin, moved[0].part(torch.arange(records)), moved[1]
    origin = sources.fashion(seed, cache)
    return origin, *shifted(cell["shift"], origin.pool, origin.test, records, seed)


def measured(cell: dict[str, Any], data_dir: Path, cache: Path) -> dict[str, Any]:
    """One cell, with the accuracies of the source's and the delivered model in percent."""
    begun = time.monotonic()
    origin, records, test = target_of(cell, data_dir, cache)
    hospital = Hospital(in_process(records.images, epsilon=2.0 * cell["epsilon"], seed=cell["seed"]))
    adaptation = DomainAdaptation(
        origin.extractor,
        origin.classifier,
        hospital=hospital,
        plan=hospital.plan(Normalisation(), epsilon=cell["epsilon"]),
        device="cpu",
        seed=cell["seed"],
        source_epochs=0,
    )
    before = accuracy(origin.extractor, origin.classifier, test)
    adaptation.fit(source_loader(origin.source, batch_size=256, seed=cell["seed"]), progress=False)
    model = adaptation.model()
    report = adaptation.reports[0]
    return {
        "source": before,
        "delivered": accuracy(model.extractor, model.classifier, test),
        "outcome": report["outcome"],
        "finding": report["finding"],
        "charged": report["charged_epsilon"],
        "seconds": round(time.monotonic() - begun, 1),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means over seeds: of delivered models "noise 4000 1", of source models "noise source"; and the worst change."""
    figures: dict[str, float] = {}
    for shift in dict.fromkeys(row["shift"] for row in rows):
        own = [row for row in rows if row["shift"] == shift]
        figures[f"{shift} source"] = statistics.mean({row["seed"]: row["source"] for row in own}.values())
        for records, epsilon in dict.fromkeys((row["records"], row["epsilon"]) for row in own):
            alike = [row for row in own if (row["records"], row["epsilon"]) == (records, epsilon)]
            figures[f"{shift} {records} {epsilon:g}"] = statistics.mean(row["delivered"] for row in alike)
    figures["worst"] = min(row["delivered"] - row["source"] for row in rows)
    return {name: round(value, 2) for name, value in figures.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each shift: source, and each size and epsilon."""
    sizes = list(dict.fromkeys((row["records"], row["epsilon"]) for row in rows))
    head = ["shift", "source", *(f"{records:,}, {epsilon:g}" for records, epsilon in sizes)]
    lines = [head, ["---"] * len(head)]
    for shift in dict.fromkeys(row["shift"] for row in rows):
        own = [row for row in rows if row["shift"] == shift]
        cells = [mean_and_deviation(list({row["seed"]: row["source"] for row in own}.values()))]
        for size in sizes:
            alike = [row["delivered"] for row in own if (row["records"], row["epsilon"]) == size]
            cells.append(mean_and_deviation(alike) if alike else "")
        lines.append([shift, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run, summarise = commands.add_parser("run"), commands.add_parser("summary")
    options(run, RESULTS, seeds=SEEDS)
    options(summarise, RESULTS)
    run.add_argument("--shifts", default=None, help="with commas; these alone")
    run.add_argument("--sizes", default=None, help="such as 4000:1,1000:0.3; these alone")
    run.add_argument("--data-dir", type=Path, default=Path("../shared/data"))
    run.add_argument("--cache", type=Path, default=CACHE)
    summarise.add_argument("--format", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    if arguments.command == "summary":
        rows = read(arguments.results or RESULTS)
        print(json.dumps(summary(rows), indent=1) if arguments.format == "json" else table(rows))
        return
    torch.set_num_threads(1)
    shifts, sizes = arguments.shifts and arguments.shifts.split(","), arguments.sizes and arguments.sizes.split(",")
    chosen = [
        cell
        for cell in cells(arguments.seeds)
        if (shifts is None or cell["shift"] in shifts)
        and (sizes is None or f"{cell['records']}:{cell['epsilon']:g}" in sizes)
    ]
    jobs = [(cell, functools.partial(measured, cell, arguments.data_dir, arguments.cache)) for cell in chosen]
    Rows(RESULTS, arguments.results).run(jobs)


if __name__ == "__main__":
    main()
