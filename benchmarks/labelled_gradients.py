"""MNIST as one labelled hospital of 60,000: a linear head on fixed features, by labelled gradients (`Finetune`).

    python -m benchmarks.labelled_gradients run --data-dir ../shared/data      # what is not on file yet
    python -m benchmarks.labelled_gradients choose --data-dir ../shared/data   # how the rate was chosen, on USPS
    python -m benchmarks.labelled_gradients summary

needs mnist.npz and usps16.npz in the folder. The features are those of `benchmarks.labelled_digits`: a scattering,
turned to the 300 largest principal axes of USPS images, in the raw scale. They are what the hospital holds here: a
fixed public transform that its operator applied. The team's source is USPS with labels; the head that it trains there
is what the run begins with. Every step passes through the mock curator: admission, price, sample and noise are the
product's.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import records
from benchmarks.labelled import HeldRecords, Site
from benchmarks.labelled_digits import CACHE, DELTA, axes, framed, scattered
from public_client.adaptation.domain_adaptation import DomainAdaptation
from public_client.adaptation.hospital import Hospital
from public_client.methods.finetune import Finetune
from public_client.methods.public_view import viewed_head
from shared.mechanisms.labelled_gradient.mechanism import entropy_cotangents
from shared.privacy.calibration import calibrate_sigma
from shared.privacy.events import RunEvent, SanitizedGradient, StepEvent

RESULTS = Path(__file__).parent / "results" / "labelled-gradients.json"
EPSILONS, SEEDS, AXES = (1.0, 0.2), (0, 1, 2), 300
_RATES = (0.03, 0.06, 0.12, 0.25, 0.5)
_STEPS = 60  # of `choose`, each on all records
Part = tuple[Tensor, Tensor]
"""Features (n, d) and labels (n,)."""


def run(data: dict[str, Part]) -> None:
    """Adds the runs that are not on file."""
    (source, source_labels), (own, own_labels) = data["usps train"], data["mnist train"]
    loader = DataLoader(TensorDataset(source, source_labels), batch_size=128, shuffle=True)
    for seed in SEEDS:
        for epsilon in EPSILONS:
            settings = {"epsilon": epsilon, "seed": seed}
            if records.on_file(settings, records.read(RESULTS)):
                continue
            site = Site(own.numpy(), own_labels.numpy())
            hospital = Hospital(HeldRecords(site, classes=10, delta=DELTA, seed=seed))
            torch.manual_seed(seed)
            plan = hospital.plan(Finetune(), epsilon=epsilon)
            model = DomainAdaptation(
                nn.Identity(), nn.Linear(AXES, 10), hospital=hospital, plan=plan, seed=seed, device="cpu"
            )
            model.fit(loader, progress=False)
            tests = data["mnist test"]
            before = 100.0 * float((model.classifier(tests[0]).argmax(dim=1) == tests[1]).double().mean())
            told = {"accuracy": 100.0 * model.score(*tests), "before": before, "batch": model.plan.batch_size}
            told |= {"steps": model.plan.steps, "charged": model.reports[0]["charged_epsilon"]}
            records.append(RESULTS, settings | {"delta": DELTA} | told)


def choose(data: dict[str, Part]) -> None:
    """Accuracy on USPS's test images of a head that starts from nothing, at MNIST's ratio of noise to records.

    Plain arithmetic: the mechanism's sum and noise, Adam with the method's schedule.
    """
    u, y = data["usps train"]
    view = viewed_head(nn.Linear(AXES, 10), u).view
    with torch.no_grad():
        seen, tests = view(u), view(data["usps test"][0])
    for epsilon in (0.2, 1.0, 5.0):
        reached = []
        for rate in _RATES:
            head = _trained(seen, y, noise=_noise(epsilon) * len(y) / 60_000, rate=rate)
            right = head(tests).argmax(dim=1) == data["usps test"][1]
            reached.append(f"{100.0 * float(right.double().mean()):.2f} at rate {rate:g}")
        print(f"as at epsilon {epsilon:g}: {', '.join(reached)}", flush=True)


def _noise(epsilon: float) -> float:
    """Deviation in units of the sensitivity, of full steps on 60,000 records."""

    def event(noise: float) -> RunEvent:
        return RunEvent(StepEvent(60_000, 60_000, (SanitizedGradient(10 * AXES + 10, 1.0, 2.0 * noise),)), _STEPS)

    return calibrate_sigma(event, epsilon=epsilon, delta=DELTA)


def _trained(u: Tensor, y: Tensor, *, noise: float, rate: float) -> nn.Linear:
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(u.shape[1], 10)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.Adam(head.parameters(), lr=rate)
    clip_norm = 0.35
    wide = torch.cat([u, torch.ones(len(u), 1)], dim=1)
    for step in range(_STEPS):
        with torch.no_grad():
            cotangents = entropy_cotangents(head(u), y)
            norms = cotangents.norm(dim=1) * wide.norm(dim=1)
            clipped = cotangents * (clip_norm / norms.clamp(min=1e-12)).clamp(max=1.0)[:, None]
            total = clipped.T @ wide
            noised = (total + 2.0 * clip_norm * noise * torch.randn(total.shape, generator=generator)) / len(u)
        head.weight.grad, head.bias.grad = noised[:, :-1].clone(), noised[:, -1].clone()
        optimizer.param_groups[0]["lr"] = rate * 0.5 * (1.0 + math.cos(math.pi * step / _STEPS))
        optimizer.step()
    return head


def table(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    lines = ["| epsilon | USPS's head alone | after gradients | seeds |", "|---|---|---|---|"]
    for epsilon in EPSILONS:
        found = [one for one in runs if one["epsilon"] == epsilon]
        if found:
            before, after = (records.mean_and_deviation([o[key] for o in found], 2) for key in ("before", "accuracy"))
            lines.append(f"| {epsilon:g} | {before} | {after} | {len(found)} |")
    return "\n".join(lines)


def _features(name: str, images: npt.NDArray[np.uint8], part: str, cache: Path) -> npt.NDArray[np.float16]:
    return scattered(images if name == "mnist" else framed(images), cache / f"scattering-{name}-{part}.npy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "choose", "summary"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cache", type=Path, default=CACHE, help="where scatterings are kept")
    parser.add_argument("--format", choices=("json", "text"), default="text")
    arguments = parser.parse_args()
    if arguments.command != "summary":
        if arguments.data_dir is None:
            parser.error("--data-dir is needed")
        torch.set_num_threads(1)
        data: dict[str, Part] = {}
        for name, file in (("usps", "usps16.npz"), ("mnist", "mnist.npz")):
            with np.load(arguments.data_dir / file, allow_pickle=False) as archive:
                for part in ("train", "test"):
                    if arguments.command == "choose" and name == "mnist":
                        continue
                    found = _features(name, archive[f"x_{part}"], part, arguments.cache)
                    if (name, part) == ("usps", "train"):
                        centre, vectors, _ = axes(found)
                    turned = [
                        (torch.from_numpy(chunk.astype(np.float32)) - centre) @ vectors[:, :AXES]
                        for chunk in np.array_split(found, 50)
                    ]
                    data[f"{name} {part}"] = (
                        torch.cat(turned),
                        torch.from_numpy(archive[f"y_{part}"].astype(np.int64)),
                    )
        if arguments.command == "choose":
            choose(data)
            return
        run(data)
    runs = records.read(RESULTS)
    if arguments.format == "text":
        print(table(runs))
        return
    of = {e: [one["accuracy"] for one in runs if one["epsilon"] == e] for e in EPSILONS}
    print(json.dumps({f"epsilon {e:g}": round(float(np.mean(v)) / 100.0, 4) for e, v in of.items() if v}))


if __name__ == "__main__":
    main()
