"""MNIST as one labelled hospital of 60,000: a linear head on fixed features, by labelled gradients (`Finetune`).

    python -m benchmarks.labelled_gradients run --data-dir ../shared/data      # anew, beside what is on file
    python -m benchmarks.labelled_gradients choose --data-dir ../shared/data   # how its settings were chosen
    python -m benchmarks.labelled_gradients summary

needs mnist.npz and usps16.npz in the folder. The features are those of `benchmarks.labelled_digits`: a scattering,
turned to the largest principal axes of USPS images, in the raw scale. They are what the hospital holds here: a fixed
public transform that its operator applied. The team's source is USPS with labels, as it is or varied: each image six
times, with the random warps and strokes of a replay's images. The head that it trains there is what the run begins
with. Every step passes through the mock curator: admission, price, sample and noise are the product's. `choose` looks
at MNIST's training images alone.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import records
from benchmarks.labelled import ADD, REPLACE, HeldRecords, Site
from benchmarks.labelled_digits import CACHE, DELTA, Images, axes, framed, scattered
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.published_methods.finetune import Finetune
from dpswd.public_client.published_methods.newton import Newton, less_sure, viewed
from dpswd.public_client.replay.augmentation import draw_variation
from dpswd.public_client.replay.views import ImageView
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.privacy.events import RunEvent, SanitizedGradient, StepEvent
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import entropy_cotangents

RESULTS = Path(__file__).parent / "results" / "labelled-gradients.json"
EPSILONS, SEEDS, AXES = (1.0, 0.2), (0, 1, 2), 400
_SHOWN = 4096  # records of the source, as many as a method looks at
_CHOICES = (
    (True, 400, 0.5, 0.1, 20),  # what the method does
    (False, 400, 0.5, 0.1, 20), (True, 300, 0.5, 0.1, 20), (True, 400, 0.3, 0.1, 20), (True, 400, 0.9, 0.1, 20),
    (True, 400, 0.5, 0.05, 20), (True, 400, 0.5, 0.2, 20), (True, 400, 0.5, 0.4, 20), (True, 400, 0.5, 0.1, 10),
    (True, 400, 0.5, 0.1, 40),
)  # fmt: skip
"""Whether the source's images are varied, d, the power of the axes, the clip and the steps of `choose`."""
_PARTS = ("train", "test")
_WHERE = {
    "source": ("usps", "train"), "varied": ("usps", "train"),
    "own": ("mnist", "train"), "tests": ("mnist", "test"),
}  # fmt: skip
_COPIES = 6  # of a varied source's image
Part = tuple[Tensor, Tensor]
"""Features (n, d) and labels (n,)."""


@dataclass(frozen=True)
class Way:
    """A line of the table.

    Attributes:
        varied: whether the source's images are.
        axes: d.
        relation: of the data sets that epsilon compares.
    """

    varied: bool
    axes: int
    relation: str = REPLACE


BEST = Way(True, AXES)
WAYS = (BEST, replace(BEST, varied=False), replace(BEST, relation=ADD))
"""The first is what the docs promise; later lines only say what made it so, and may have fewer seeds on file."""


class Digits:
    """Scatterings of both sets in the public axes.

    Args:
        folder: of the data.
        cache: where scatterings are kept.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        self._cache = cache
        with np.load(folder / "usps16.npz", allow_pickle=False) as archive:
            self.usps = {part: (framed(archive[f"x_{part}"]), _labels(archive[f"y_{part}"])) for part in _PARTS}
        with np.load(folder / "mnist.npz", allow_pickle=False) as archive:
            self.mnist = {part: (archive[f"x_{part}"], _labels(archive[f"y_{part}"])) for part in _PARTS}

        centre, vectors, _ = axes(self.scattered("usps", "train"), AXES)
        self._turn = functools.partial(_turned, centre=centre, vectors=vectors)
        self._parts: dict[str, Part] = {}

    def scattered(self, name: str, part: str) -> npt.NDArray[np.float16]:
        """(n, 3969) of a part as it is."""
        return scattered(getattr(self, name)[part][0], self._cache / f"scattering-{name}-{part}.npy")

    def part(self, which: str, count: int) -> Part:
        """Features in so many axes, and labels.

        Args:
            which: "source", "varied", "own" (the hospital's) or "tests".
            count: d.
        """
        if which not in self._parts:
            name, part = _WHERE[which]
            labels = getattr(self, name)[part][1]
            if which == "varied":
                labels = labels.repeat(_COPIES)
                made = np.concatenate([_varied(self.usps["train"][0], seed) for seed in range(_COPIES)])
                features = scattered(made, self._cache / f"scattering-usps-varied-{_COPIES}.npy")
            else:
                features = self.scattered(name, part)
            self._parts[which] = self._turn(features), labels
        values, labels = self._parts[which]
        return values[:, :count].contiguous(), labels


def _labels(values: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _turned(scatterings: npt.NDArray[np.float16], centre: Tensor, vectors: Tensor) -> Tensor:
    chunks = np.array_split(scatterings, 50)
    return torch.cat([(torch.from_numpy(chunk.astype(np.float32)) - centre) @ vectors for chunk in chunks])


def _varied(images: Images, seed: int) -> Images:
    """(m, 28, 28), each as another device and hand might have it."""
    view, generator = ImageView(1, background=-1.0), torch.Generator().manual_seed(seed)
    made = []
    with torch.no_grad():
        for chunk in torch.from_numpy(images).float()[:, None].div(127.5).sub(1.0).split(250):
            seen = view.see(chunk, draw_variation(view.variation, chunk, generator)).clamp(-1.0, 1.0)
            made.append((127.5 * (seen[:, 0] + 1.0)).round().byte().numpy())
    return np.concatenate(made)


def jobs(digits: Digits, seeds: Sequence[int]) -> Iterator[records.Job]:
    """All runs."""
    for way, epsilon, seed in itertools.product(WAYS, EPSILONS, seeds):
        settings = {"epsilon": epsilon, "seed": seed, "delta": DELTA} | vars(way)
        yield settings, functools.partial(_reached, digits, way, epsilon=epsilon, seed=seed)


def _reached(digits: Digits, way: Way, *, epsilon: float, seed: int) -> dict[str, Any]:
    source = digits.part("varied" if way.varied else "source", way.axes)
    (own, own_labels), tests = digits.part("own", way.axes), digits.part("tests", way.axes)
    method = Finetune()
    hospital = Hospital(HeldRecords(Site(own.numpy(), own_labels.numpy()), classes=10, delta=DELTA, seed=seed))
    torch.manual_seed(seed)
    plan = hospital.plan(method, epsilon=epsilon)
    if way.relation == ADD:
        plan = hospital.plan(method, epsilon=_replaced(epsilon, plan.steps))
    model = DomainAdaptation(
        nn.Identity(), nn.Linear(way.axes, 10), hospital=hospital, plan=plan, seed=seed, device="cpu"
    )
    model.fit(DataLoader(TensorDataset(*source), batch_size=128, shuffle=True), progress=False)
    figures = {"accuracy": 100.0 * model.score(*tests), "before": _accuracy(model.classifier, tests)}
    figures |= {"batch": model.plan.batch_size, "steps": model.plan.steps}
    return figures | {"charged": model.reports[0]["charged_epsilon"]}


def _replaced(epsilon: float, steps: int) -> float:
    """The epsilon under replace-one of full steps whose epsilon under add-or-remove is given: half of their noise."""
    noise = 0.5 * _noise(epsilon, steps)
    return epsilon_of(_full(noise, steps), DELTA)


def choose(digits: Digits) -> None:
    """Accuracy of Newton's steps on 10,000 of MNIST's training images, by the other 50,000 at MNIST's ratio of noise.

    Plain arithmetic: the mechanism's sum and noise, and the method's own descent.
    """
    own, labels = digits.part("own", AXES)
    for varied, count, power, clip, steps in _CHOICES:
        source, source_labels = digits.part("varied" if varied else "source", count)
        torch.manual_seed(0)
        drawn = torch.randperm(len(source))[:_SHOWN]
        start = less_sure(_fitted(source, source_labels), source[drawn])
        whole = viewed((), start, source[drawn], power=power)
        head = whole.head
        with torch.no_grad():
            seen = whole.view(own[:, :count])
            optimizer = Newton(head, whole.view(source[drawn]), noise=_noise(1.0, steps) * 2.0 * clip / len(labels))
        train, tests = (seen[:50_000], labels[:50_000]), (seen[50_000:], labels[50_000:])
        before = _accuracy(head, tests)
        generator = torch.Generator().manual_seed(0)
        for _ in range(steps):
            total = clipped_sum(head, *train, clip_norm=clip)
            grain = _noise(1.0, steps) * 2.0 * clip * 50_000 / len(labels)
            set_gradient(head, (total + grain * torch.randn(total.shape, generator=generator)) / 50_000)
            optimizer.step()
        images = "varied" if varied else "as they are"
        choice = f"{count} axes, power {power:g}, clip {clip:g}, {steps} steps"
        print(f"source's images {images}, {choice}: {before:.2f} to {_accuracy(head, tests):.2f}", flush=True)


def _fitted(x: Tensor, y: Tensor) -> nn.Linear:
    """Logistic regression of the source, in units of its features' mean norm."""
    scale = float(x.norm(dim=1).mean())
    head = nn.Linear(x.shape[1], 10)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        functional.cross_entropy(head(x / scale), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        head.weight.div_(scale)
    return head


def _accuracy(head: nn.Module, tests: Part) -> float:
    return 100.0 * float((head(tests[0]).argmax(dim=1) == tests[1]).double().mean())


def _full(noise: float, steps: int) -> RunEvent:
    """Full steps on 60,000 records with this deviation in units of the sensitivity."""
    return RunEvent(StepEvent(60_000, 60_000, (SanitizedGradient(10 * AXES + 10, 1.0, 2.0 * noise),)), steps)


@functools.cache
def _noise(epsilon: float, steps: int) -> float:
    """Deviation in units of the sensitivity, of full steps on 60,000 records."""
    return calibrate_sigma(lambda noise: _full(noise, steps), epsilon=epsilon, delta=DELTA)


def clipped_sum(head: nn.Linear, u: Tensor, y: Tensor, *, clip_norm: float) -> Tensor:
    """(C, d + 1) the sum of clipped gradients."""
    wide = torch.cat([u, torch.ones(len(u), 1)], dim=1)
    with torch.no_grad():
        cotangents = entropy_cotangents(head(u), y)
        norms = cotangents.norm(dim=1) * wide.norm(dim=1)
        clipped = cotangents * (clip_norm / norms.clamp(min=1e-12)).clamp(max=1.0)[:, None]
        return clipped.T @ wide


def set_gradient(head: nn.Linear, gradient: Tensor) -> None:
    """Gives a head (C, d + 1) as its gradient."""
    head.weight.grad, head.bias.grad = gradient[:, :-1].clone(), gradient[:, -1].clone()


def table(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    lines = [
        "| source's images | axes | relation | epsilon | USPS's head alone | after gradients |",
        "|---|---|---|---|---|---|",
    ]
    for way in WAYS:
        for epsilon in EPSILONS:
            own = _of(runs, way, epsilon)
            if own:
                figures = (records.mean_and_deviation([one[key] for one in own], 2) for key in ("before", "accuracy"))
                images = "varied" if way.varied else "as they are"
                cells = (images, str(way.axes), way.relation, f"{epsilon:g}", *figures)
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of(runs: list[dict[str, Any]], way: Way, epsilon: float) -> list[dict[str, Any]]:
    return [one for one in runs if records.on_file(vars(way) | {"epsilon": epsilon}, [one])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "choose", "summary"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cache", type=Path, default=CACHE, help="where scatterings are kept")
    parser.add_argument("--format", choices=("json", "text"), default="text")
    records.options(parser, RESULTS, seeds=SEEDS)
    arguments = parser.parse_args()
    if arguments.command != "summary":
        if arguments.data_dir is None:
            parser.error("--data-dir is needed")
        torch.set_num_threads(1)
        digits = Digits(arguments.data_dir, arguments.cache)
        if arguments.command == "run":
            records.Rows(RESULTS, arguments.results).run(jobs(digits, arguments.seeds))
        else:
            choose(digits)
        return
    runs = records.read(arguments.results or RESULTS)
    if arguments.format == "text":
        print(table(runs))
        return
    of = {e: [one["accuracy"] for one in _of(runs, BEST, e)] for e in EPSILONS}
    print(json.dumps({f"epsilon {e:g}": round(float(np.mean(v)) / 100.0, 4) for e, v in of.items() if v}))


if __name__ == "__main__":
    main()
