"""Synthetic records of MNIST, Fashion-MNIST, USPS and digits from one release: what classifiers learn from them.

    python -m benchmarks.generate run --data-dir ../shared/data --fashion-dir /usr/share/datasets/fashion-mnist
    python -m benchmarks.generate summary
    python -m benchmarks.generate run --held-out --set updates=500 ...      # how settings are chosen

needs mnist.npz and usps16.npz in the first folder and the four idx files of Debian's dataset-fashion-mnist in the
second. The training half is the hospital's; a run fits the generator to one release, draws 60,000 records, trains
logistic regression, MLP and CNN on them with the settings below, and looks at the test images once. Which classifiers,
how long, and the method's settings were fixed before on the training halves (docs/studies.md says how): with --held-out
the last 10,000 training images take the test images' place, and the hospital holds the others. Nothing is chosen by
USPS or digits, of which real records train the same classifiers too.
Runs of --results are not repeated; --only "fashion 1" makes one setting's alone. Processes side by side need a file of
results each (--results).
"""

from __future__ import annotations

import argparse
import functools
import gzip
import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks import records
from benchmarks.labelled import HeldRecords, Site
from dpswd.public_client.cli.options import key_values
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.pictures import write_sheet
from dpswd.public_client.generation.pixels import Joint
from dpswd.public_client.generation.replayed import Replayed
from dpswd.public_client.generation.scattering import computed
from dpswd.public_client.testing.mock import mock_description
from dpswd.public_client.training.run import Release
from dpswd.shared.devices import resolve_device

RESULTS = Path(__file__).parent / "results" / "generate.json"
HELD_OUT_RESULTS = RESULTS.with_name("generate-held-out.json")
HELD_OUT = 10_000
CACHE = Path.home() / ".cache" / "dpswd-benchmarks"
DELTA, ROWS, SHAPE = 1e-5, 60_000, (1, 28, 28)
AGREEING = 2_000
"""Rows of which it is seen whether the discriminant gives them the class that was asked for."""
NAMES, EPSILONS, SEEDS = ("mnist", "fashion", "usps", "digits"), (1.0, 0.2, 10.0), (0, 1, 2)
SMALL = NAMES[2:]
"""By which nothing is chosen; brought to 28 x 28."""
DIGITS = 500
"""Of scikit-learn's, that are looked at once."""
IMAGES = 10_000
"""Whose distance to real ones is taken."""
EPOCHS, BATCH, PEAK = 10, 100, 3e-3
"""Of each classifier: Adam under a one-cycle schedule, cross-entropy with the rows' probabilities."""


class Cached(Replayed):
    """The method whose records are their features already: a release of 60,000 images then takes seconds."""

    def features(self, description: Any) -> nn.Module:  # noqa: ARG002 - the method's signature
        return nn.Flatten().eval()

    def fit(self, run: Release, features: nn.Module, fitting: Fitting) -> Generator:  # noqa: ARG002 - the same
        return self.fitted(self.read(run, fitting), whole(self, run.plan.records), SHAPE, fitting)


def whole(method: Replayed, records: int) -> Joint:
    """The features of so many 28 x 28 images."""
    description = mock_description(records=records, record_shape=SHAPE, epsilon=1.0, delta=DELTA, classes=10)
    features = Replayed.features(method, description)
    assert isinstance(features, Joint)
    return features


def classifiers() -> dict[str, nn.Module]:
    """New ones; images are (b, 1, 28, 28) in [0, 1]."""
    return {
        "logistic regression": nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
        "MLP": nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
        "CNN": nn.Sequential(
            nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10),
        ),
    }  # fmt: skip


def trained(model: nn.Module, x: Tensor, p: Tensor, device: torch.device) -> nn.Module:
    """On records (n, ...) and probabilities of their classes (n, C); back on the CPU afterwards."""
    model, x, p = model.to(device), x.to(device), p.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps = EPOCHS * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=PEAK, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            loss = -(p[rows] * torch.log_softmax(model(x[rows]), dim=1)).sum(dim=1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval().cpu()


def accuracy(scores: Callable[[Tensor], Tensor], x: Tensor, labels: npt.NDArray[np.int64]) -> float:
    """In percent."""
    with torch.no_grad():
        classes = torch.cat([scores(part).argmax(dim=1).cpu() for part in x.split(1000)]).numpy()
    return 100.0 * float((classes == labels).mean())


def data(name: str, arguments: argparse.Namespace) -> dict[str, tuple[Tensor, npt.NDArray[np.int64]]]:
    """Training and test images (n, 1, 28, 28) in [0, 1], and labels."""
    if name in SMALL:
        held = _digits() if name == "digits" else _usps(arguments.data_dir / "usps16.npz")
    elif name == "mnist":
        with np.load(arguments.data_dir / "mnist.npz", allow_pickle=False) as archive:
            held = {part: (archive[f"x_{part}"], archive[f"y_{part}"]) for part in ("train", "test")}
    else:
        folder = arguments.fashion_dir
        held = {
            part: (_idx(folder / f"{file}-images-idx3-ubyte.gz"), _idx(folder / f"{file}-labels-idx1-ubyte.gz"))
            for part, file in (("train", "train"), ("test", "t10k"))
        }
    parts = {
        part: (torch.from_numpy(x.astype(np.float32) / 255.0)[:, None], y.astype(np.int64))
        for part, (x, y) in held.items()
    }
    if arguments.held_out:
        x, y = parts["train"]
        parts = {"train": (x[:-HELD_OUT], y[:-HELD_OUT]), "test": (x[-HELD_OUT:], y[-HELD_OUT:])}
    return parts


Images = dict[str, tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]


def _digits() -> Images:
    """Scikit-learn's, from 8 x 8: 1,297 of the hospital, and 500 others."""
    from sklearn.datasets import load_digits

    whole_set = load_digits()
    rows = np.random.default_rng(0).permutation(len(whole_set.target))
    images, labels = _grown(whole_set.images[rows] / 16.0), whole_set.target[rows]
    return {"train": (images[:-DIGITS], labels[:-DIGITS]), "test": (images[-DIGITS:], labels[-DIGITS:])}


def _usps(path: Path) -> Images:
    """From 16 x 16: 7,291 of the hospital, and 2,007 others."""
    with np.load(path, allow_pickle=False) as archive:
        return {part: (_grown(archive[f"x_{part}"] / 255.0), archive[f"y_{part}"]) for part in ("train", "test")}


def _grown(images: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """(n, h, w) in [0, 1] to (n, 28, 28), from 0 to 255."""
    x = stretched(torch.from_numpy(images)[:, None])[:, 0].clamp(0.0, 1.0)
    return (x * 255.0).round().numpy().astype(np.uint8)


def stretched(images: Tensor) -> Tensor:
    """(n, c, h, w) to (n, c, 28, 28)."""
    return nn.functional.interpolate(images, size=SHAPE[1:], mode="bilinear", align_corners=False)


def _idx(path: Path) -> npt.NDArray[np.uint8]:
    with gzip.open(path) as file:
        raw = file.read()
    sides = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sides)


def projected(method: Replayed, images: Tensor, path: Path, device: torch.device) -> npt.NDArray[np.float32]:
    """Features (n, d) of norm 1/2; kept in the cache."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}.npy")
        joint = whole(method, len(images)).to(device)
        np.save(fresh, torch.cat([computed(joint, part.to(device)).cpu() for part in images.split(10_000)]).numpy())
        fresh.replace(path)
    values: npt.NDArray[np.float32] = np.load(path)
    return values


def cache_of(name: str, method: Replayed, images: Tensor, arguments: argparse.Namespace) -> Path:
    """Where the features of a data set's images are kept."""
    sizes = "-".join(f"{size:g}" for size in (method.axes, method.power, method.waves, method.coordinates))
    path: Path = arguments.cache / f"generate-{name}-{len(images)}-{sizes}.npy"
    return path


def run(name: str, epsilon: float, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run: what each classifier reaches."""
    held = data(name, arguments)
    images, labels = held["train"]
    tests, answers = held["test"]
    method, device = chosen(arguments), resolve_device(arguments.device)
    own = projected(method, images, cache_of(name, method, images, arguments), device)
    fields = {key: value for key, value in method.to_json().items() if key != "name"}
    curator = HeldRecords(Site(own[:, None, None, :], labels), classes=10, delta=DELTA, seed=seed)
    plan, _ = plan_generator(curator, Cached(**fields), epsilon=epsilon)
    begun = time.monotonic()
    generator = generate(curator, plan, seed=seed, device=arguments.device, progress=False)
    fit_seconds = time.monotonic() - begun
    begun = time.monotonic()
    x, y, p = generator.draw(ROWS, seed)
    draw_seconds = time.monotonic() - begun
    if arguments.sheets is not None:
        write_sheet(generator, arguments.sheets / f"generate-{name}-{epsilon:g}.png", seed=seed)
    assert generator.labeller is not None
    once = replace(generator, tries=1)
    asked = replace(once, labeller=None).sample(AGREEING, seed)[1]
    accuracies: dict[str, Any] = {}
    hard = nn.functional.one_hot(y, p.shape[1]).float()
    teachers = [("", x, p), (", labels", x, hard)]
    if name in SMALL:
        teachers.append((", real", images, nn.functional.one_hot(torch.from_numpy(labels), p.shape[1]).float()))
    for (kind, model), (label, taught, chances) in itertools.product(classifiers().items(), teachers):
        torch.manual_seed(seed)
        for layer in model.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        # A small dense network of small batches is no faster on a GPU.
        where = device if kind == "CNN" else torch.device("cpu")
        accuracies[kind + label] = accuracy(trained(model, taught, chances, where), tests, answers)
    accuracies["the release's discriminant"] = accuracy(generator.labeller.features, tests, answers)
    return {
        "data": name, "epsilon": epsilon, "seed": seed, "delta": DELTA, "rows": ROWS, "method": method.to_json(),
        "priced": curator.charges[0].epsilon, "device": device.type,
        "fit_seconds": round(fit_seconds, 1), "draw_seconds": round(draw_seconds, 1), "accuracy": accuracies,
        "frechet": round(distance(name, x[:IMAGES], tests, arguments), 3),
        "agreeing": 100.0 * float((generator.sample(AGREEING, seed)[1] == asked).double().mean()),
    }  # fmt: skip


FIGURES = {
    "cnn": "CNN", "mlp": "MLP", "logistic": "logistic regression", "frechet": "frechet", "agreeing": "agreeing",
    "cnn labels": "CNN, labels", "mlp labels": "MLP, labels", "logistic labels": "logistic regression, labels",
}  # fmt: skip
"""Of the summary, and where a run holds them."""


def distance(name: str, drawn: Tensor, tests: Tensor, arguments: argparse.Namespace) -> float:
    """The Fréchet distance of `benchmarks.generate_fid` to real images."""
    from benchmarks import generate_fid

    network = generate_fid.public_network(name, arguments)
    return generate_fid.frechet(generate_fid.features(network, drawn), generate_fid.features(network, tests))


def chosen(arguments: argparse.Namespace) -> Replayed:
    """The default of images from 0 to 1, with what --set changes."""
    return Replayed.from_json(
        {"name": Replayed.name, "low": 0.0, "high": 1.0} | key_values("--set", tuple(arguments.set))
    )


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Means of the default over all seeds on file: by data, epsilon and figure."""
    means = {}
    default = Replayed(low=0.0, high=1.0).to_json()
    runs = [one for one in runs if one["method"] == default]
    for name, epsilon in itertools.product(NAMES, EPSILONS):
        for figure, key in FIGURES.items():
            own = [_figure(one, key) for one in runs if (one["data"], one["epsilon"]) == (name, epsilon)]
            if own:
                means[f"{name} {epsilon:g} {figure}"] = round(float(np.mean(own)), 2)
    return means


def _figure(one: dict[str, Any], key: str) -> float:
    value: float = one[key] if key in one else one["accuracy"][key]
    return value


def table(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown: by probabilities, and by labels alone."""
    heads = ("CNN", "MLP", "logistic regression", "the release's discriminant")
    lines = [
        f"| data | epsilon | seeds | {' | '.join(heads)} | Fréchet distance |",
        "|---|---|---|" + "---|" * (len(heads) + 1),
    ]
    for name, epsilon in itertools.product(NAMES, EPSILONS):
        if own := [one for one in runs if (one["data"], one["epsilon"]) == (name, epsilon)]:
            cells = [_cell(own, kind) for kind in (*heads, "frechet")]
            lines.append(f"| {name} | {epsilon:g} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(runs: list[dict[str, Any]], key: str) -> str:
    text = records.mean_and_deviation([_figure(one, key) for one in runs]).removesuffix(" (one seed)")
    hard = f"{key}, labels"
    if hard in runs[0]["accuracy"]:
        text += f" ({np.mean([_figure(one, hard) for one in runs]):.1f})"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--fashion-dir", type=Path)
    parser.add_argument("--held-out", action="store_true", help="score on training images that the hospital lacks")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the method")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    records.options(parser, RESULTS, seeds=SEEDS)
    parser.add_argument("--cache", type=Path, default=CACHE, help="where features are kept")
    parser.add_argument("--sheets", type=Path, help="a folder for a sheet of each run's images")
    parser.add_argument("--only", help='one setting, such as "fashion 0.2"')
    parser.add_argument("--format", choices=("json", "text"), default="text")
    arguments = parser.parse_args()
    stored = HELD_OUT_RESULTS if arguments.held_out else RESULTS
    if arguments.command == "run":
        if arguments.data_dir is None or arguments.fashion_dir is None:
            parser.error("--data-dir and --fashion-dir are needed")
        if arguments.sheets is not None:  # before a fit, whose rows would else be lost
            arguments.sheets.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(1)
        method = chosen(arguments).to_json()
        records.Rows(stored, arguments.results).run(
            (
                {"data": name, "epsilon": epsilon, "seed": seed, "method": method},
                functools.partial(run, name, epsilon, seed, arguments),
            )
            for seed, epsilon, name in itertools.product(
                arguments.seeds, EPSILONS, [name for name in NAMES if not (arguments.held_out and name in SMALL)]
            )
            if arguments.only in (None, f"{name} {epsilon:g}")
        )
        return
    runs = records.read(arguments.results or stored)
    print(json.dumps(summary(runs)) if arguments.format == "json" else table(runs))


if __name__ == "__main__":
    main()
