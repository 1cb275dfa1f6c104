"""How far one small release carries: the hospital of `docker compose up`, many times.

    python -m benchmarks.small_hospitals run     # anew, beside what is on file
    python -m benchmarks.small_hospitals summary

898 records of scikit-learn's digits behind a turn, smaller and paler, and the default recipe: one full-batch release,
replayed. The source-trained model is the same each time; what differs is the release's noise, its directions, the
view's random starts and the tuning's draws. Releases are made in this process (`benchmarks.local`).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.local import delivered, fitted
from benchmarks.records import Job, Row, Rows, mean_and_deviation, options, read
from benchmarks.vectors import tuned
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import load_task
from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.experiments.start import train_source_model
from dpswd.public_client.replay.views import view_for

RESULTS = Path(__file__).parent / "results" / "small-hospitals.json"
EPSILONS = (1.0, 2.0, 4.0)
DELTA = 1e-5
_EPOCHS = 65  # the default's 900 updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    options(parser, RESULTS, seeds=range(20))  # of releases
    arguments = parser.parse_args()
    if arguments.command == "run":
        torch.set_num_threads(1)
        Rows(RESULTS, arguments.results).run(_jobs(arguments.seeds))
        return
    print(table(read(arguments.results or RESULTS)))


def _jobs(releases: Sequence[int]) -> Iterator[Job]:
    task = load_task("digits")
    training = read_experiment(None, {"device": "cpu", "source.epochs": _EPOCHS, "source.batch_size": 128})
    model = train_source_model(training, task, seed=0, progress=False)
    extractor = model.extractor.requires_grad_(False)

    def control() -> Row:
        still = view_for(task.source.images, torch.ones(2, 1))
        before = accuracy(extractor, model.classifier, task.target)
        without = accuracy(*tuned(extractor, model.classifier, still, task.source, 0), task.target)
        return {"accuracy": without, "source_only": before, "records": len(task.target)}

    def released(epsilon: float, release: int) -> Row:
        fit = fitted(extractor, task.source, task.target.images, epsilon=epsilon, delta=DELTA, seed=release)
        generator = torch.Generator().manual_seed(release)
        given = delivered(extractor, model.classifier, fit, task.source, seed=release, generator=generator)
        reached = accuracy(given.extractor, given.classifier, task.target)
        return {"accuracy": reached, "outcome": given.outcome, "reason": given.reason}

    yield {"epsilon": None}, control
    for epsilon, release in itertools.product(EPSILONS, releases):
        yield {"epsilon": epsilon, "release": release}, functools.partial(released, epsilon, release)


def table(runs: list[dict[str, Any]]) -> str:
    """Each epsilon's spread, beside what no release reaches."""
    control = next(run for run in runs if run["epsilon"] is None)
    lines = ["| epsilon | mean and deviation | median | worst tenth | lowest | below no release | kept |"]
    lines += ["|---" * 7 + "|", f"| no release | {control['accuracy']:.1f} (one run) | | | | | |"]
    for epsilon in EPSILONS:
        own = [run for run in runs if run["epsilon"] == epsilon]
        reached, unchanged = sorted(run["accuracy"] for run in own), sum(run["outcome"] == "kept" for run in own)
        if not reached:
            lines.append(f"| {epsilon:g} | not run | | | | | |")
            continue
        worst = statistics.mean(reached[: max(1, len(reached) // 10)])
        below = sum(value < control["accuracy"] for value in reached)
        usual = f"{mean_and_deviation(reached)} | {statistics.median(reached):.1f}"
        lines.append(
            f"| {epsilon:g} | {usual} | {worst:.1f} | {reached[0]:.1f} | {below} of {len(reached)} | {unchanged} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
