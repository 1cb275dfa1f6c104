"""The ladder as a team would call it, at a hospital process on this machine: ``python -m benchmarks.ladder run``.

A BatchNorm network of three convolutions, trained for three passes over 20,000 of MNIST's images. The target: all USPS
training images, stretched, or MNIST's test images under a shift. Prints accuracies before and after, epsilon, and what
was asked.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd import adapt
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.testing.local_hospital import LocalHospital

SHIFTS = ("usps", "none", "noise", "half")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path, help="holds mnist.npz and usps16.npz")
    parser.add_argument("--shifts", default="usps", help=f"of {', '.join(SHIFTS)}, comma-separated")
    parser.add_argument("--epsilons", default="1")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--results", type=Path, required=True, help="your own file; its rows are not run again")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    rows = json.loads(arguments.results.read_text()) if arguments.results.exists() else []
    if arguments.what == "run":
        for seed in map(int, arguments.seeds.split(",")):
            for shift in arguments.shifts.split(","):
                for epsilon in map(float, arguments.epsilons.split(",")):
                    if not any((row["shift"], row["epsilon"], row["seed"]) == (shift, epsilon, seed) for row in rows):
                        rows.append(_row(arguments.data_dir, shift, epsilon, seed))
                        arguments.results.write_text(json.dumps(rows, indent=1))
                        print(rows[-1])
    print(json.dumps(_means(rows), indent=1) if arguments.format == "json" else _text(rows))


def _row(folder: Path, shift: str, epsilon: float, seed: int) -> dict[str, object]:
    source, target = _data(folder, shift, seed)
    network = _trained(source, seed)
    with (
        LocalHospital(target.images.numpy(), epsilon=epsilon, delta=1e-5, device="cpu") as here,
        here.connect() as hospital,
    ):
        begun = time.monotonic()
        found = adapt(network, (source.images, source.labels), hospital, epsilon=epsilon, seed=seed, progress=False)
        seconds, spent = time.monotonic() - begun, hospital.describe().spent
    return {
        "shift": shift, "epsilon": epsilon, "seed": seed, "spent": spent, "seconds": seconds,
        "source": accuracy(network, nn.Identity(), target),
        "delivered": accuracy(found.model.extractor, found.model.classifier, target),
        "asked": [f"{answer.rung}: {answer.outcome}" for answer in found.answers],
    }  # fmt: skip


def _data(folder: Path, shift: str, seed: int) -> tuple[Labelled, Labelled]:
    mnist = np.load(folder / "mnist.npz")

    def images(name: str) -> Tensor:
        return torch.from_numpy(mnist[name]).float()[:, None] / 127.5 - 1.0

    source = Labelled(images("x_train")[:20_000], torch.from_numpy(mnist["y_train"][:20_000]).long())
    own, labels = images("x_test"), torch.from_numpy(mnist["y_test"]).long()
    if shift == "usps":
        usps = np.load(folder / "usps16.npz")
        small = torch.from_numpy(usps["x_train"]).float()[:, None] / 127.5 - 1.0
        own = functional.interpolate(small, size=(28, 28), mode="bilinear")
        labels = torch.from_numpy(usps["y_train"]).long()
    elif shift == "noise":
        noise = torch.randn(own.shape, generator=torch.Generator().manual_seed(seed))
        own = (own + 0.6 * noise).clamp(-1.0, 1.0)
    elif shift == "half":
        own, labels = own[labels < 5], labels[labels < 5]
    return source, Labelled(own, labels)


def _trained(source: Labelled, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    blocks: list[nn.Module] = []
    for before, after, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 2)):
        blocks += [nn.Conv2d(before, after, 3, stride=stride, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)]
    network = nn.Sequential(*blocks, *head)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(3):
        for part in torch.randperm(len(source)).split(128):
            loss = functional.cross_entropy(network(source.images[part]), source.labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


def _means(rows: list[dict[str, object]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for shift, epsilon in dict.fromkeys((row["shift"], row["epsilon"]) for row in rows):
        own = [row for row in rows if (row["shift"], row["epsilon"]) == (shift, epsilon)]
        found[f"{shift} {epsilon:g}"] = float(np.mean([row["delivered"] for row in own]))
        found[f"{shift} source"] = float(np.mean([row["source"] for row in own]))
    return found


def _text(rows: list[dict[str, object]]) -> str:
    return "\n".join(f"{name:<12} {value:.1f}" for name, value in _means(rows).items())


if __name__ == "__main__":
    main()
