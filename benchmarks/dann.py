"""DP-DANN's figures: accuracy before and after, by epsilon and seed.

``python -m benchmarks.dann --data digits --epsilon 1 --epsilon 3 --seeds 5`` prints a table. The client's code is the
product's; the curator's part of a step (sample, per-record gradients, clip, sum, noise) runs in this process by the
same functions, without a service, a ledger or paced replies, so that many seeds take minutes and not hours.
tests/end_to_end/test_evaluation.py trains over the real service.
"""

from __future__ import annotations

import math
import statistics
import types
from pathlib import Path
from typing import Any

import click
import torch

from public_client import experiment
from public_client.critic_plan import CriticPlan
from public_client.dann import DomainAdversary
from public_client.datasets import load_task
from public_client.description import Budget, Description, Limits
from public_client.evaluation import accuracy
from shared.extractor import Extractor, ExtractorGraph, weights_from_bytes
from shared.mechanisms.domain_loss import target_cotangents
from shared.mechanisms.noise import SeededNoise
from shared.mechanisms.sanitized_gradient import release_gradient
from shared.protocol.critics import CriticRelease
from shared.protocol.messages import RunParameters

DELTA = 1e-5
_SOURCE_EPOCHS = {"digits": 40, "mnist-usps": 2, "usps-mnist": 16}


class InProcessCurator:
    """What a critic's training asks of a curator, computed here; holds the records in the open.

    Args:
        records: (n, ...) float32.
        epsilon: of the budget that it describes.
        seed: of samples and noise.
    """

    def __init__(self, records: torch.Tensor, *, epsilon: float, seed: int) -> None:
        self._records = records
        self._epsilon = epsilon
        self._noise = SeededNoise(seed.to_bytes(32, "little"))
        self._generator = torch.Generator().manual_seed(seed)
        self._model: Extractor | None = None
        self._declared: RunParameters | None = None
        self.steps = 0

    def describe(self) -> Description:
        """The data set's public facts."""
        budget = Budget(self._epsilon, DELTA, 0.0, self._epsilon, closed=False)
        return Description(
            data_set="in process", records=len(self._records), record_shape=tuple(self._records.shape[1:]),
            data_set_budget=budget, client_budget=budget, neighbouring_relation="replace-one", mechanisms=("critic",),
            limits=Limits(1 << 25, 1000, 10, 10**6, 10**6, 10**6), grid_exponent=11, ledger_public_key="",
            client_name="benchmark", software_version="",
        )  # fmt: skip

    def upload_extractor(self, graph: bytes, weights: bytes) -> Any:
        """Rebuilds the model from data, as a curator does."""
        parsed = ExtractorGraph.from_bytes(graph)
        self._model = Extractor.from_graph(parsed, weights_from_bytes(weights, parsed.tensor_shapes))
        return types.SimpleNamespace(graph_digest="a" * 64, weights_digest="b" * 64)

    def open_run(self, parameters: RunParameters) -> Any:
        """Remembers the declaration."""
        self._declared = parameters
        return types.SimpleNamespace(parameters=parameters)

    def release_critic_gradient(self, _: Any, *, adapted_parameters: Any) -> CriticRelease:
        """One step."""
        assert self._model is not None
        assert self._declared is not None
        assert self._declared.gradient is not None
        declared, shapes = self._declared.gradient, self._model.graph.parameter_shapes
        flat, start, adapted = torch.from_numpy(adapted_parameters), 0, {}
        for name in declared.parameters:
            size = math.prod(shapes[name])
            adapted[name] = flat[start : start + size].reshape(shapes[name]).clone()
            start += size
        sample = torch.randperm(len(self._records), generator=self._generator)[: self._declared.batch_size]
        forward = self._model.begin(self._records[sample], declared.parameters, parameters=adapted)
        per_record = forward.gradients(target_cotangents(forward.outputs))
        sums = release_gradient(per_record, clip_norm=declared.clip_norm, sigma=declared.sigma, noise=self._noise)
        self.steps += 1
        return CriticRelease("in-process", self.steps, (sums.values * sums.step).astype("float32"))


@click.command()
@click.option("--data", type=click.Choice(list(_SOURCE_EPOCHS)), default="digits", show_default=True)
@click.option("--data-dir", type=click.Path(path_type=Path), default=None, help="Folder with mnist.npz and usps16.npz.")
@click.option("--epsilon", "epsilons", type=float, multiple=True, default=(1.0, 3.0), show_default=True)
@click.option("--seeds", type=int, default=5, show_default=True)
@click.option("--steps", type=int, default=200, show_default=True)
def main(data: str, data_dir: Path | None, epsilons: tuple[float, ...], seeds: int, steps: int) -> None:
    """Prints a table of accuracies in percent, one line for each epsilon."""
    task = load_task(data, data_dir=data_dir)
    reached: dict[float, list[float]] = {epsilon: [] for epsilon in epsilons}
    before: list[float] = []
    for seed in range(seeds):
        model = experiment.train_source_model(
            task.source, target=task.target, epochs=_SOURCE_EPOCHS[data], seed=seed, device="cpu",
            batch_size=64 if data == "digits" else 128, progress=False,
        )  # fmt: skip
        before.append(model.target)
        for epsilon in epsilons:
            curator: Any = InProcessCurator(task.target.images, epsilon=epsilon, seed=seed)
            plan = CriticPlan.of(curator.describe(), epsilon=epsilon, steps=steps)
            extractor, classifier = model.copies()
            adversary = DomainAdversary(extractor.eval(), classifier.eval(), curator, plan, seed=seed)
            adversary.fit(model.loader, progress=False)
            assert adversary.target is not None
            reached[epsilon].append(accuracy(adversary.target, classifier, task.target))
            click.echo(f"seed {seed} epsilon {epsilon:g}: {model.target:.1f} -> {reached[epsilon][-1]:.1f}", err=True)
    click.echo("| method | accuracy |\n|---|---|")
    click.echo(f"| source only | {_summary(before)} |")
    for epsilon, values in reached.items():
        click.echo(f"| DP-DANN, epsilon {epsilon:g} | {_summary(values)} |")


def _summary(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
