"""Full-batch noised rows, released once and replayed: the slicing mechanism as a baseline beside the default.

    python -m benchmarks.generate_slicing run --data-dir ../shared/data [--seeds 1]
    python -m benchmarks.generate_slicing summary

After Greenewald and others (NeurIPS 2024): every record's noisy projections along k random directions are released
once, and a generator is fitted to them for as long as one likes. Here the release is `labelled_rows` of all records in
one step, charged by the exact curve under replace-one like the default's; the distance is DP-SWD's, the squared sliced
distance to equally noised projections, in the place of the paper's divergence, and network and classifier are those of
the short runs of `benchmarks.generate_published`. Settings were not tuned; test records are looked at once.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import records
from benchmarks.generate import data
from benchmarks.generate_published import accuracy, fitted
from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.sliced_distances import row_distance
from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.sliced import DpSwd
from dpswd.public_client.methods.aligned_run import AlignedRun
from dpswd.public_client.replay.fit import cosine
from dpswd.public_client.training.run import ChargedRun
from dpswd.shared.core.mechanisms.interface import RunSize
from dpswd.shared.core.mechanisms.sliced import labelled
from dpswd.shared.core.noise.feature_map import FeatureMap

RESULTS = Path(__file__).parent / "results" / "generate-slicing.json"
EPSILONS = (10.0, 1.0)
SETTINGS: dict[str, Any] = {"width": 8, "learning_rate": 0.003, "directions": 200, "rows": 500, "updates": 200}


@dataclass(frozen=True, kw_only=True)
class Slicing(DpSwd):
    """One release of the noisy projections of all records with their labels, and a network fitted to it.

    Attributes:
        rows: released, and drawn, of each update.
        updates: of the fit; they cost nothing.
    """

    name = "slicing"

    rows: int = 500
    updates: int = 1000

    def usual_size(self, description: Description) -> RunSize:
        """See `Recipe`: everything, once."""
        return RunSize(batch=description.records, steps=1)

    def fit(self, run: ChargedRun, features: nn.Module, fitting: Fitting) -> Generator:
        """See `GenerationMethod`."""
        assert isinstance(run, AlignedRun), "this method opened it"
        classes, declared = run.plan.classes, run.sliced
        reply = run.draw().reply
        released = reply.values.to_tensor(dtype=torch.float32)  # (n, k)
        clip = FeatureMap.identity(run.plan.facts.model.feature_dimension + classes)
        U = reply.directions(torch.empty(1, len(clip.center)))
        trained, own = self.made(run, fitting), torch.Generator().manual_seed(fitting.seed)
        optimizer = torch.optim.Adam(trained.parameters(), lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: cosine(min(t, self.updates) / self.updates))
        with reporting(f"{self.name}: fitting", self.updates, shown=fitting.progress) as bar:
            for _ in range(self.updates):
                labels = torch.randint(classes, (self.rows,), generator=own)
                made = self.features_on(features, trained(self.latents(labels, classes, own)), run)
                drawn = clip.clipped(labelled(made, labels, classes=classes, weight=declared.label_weight)) @ U
                noised = drawn + declared.sigma * torch.randn(drawn.shape, generator=own)
                part = released[torch.randint(len(released), (self.rows,), generator=own)]
                optimizer.zero_grad()
                row_distance(part, noised).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                bar.advance("")
        self._settle(trained, classes, own)
        return self.finished(trained, run, (1.0 / classes,) * classes)


def run(arguments: argparse.Namespace) -> None:
    """Adds the runs that are not on file."""
    held = data("mnist", arguments)
    train = (held["train"][0].numpy() * 2.0 - 1.0, held["train"][1])
    tests = (held["test"][0] * 2.0 - 1.0, torch.from_numpy(held["test"][1]))
    for seed in range(arguments.seeds):
        for epsilon in EPSILONS:
            told = {"data": "mnist", "method": Slicing.name, "epsilon": epsilon, "seed": seed, **SETTINGS}
            if records.on_file(told, records.read(RESULTS)):
                continue
            begun = time.process_time()
            generator = fitted(Slicing(**SETTINGS), *train, epsilon=epsilon, steps=1, seed=seed)
            spent = time.process_time() - begun
            reached = accuracy(generator, *tests, seed=seed)
            cost = generator.facts["guarantee"]["epsilon"]
            records.append(RESULTS, told | {"accuracy": reached, "ledger": cost, "cpu_seconds": round(spent)})


def table(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    lines = ["| data | epsilon | CNN accuracy | CPU seconds of a fit | seeds |", "|---|---|---|---|---|"]
    for epsilon in EPSILONS:
        if own := [one for one in runs if one["epsilon"] == epsilon]:
            reached = records.mean_and_deviation([one["accuracy"] for one in own])
            lines.append(f"| mnist | {epsilon:g} | {reached} | {max(one['cpu_seconds'] for one in own)} | {len(own)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "run":
        if arguments.data_dir is None:
            parser.error("--data-dir is needed")
        arguments.held_out = False
        run(arguments)
    print(table(records.read(RESULTS)))


if __name__ == "__main__":
    main()
