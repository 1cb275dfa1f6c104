"""DP-DANN's figures: accuracy before and after, by epsilon and seed.

``python -m benchmarks.dann --data digits --epsilons 1 3 --seeds 0,1`` prints a table. The client's code is the
product's; the curator's part of a step (sample, per-record gradients, clip, sum, noise) runs in this process by the
same functions, without a service, a signed ledger or paced replies, so that many seeds take minutes and not hours.
tests/end_to_end/test_evaluation.py trains over the real service.
"""

from __future__ import annotations

import argparse
import copy
import functools
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.records import Row, Rows, mean_and_deviation, options
from dpswd import DomainAdaptation, DpDann
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Task, load_task
from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.experiments.start import SourceModel, train_source_model
from dpswd.public_client.testing.mock import MockCurator, mock_description

RESULTS = Path(__file__).parent / "results" / "dann.json"
DELTA = 1e-5
_SOURCE_EPOCHS = {"digits": 40, "mnist-usps": 2, "usps-mnist": 16}


def in_process(records: Tensor, *, epsilon: float, seed: int) -> MockCurator:
    """A mock curator with records of its own, which it holds in the open; samples and noise follow from a seed.

    Args:
        records: (n, ...) float32.
        epsilon: of its budget.
        seed: of samples and noise.
    """
    generator = torch.Generator().manual_seed(seed)
    description = mock_description(
        records=len(records), record_shape=tuple(records.shape[1:]), epsilon=epsilon, delta=DELTA, name="in process"
    )
    return MockCurator(
        description,
        randomness=np.random.default_rng(seed).bytes,
        records=lambda count: records[torch.randperm(len(records), generator=generator)[:count]],
    )


@functools.cache
def trained(data: str, data_dir: Path | None, seed: int) -> tuple[Task, SourceModel]:
    """A task, and a model of its source; `digits` as `dpswd-client demo` trains it."""
    task = load_task(data, data_dir=data_dir)
    settings = read_experiment(None, {"device": "cpu", "source.epochs": _SOURCE_EPOCHS[data]})
    return task, train_source_model(settings, task, seed=seed, progress=False)


def measured(data: str, data_dir: Path | None, *, epsilon: float, steps: int, seed: int) -> Row:
    """Accuracies in percent, before and after."""
    task, model = trained(data, data_dir, seed)
    hospital = Hospital(in_process(task.target.images, epsilon=epsilon, seed=seed))
    plan = hospital.plan(DpDann(), epsilon=epsilon, steps=steps)
    modules = copy.deepcopy((model.extractor, model.classifier))
    training = DomainAdaptation(*modules, hospital=hospital, plan=plan, seed=seed, device="cpu", source_epochs=0)
    adapted = training.fit(model.loader, progress=False).model()
    return {"source": model.accuracy, "adapted": accuracy(adapted.extractor, adapted.classifier, task.target)}


def main() -> None:
    """Prints a table of accuracies in percent, one line for each epsilon."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(_SOURCE_EPOCHS), default="digits")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with mnist.npz and usps16.npz")
    parser.add_argument("--epsilons", type=float, nargs="+", default=(1.0, 3.0))
    parser.add_argument("--steps", type=int, default=200)
    options(parser, RESULTS, seeds=range(5))
    asked = parser.parse_args()
    every = [{"epsilon": epsilon, "steps": asked.steps, "seed": s} for s in asked.seeds for epsilon in asked.epsilons]
    jobs = [
        ({"data": asked.data, **each}, functools.partial(measured, asked.data, asked.data_dir, **each))
        for each in every
    ]
    rows = Rows(RESULTS, asked.results).run(jobs)
    before = {row["seed"]: row["source"] for row in rows}
    print(f"| method | accuracy |\n|---|---|\n| source only | {mean_and_deviation([*before.values()])} |")
    for epsilon in asked.epsilons:
        after = [row["adapted"] for row in rows if row["epsilon"] == epsilon]
        print(f"| DP-DANN, epsilon {epsilon:g} | {mean_and_deviation(after)} |")


if __name__ == "__main__":
    main()
