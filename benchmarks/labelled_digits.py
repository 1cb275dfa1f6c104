"""MNIST as one labelled hospital of 60,000: a linear head on fixed features from one release.

    python -m benchmarks.labelled_digits run --data-dir ../shared/data     # anew, beside what is on file: three seeds
    python -m benchmarks.labelled_digits choose --data-dir ../shared/data  # how the features were chosen, on USPS
    python -m benchmarks.labelled_digits summary

needs mnist.npz and usps16.npz in the folder. The features: a scattering of two layers (Bruna and Mallat 2013; here with
the sum of the absolute real and imaginary part for the modulus, so that every operation is in the extractors'
vocabulary), scaled and turned to the largest principal axes of public images, those of USPS (framed, without labels).
Scatterings are computed once and kept in --cache.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import records
from benchmarks.labelled import REPLACE, Site, SizeFacts, declaration_of, released
from dpswd.public_client.generation.wavelets import TURNS, fixed, gaussian, modulus, morlet, real_and_imaginary
from dpswd.public_client.methods.statistics import Statistics
from dpswd.public_client.methods.statistics_head import Head, Prior, discriminant

RESULTS = Path(__file__).parent / "results" / "labelled-digits.json"
CACHE = Path.home() / ".cache" / "dpswd-benchmarks"
DELTA = 1e-5
EPSILONS: tuple[float | None, ...] = (1.0, 0.2, None)
SEEDS = (0, 1, 2)
AXES, WHITENING = 300, 0.15
"""d, and the power of a principal axis's variance by which it is divided; chosen on USPS (`choose`)."""
_CHOICES = ((100, 200, 300, 400), (0.0, 0.15, 0.25, 0.35, 0.5))
_AT_A_TIME = 250  # images; bounds memory
Images = npt.NDArray[np.uint8]


class Scattering(nn.Module):
    """(b, 1, 28, 28) in [0, 1] to 81 channels of 7 x 7: blurred, after one, and after two layers of wavelets."""

    def __init__(self) -> None:
        super().__init__()
        fine = [
            np.pad(morlet(reach=3, width=0.8, turn=turn, frequency=0.75 * math.pi), 2)  # in 11 x 11, as the coarse ones
            for turn in range(TURNS)
        ]
        coarse = [morlet(reach=5, width=1.6, turn=turn, frequency=0.375 * math.pi) for turn in range(TURNS)]
        channels = 2 * TURNS
        self.first = fixed(real_and_imaginary(fine + coarse), padding=5)
        self.fine = fixed(torch.eye(channels)[:TURNS, :, None, None])
        self.second = fixed(real_and_imaginary(coarse).repeat(TURNS, 1, 1, 1), padding=5, groups=TURNS)
        every = 1 + channels + TURNS * TURNS
        self.blur = fixed(gaussian(2.08, 4).expand(every, 1, -1, -1), padding=4, stride=4, groups=every)
        self.flat = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        """(b, 1, 28, 28) to (b, 3969)."""
        one = modulus(self.first(x))
        two = modulus(self.second(self.fine(one)), groups=TURNS)
        flat: Tensor = self.flat(self.blur(torch.cat([x, one, two], dim=1)))
        return flat


def scattered(images: Images, path: Path) -> npt.NDArray[np.float16]:
    """(n, 3969), from the cache where they were computed before; `images` (n, 28, 28)."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        model, parts = Scattering(), []
        with torch.no_grad():
            for start in range(0, len(images), _AT_A_TIME):
                chunk = torch.from_numpy(images[start : start + _AT_A_TIME]).float() / 255.0
                parts.append(model(chunk[:, None]).half().numpy())
        fresh = path.with_suffix(".new.npy")
        np.save(fresh, np.concatenate(parts))
        fresh.replace(path)
    features: npt.NDArray[np.float16] = np.load(path)
    return features


def framed(images: Images) -> Images:
    """USPS (n, 16, 16) as 28 x 28 images with MNIST's margin."""
    grown = functional.interpolate(
        torch.from_numpy(images).float()[:, None], size=(20, 20), mode="bilinear", antialias=True
    )
    return functional.pad(grown, (4, 4, 4, 4))[:, 0].round().clamp(0, 255).byte().numpy()


def axes(public: npt.NDArray[np.float16], count: int = max(_CHOICES[0])) -> tuple[Tensor, Tensor, Tensor]:
    """What public scatterings (m, 3969) say: their centre, the largest axes (3969, kept), and the axes' variances.

    Channels are brought to one deviation first, each over all its places.
    """
    values = torch.from_numpy(public.astype(np.float32))
    centre = values.mean(dim=0)
    deviation = (values - centre).reshape(len(values), -1, 49).pow(2).mean(dim=(0, 2)).sqrt()
    gain = (1.0 / deviation).repeat_interleave(49)
    scaled = (values - centre) * gain
    variances, vectors = torch.linalg.eigh(scaled.T @ scaled / len(scaled))
    return centre, vectors[:, -count:].flip(1) * gain[:, None], variances[-count:].flip(0)


def extractor(
    centre: Tensor, vectors: Tensor, variances: Tensor, *, public: npt.NDArray[np.float16], count: int, power: float
) -> nn.Linear:
    """Scatterings to features, so large that nearly all are clipped: what remains is their direction."""
    weight = (vectors[:, :count] * variances[:count] ** -power).T
    made = nn.Linear(weight.shape[1], count)
    with torch.no_grad():
        made.weight.copy_(weight)
        made.bias.copy_(-weight @ centre)
        norms = made(torch.from_numpy(public[:2000].astype(np.float32))).norm(dim=1)
        made.weight.mul_(0.5 / norms.quantile(0.01))
        made.bias.mul_(0.5 / norms.quantile(0.01))
    return made.requires_grad_(False).eval()


def features(model: nn.Module, scatterings: npt.NDArray[np.float16]) -> npt.NDArray[np.float64]:
    """(n, d), brought to norm 1 as the mechanism does it."""
    parts = [model(torch.from_numpy(part.astype(np.float32))) for part in np.array_split(scatterings, 50)]
    u = torch.cat(parts).double() / 0.5
    return np.asarray((u / u.norm(dim=1, keepdim=True).clamp(min=1.0)).numpy())


def accuracy(head: Head, u: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """In percent."""
    return 100.0 * float(((u @ head.weight.T + head.bias).argmax(axis=1) == labels).mean())


def jobs(
    data: dict[str, tuple[npt.NDArray[np.float16], npt.NDArray[np.int64]]], seeds: Sequence[int]
) -> Iterator[records.Job]:
    """All runs."""
    public, public_labels = data["usps train"]
    model = extractor(*axes(public), public=public, count=AXES, power=WHITENING)
    tests, labels = features(model, data["mnist test"][0]), data["mnist test"][1]
    prior = Prior.from_source(features(model, public), public_labels, classes=10)
    assert prior.means is not None
    assert prior.covariance is not None
    solved = np.linalg.solve(
        prior.covariance + 0.05 * np.trace(prior.covariance) / AXES * np.eye(AXES), prior.means.T
    ).T
    alone = accuracy(Head(solved, -0.5 * (solved * prior.means).sum(axis=1)), tests, labels)

    def measured(epsilon: float | None, moments: Literal["auto", "no"], seed: int) -> records.Row:
        sums, price = released(
            Site(*data["mnist train"]), model, classes=10, epsilon=epsilon, delta=DELTA, seed=seed,
            method=Statistics(prior="none", moments=moments),
        )  # fmt: skip
        reached = accuracy(discriminant(sums), tests, labels)
        figures = {"accuracy": reached, "priced": None if epsilon is None else price, "usps_alone": alone}
        return figures | {"delta": DELTA, "axes": AXES, "whitening": WHITENING}

    for epsilon, moments in itertools.product(EPSILONS, ("auto", "no")):
        for seed in seeds if epsilon is not None else seeds[:1]:
            settings = {"epsilon": epsilon, "moments": moments, "seed": seed}
            yield settings, functools.partial(measured, **settings)


def choose(data: dict[str, tuple[npt.NDArray[np.float16], npt.NDArray[np.int64]]]) -> None:
    """Accuracy on USPS's own test images for every choice, with MNIST's ratio of noise to records."""
    public, labels = data["usps train"]
    parts = axes(public)
    ratio = len(labels) / 60_000
    for power in _CHOICES[1]:
        for count in _CHOICES[0]:
            model = extractor(*parts, public=public, count=count, power=power)
            tests = features(model, data["usps test"][0])
            means = []
            for epsilon in (1.0, 0.2):
                # That epsilon of USPS at which the noise is to its records as it is to MNIST's.
                own = _epsilon_for(_sigma(epsilon, count, records=60_000) * ratio, count, records=len(labels))
                reached = []
                for seed in range(5):
                    sums, _ = released(
                        Site(public, labels),
                        model,
                        classes=10,
                        epsilon=own,
                        delta=DELTA,
                        seed=seed,
                        method=Statistics(prior="none"),
                    )
                    reached.append(accuracy(discriminant(sums), tests, data["usps test"][1]))
                means.append(records.mean_and_deviation(reached, 2))
            print(f"{count} axes, power {power:g}: {means[0]} as at epsilon 1, {means[1]} as at 0.2", flush=True)


def _sigma(epsilon: float, count: int, *, records: int) -> float:
    """Sigma of a release at this epsilon."""
    facts = SizeFacts(records, count, 10)
    method = Statistics(prior="none")
    return declaration_of(method, relation=REPLACE, epsilon=epsilon, delta=DELTA, facts=facts).sigma


def _epsilon_for(sigma: float, count: int, *, records: int) -> float:
    """The epsilon that needs this noise, by bisection."""
    low, high = 0.05, 50.0
    for _ in range(12):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _sigma(middle, count, records=records) > sigma else (low, middle)
    return high


def table(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    lines = ["| epsilon | released | accuracy |", "|---|---|---|"]
    for epsilon in EPSILONS:
        for moments, parts in (("auto", "counts, class sums, second moments"), ("no", "counts, class sums")):
            values = [run["accuracy"] for run in runs if (run["epsilon"], run["moments"]) == (epsilon, moments)]
            if values:
                label = "none: hardly any noise" if epsilon is None else f"{epsilon:g}"
                lines.append(f"| {label} | {parts} | {records.mean_and_deviation(values, 2)} |")
    if runs:
        lines.append(f"|  | nothing: the same discriminant of USPS's labels | {runs[0]['usps_alone']:.2f} |")
    return "\n".join(lines)


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
        data = {}
        for name, file in (("mnist", "mnist.npz"), ("usps", "usps16.npz")):
            with np.load(arguments.data_dir / file, allow_pickle=False) as archive:
                for part in ("train", "test"):
                    if arguments.command == "choose" and name == "mnist":
                        continue
                    images = archive[f"x_{part}"] if name == "mnist" else framed(archive[f"x_{part}"])
                    stored = arguments.cache / f"scattering-{name}-{part}.npy"
                    data[f"{name} {part}"] = (scattered(images, stored), archive[f"y_{part}"].astype(np.int64))
        if arguments.command == "choose":
            choose(data)
        else:
            records.Rows(RESULTS, arguments.results).run(jobs(data, arguments.seeds))
        return
    runs = records.read(arguments.results or RESULTS)
    if arguments.format == "text":
        print(table(runs))
        return
    reached = {
        f"epsilon {epsilon:g}": round(
            float(np.mean([run["accuracy"] for run in runs if (run["epsilon"], run["moments"]) == (epsilon, "auto")]))
            / 100.0,
            4,
        )
        for epsilon in EPSILONS
        if epsilon is not None
    }
    print(json.dumps(reached))


if __name__ == "__main__":
    main()
