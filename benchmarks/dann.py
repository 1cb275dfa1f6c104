"""DP-DANN's figures: accuracy before and after, by epsilon and seed.

``python -m benchmarks.dann --data digits --epsilon 1 --epsilon 3 --seeds 0,1`` prints a table. The client's code is the
product's; the curator's part of a step (sample, per-record gradients, clip, sum, noise) runs in this process by the
same functions, without a service, a signed ledger or paced replies, so that many seeds take minutes and not hours.
tests/end_to_end/test_evaluation.py trains over the real service.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from benchmarks.records import numbers
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import load_task
from dpswd.public_client.experiments.approaches import Problem, approach
from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.experiments.start import train_source_model
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.sites import ALONE

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


@click.command()
@click.option("--data", type=click.Choice(list(_SOURCE_EPOCHS)), default="digits", show_default=True)
@click.option("--data-dir", type=click.Path(path_type=Path), default=None, help="Folder with mnist.npz and usps16.npz.")
@click.option("--epsilon", "epsilons", type=float, multiple=True, default=(1.0, 3.0), show_default=True)
@click.option("--seeds", callback=lambda _, __, words: numbers(words), default="0,1,2,3,4", show_default=True)
@click.option("--steps", type=int, default=200, show_default=True)
def main(data: str, data_dir: Path | None, epsilons: tuple[float, ...], seeds: tuple[int, ...], steps: int) -> None:
    """Prints a table of accuracies in percent, one line for each epsilon."""
    task = load_task(data, data_dir=data_dir)
    reached: dict[float, list[float]] = {epsilon: [] for epsilon in epsilons}
    before: list[float] = []
    for seed in seeds:
        settings = read_experiment(None, {"device": "cpu", "source.epochs": _SOURCE_EPOCHS[data]})
        model = train_source_model(settings, task, seed=seed, progress=False)
        before.append(model.accuracy)
        for epsilon in epsilons:
            problem = Problem(
                model.extractor,
                model.classifier,
                model.loader,
                hospital=Hospital(in_process(task.target.images, epsilon=epsilon, seed=seed)),
                wishes={"epsilon": epsilon, "steps": steps},
                seed=seed,
                device="cpu",
                progress=False,
            )
            adapted = approach("dp-dann").train(problem).models[ALONE]
            reached[epsilon].append(accuracy(adapted.extractor, adapted.classifier, task.target))
            click.echo(f"seed {seed} epsilon {epsilon:g}: {model.accuracy:.1f} -> {reached[epsilon][-1]:.1f}", err=True)
    click.echo("| method | accuracy |\n|---|---|")
    click.echo(f"| source only | {_summary(before)} |")
    for epsilon, values in reached.items():
        click.echo(f"| DP-DANN, epsilon {epsilon:g} | {_summary(values)} |")


def _summary(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
