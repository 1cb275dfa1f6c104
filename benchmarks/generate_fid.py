"""Fréchet distances of drawn to real images in the features of a stated public network; no Inception weights.

    python -m benchmarks.generate_fid run --data-dir ../shared/data --fashion-dir /usr/share/datasets/fashion-mnist
    python -m benchmarks.generate_fid summary

The network is the small CNN of `benchmarks.generate_published`, trained for three epochs from seed 0 on another, public
data set: USPS's 7,291 training digits, brought to 28 x 28, for MNIST; MNIST's training images for Fashion-MNIST. Its
features are the 100 numbers before the last layer. The distance between two sets of 10,000 images is that of normal
laws with their means and covariances (Heusel and others, 2017). It is **no Inception FID** and comparable to no
published one; the floor is the distance of the first 10,000 real training images to the 10,000 test images.

`gaussian` is fitted to MNIST and Fashion-MNIST. Distances of `replayed` stand in the runs of `benchmarks.generate`,
which take them of the same rows.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks import records
from benchmarks.generate import data, stretched
from benchmarks.generate_published import BATCH, EPOCHS, SHORT, cnn, fitted
from dpswd.public_client.generation import generation_kinds

RESULTS = Path(__file__).parent / "results" / "generate-fid.json"
IMAGES, EPSILONS = 10_000, (10.0, 1.0, 0.2)
PUBLIC = {"mnist": "USPS", "fashion": "MNIST", "usps": "MNIST", "digits": "USPS"}
"""What the network was trained on, by data."""
FLOOR = "real training images"
METHODS = ("gaussian",)


def frechet(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """|m - m'|^2 + tr(S + S' - 2 (S S')^(1/2)) of the means and covariances of features (n, d) and (n', d)."""
    means = [own.mean(axis=0) for own in (first, second)]
    covariances = [np.cov(own, rowvar=False) for own in (first, second)]
    values, vectors = np.linalg.eigh(covariances[0])
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    # (S S')^(1/2) has the eigenvalues of the symmetric (S^(1/2) S' S^(1/2))^(1/2).
    joint = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ covariances[1] @ root), 0.0)).sum()
    moved = float(np.square(means[0] - means[1]).sum())
    return moved + float(np.trace(covariances[0]) + np.trace(covariances[1]) - 2.0 * joint)


def public_network(name: str, arguments: argparse.Namespace) -> nn.Sequential:
    """From images (b, 1, 28, 28) in [0, 1] to 100 features, trained on public images of another kind."""
    if PUBLIC[name] == "USPS":
        with np.load(arguments.data_dir / "usps16.npz", allow_pickle=False) as held:
            x, y = torch.from_numpy(held["x_train"].astype(np.float32) / 255.0)[:, None], held["y_train"]
        x = stretched(x)
    else:
        x, y = data("mnist", arguments)["train"]
    torch.manual_seed(0)
    labels, model = torch.from_numpy(y.astype(np.int64)), cnn((1, 28, 28))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), labels[part]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model[:-1].eval()  # without the last layer; dropout does nothing now


def features(network: nn.Sequential, images: Tensor) -> npt.NDArray[np.float64]:
    """(n, 100) of images in [0, 1]."""
    with torch.no_grad():
        activations: npt.NDArray[np.float64] = (
            torch.cat([network(part) for part in images.split(1000)]).double().numpy()
        )
    return activations


def drawn(method: str, epsilon: float, seed: int, held: Any) -> Tensor:
    """Images (n, 1, 28, 28) in [0, 1] of a generator that is fitted to the hospital's."""
    images, labels = held["train"]
    settings, steps = SHORT[method]
    made = fitted(
        generation_kinds()[method](**settings), images.numpy() * 2.0 - 1.0, labels,
        epsilon=epsilon, steps=steps, seed=seed,
    )  # fmt: skip
    return made.sample(IMAGES, seed=seed + 1)[0] * 0.5 + 0.5


def jobs(arguments: argparse.Namespace) -> Iterator[records.Job]:
    """All runs."""
    arguments.held_out = False
    for name in arguments.data:
        held = data(name, arguments)
        network = public_network(name, arguments)
        real = features(network, held["test"][0])
        own: dict[str, Any] = {"data": name, "network": PUBLIC[name]}
        away = functools.partial(_distance, network, real)
        yield (
            own | {"method": FLOOR, "epsilon": None, "seed": 0},
            functools.partial(away, lambda held=held: held["train"][0][:IMAGES]),
        )
        for method, epsilon, seed in itertools.product(arguments.methods, arguments.epsilons, arguments.seeds):
            images = functools.partial(drawn, method, epsilon, seed, held)
            yield (
                own | {"method": method, "epsilon": epsilon, "seed": seed, **SHORT[method][0]},
                functools.partial(away, images),
            )


def _distance(network: nn.Module, real: Tensor, images: Callable[[], Tensor]) -> records.Row:
    return {"distance": frechet(features(network, images().clamp(0.0, 1.0)), real)}


def table(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    columns = [
        (name, epsilon)
        for name in PUBLIC
        for epsilon in EPSILONS
        if any((one["data"], one["epsilon"]) == (name, epsilon) for one in runs)
    ]
    heads = " | ".join(f"{name} {epsilon:g}" for name, epsilon in columns)
    lines = [f"| images | {heads} |", "|---|" + "---|" * len(columns)]
    for method in dict.fromkeys(one["method"] for one in runs):
        cells = []
        for name, epsilon in columns:
            own = [
                one["distance"]
                for one in runs
                if (one["data"], one["method"]) == (name, method) and one["epsilon"] in (None, epsilon)
            ]
            cells.append(f"{own[0]:.2f}" if own else "")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--fashion-dir", type=Path)
    parser.add_argument("--data", nargs="+", choices=tuple(PUBLIC), default=("mnist", "fashion"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    records.options(parser, RESULTS, seeds=(0,))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "run":
        if arguments.data_dir is None or ("fashion" in arguments.data and arguments.fashion_dir is None):
            parser.error("--data-dir is needed, and --fashion-dir for fashion")
        records.Rows(RESULTS, arguments.results).run(jobs(arguments))
        return
    print(table(records.read(arguments.results or RESULTS)))


if __name__ == "__main__":
    main()
