"""The published generators on MNIST and Fashion-MNIST, at sizes that finish on a CPU, and what their full lengths cost.

    python -m benchmarks.generate_published run --data-dir ../shared/data [--only dp-sinkhorn] [--seeds 1]
    python -m benchmarks.generate_published prices      # the papers' settings under the rigorous accountant
    python -m benchmarks.generate_published summary

needs mnist.npz in the folder, and for --data fashion the files of Debian's dataset-fashion-mnist (--fashion-dir). A
mock curator holds the 60,000 records and computes with the product's mechanisms. The settings of the short runs were
not tuned, their classifier's fixed beforehand; test records are looked at once.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import records
from benchmarks.generate import data
from dpswd import MockCurator, mock_description
from dpswd.public_client.cli.options import key_values
from dpswd.public_client.generation import GenerationMethod, Generator, generation_kinds
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.noise.noise import grid_step
from dpswd.shared.core.privacy.events import ClippedVector, RowProjections, RunEvent, StepEvent

RESULTS = Path(__file__).parent / "results" / "generate-published.json"
DELTA = 1e-5
SHORT: Mapping[str, tuple[Mapping[str, Any], int | None]] = {
    "dp-sinkhorn": ({"width": 8, "learning_rate": 0.003}, 600),
    "gaussian": ({}, None),
    "dp-swd": ({"width": 8, "learning_rate": 0.003}, 1500),
    "dp-swd-quantiles": ({"width": 8, "learning_rate": 0.003}, 1500),
}
"""Settings and steps of the short runs, by method."""
EPSILONS = (10.0, 1.0, 0.2)
DRAWN, EPOCHS, BATCH = 10_000, 3, 128  # records of a generator that the CNN learns from, and how

PAPER_STEPS = {"MNIST": 1.1, "Fashion-MNIST": 0.9}
"""Noise over 2C of DP-Sinkhorn's released commands; batch 50 of 60,000, until its accountant says epsilon 10."""
PAPER_BATCH, N = 50, 60_000
SWD_BATCH, SWD_DIRECTIONS, SWD_VALUES = 100, 1000, 784 + 10
SWD_STEPS = 60_000
"""A hundred passes over 60,000 records; the paper does not say how many its generators take."""


def cnn(image: tuple[int, ...]) -> nn.Sequential:
    """A small convolutional classifier of (1, side, side) images."""
    pooled = image[1] // 4
    first = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(
        *first, *second, nn.Linear(32 * pooled**2, 100), nn.ReLU(), nn.Dropout(0.3), nn.Linear(100, 10)
    )


def accuracy(generator: Generator, images: Tensor, labels: Tensor, *, seed: int) -> float:
    """Of a CNN that has seen drawn records alone, on real test records; in percent."""
    x, y = generator.sample(DRAWN, seed=seed + 1)
    torch.manual_seed(seed)
    model = cnn(tuple(images.shape[1:]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for part in torch.randperm(DRAWN).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.eval()
    with torch.no_grad():
        classes = torch.cat([model(part).argmax(dim=1) for part in images.split(1000)])
    return 100.0 * float((classes == labels).float().mean())


def fitted(
    method: GenerationMethod,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    epsilon: float,
    steps: int | None,
    seed: int,
    progress: bool = False,
    device: str = "cpu",
) -> Generator:
    """A generator of records with values from -1 to 1, by a mock curator that holds them."""
    description = mock_description(
        records=len(labels), record_shape=images.shape[1:], epsilon=4.0 * epsilon, delta=DELTA, classes=10
    )
    curator = MockCurator(description, records=images, labels=labels)
    plan, _ = plan_generator(curator, method, epsilon=epsilon, steps=steps)
    return generate(curator, plan, seed=seed, device=device, progress=progress)


def jobs(arguments: argparse.Namespace) -> Iterator[records.Job]:
    """All runs."""
    held = data(arguments.data, arguments)
    train = (held["train"][0].numpy() * 2.0 - 1.0, held["train"][1])
    tests = (held["test"][0] * 2.0 - 1.0, torch.from_numpy(held["test"][1]))

    def measured(name: str, settings: dict[str, Any], epsilon: float, steps: int | None, seed: int) -> records.Row:
        begun = time.process_time()
        method = generation_kinds()[name](**settings)
        generator = fitted(method, *train, epsilon=epsilon, steps=steps, seed=seed, device=arguments.device)
        spent = time.process_time() - begun
        reached, cost = accuracy(generator, *tests, seed=seed), generator.facts["guarantee"]["epsilon"]
        return {"accuracy": reached, "ledger": cost, "cpu_seconds": round(spent), "device": arguments.device}

    for seed, epsilon, name in itertools.product(arguments.seeds, arguments.epsilons, SHORT):
        if arguments.only in (None, name):
            short, few = SHORT[name]
            settings = {**short, **key_values("--set", tuple(arguments.set))}
            steps = few if few is None or arguments.steps is None else arguments.steps
            own = {"data": arguments.data, "method": name, "epsilon": epsilon, "seed": seed, **settings, "steps": steps}
            yield own, functools.partial(measured, name, settings, epsilon, steps, seed)


def _sinkhorn(factor: float, steps: int, *, batch: int = PAPER_BATCH) -> RunEvent:
    """A run of DP-Sinkhorn with noise of `factor` times 2C."""
    part = ClippedVector(PAPER_BATCH * 784, 0.5, factor, factor * 2.0**-20)
    return RunEvent(StepEvent(N, batch, (part,)), steps)


def poisson_steps(factor: float, *, epsilon: float = 10.0) -> int:
    """How many steps the paper's accountant (Poisson samples, add or remove one, Renyi) lets pass until epsilon."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    def cost(steps: int) -> float:
        accountant = RdpAccountant([1 + k / 4 for k in range(1, 16)] + list(range(5, 64)) + [128, 256, 512])
        accountant.compose(PoissonSampledDpEvent(PAPER_BATCH / N, GaussianDpEvent(factor)), steps)
        return float(accountant.get_epsilon(DELTA))

    low, high = 1, 1
    while cost(high) <= epsilon:
        low, high = high, 2 * high
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= epsilon else (low, middle)
    return low


def prices() -> str:
    """The papers' settings, rigorously: in Markdown."""
    head = "| setting | noise / 2C, published | steps to a nominal 10 by Poisson samples | our epsilon of the same run "
    lines = [f"{head}| noise / 2C for epsilon 10 | 1 | 0.2 |", "|---|---|---|---|---|---|---|"]
    for name, factor in PAPER_STEPS.items():
        steps = poisson_steps(factor)
        needed = [
            calibrate_sigma(lambda sigma, T=steps: _sinkhorn(sigma, T), epsilon=goal, delta=DELTA) for goal in EPSILONS
        ]
        ours = epsilon_of(_sinkhorn(factor, steps), DELTA)
        cells = " | ".join(f"{value:.3f}" for value in needed)
        lines.append(f"| DP-Sinkhorn, {name}, b = {PAPER_BATCH} | {factor} | {steps:,} | {ours:.2f} | {cells} |")
    _, steps_here = SHORT["dp-sinkhorn"]
    assert steps_here is not None
    needed = [calibrate_sigma(lambda s: _sinkhorn(s, steps_here), epsilon=goal, delta=DELTA) for goal in EPSILONS]
    cells = " | ".join(f"{value:.3f}" for value in needed)
    lines.append(f"| DP-Sinkhorn, MNIST, the short run here, {steps_here} steps |  |  |  | {cells} |")
    lines += [
        "",
        "| setting | noise on a projection, of clip norm 1/2, for epsilon 10 | 1 | 0.2 |",
        "|---|---|---|---|",
    ]
    _, short = SHORT["dp-swd"]
    assert short is not None
    for steps in (short, SWD_STEPS):
        needed = [calibrate_sigma(lambda s, T=steps: _rows(s, T), epsilon=goal, delta=DELTA) for goal in EPSILONS]
        cells = " | ".join(f"{value:.3f}" for value in needed)
        lines.append(
            f"| DP-SWD, rows, k = {SWD_DIRECTIONS}, d = 784 + 10, b = {SWD_BATCH}, {steps:,} steps | {cells} |"
        )
    return "\n".join(lines)


def _rows(sigma: float, steps: int) -> RunEvent:
    """A run of DP-SWD's generator with noise sigma on each projection."""
    part = RowProjections(SWD_VALUES, SWD_DIRECTIONS, sigma, grid_step(sigma))
    return RunEvent(StepEvent(N, SWD_BATCH, (part,)), steps)


def summary(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    lines = ["| data | method | epsilon | CNN accuracy | CPU seconds of a fit | seeds |", "|---|---|---|---|---|---|"]
    for kind, name in itertools.product(("mnist", "fashion"), SHORT):
        for epsilon in EPSILONS:
            key = (kind, name, epsilon)
            own = [run for run in runs if (run["data"], run["method"], run["epsilon"]) == key]
            if own:
                reached = records.mean_and_deviation([run["accuracy"] for run in own], 1)
                seconds = max(run["cpu_seconds"] for run in own)
                lines.append(f"| {kind} | {name} | {epsilon:g} | {reached} | {seconds} | {len(own)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "prices", "summary"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", choices=tuple(SHORT))
    parser.add_argument("--data", choices=("mnist", "fashion"), default="mnist")
    parser.add_argument("--fashion-dir", type=Path)
    parser.add_argument("--epsilons", type=float, nargs="*", default=EPSILONS)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    records.options(parser, RESULTS, seeds=(0,))
    parser.add_argument("--steps", type=int, help="of the methods that take steps, in the place of the short runs'")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the method")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "run":
        if arguments.data_dir is None:
            parser.error("--data-dir is needed")
        arguments.held_out = False
        records.Rows(RESULTS, arguments.results).run(jobs(arguments))
        return
    print(prices() if arguments.command == "prices" else summary(records.read(arguments.results or RESULTS)))


if __name__ == "__main__":
    main()
