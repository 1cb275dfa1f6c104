"""Adult by occupation: each is a labelled hospital, one is the public source; label and covariate shift at once.

    python -m benchmarks.labelled_occupations run --data-dir ../shared/data     # anew, beside what is on file
    python -m benchmarks.labelled_occupations summary

needs adult.npz in the folder (UCI Adult, CC BY 4.0). The source is the occupation of code 1, 6,112 people of whom 23%
earn more than 50K, about as in all; hospitals are the nine others with at least 2,000 people, of whom 4% to 48% do.
Each holds 70% of its people, drawn anew for every seed, and is tested on the rest. Numeric columns are scaled to -1..1,
categories of up to nine codes are one-hot, the source's mean is taken off. Every release passes through the mock
curator. The same linear classifier trained on the hospital's own labels, without privacy, is where the way ends.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import records
from benchmarks.labelled import HeldRecords, Site
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.methods import Recalibrate, Statistics
from dpswd.public_client.published_methods import Finetune
from dpswd.public_client.training.method import Method

RESULTS = Path(__file__).parent / "results" / "labelled-occupations.json"
DELTA = 1e-5
EPSILONS, SEEDS = (1.0, 0.2), tuple(range(20))
PRIVATE = {"statistics": Statistics(), "recalibrate": Recalibrate(), "finetune": Finetune()}
FIRST_SEEDS = {"statistics": 3, "recalibrate": 3, "finetune": 3}
"""Worse than the source in three seeds, or come later; not run in more."""
_MANY = 10  # seeds
_CODES, _MOST = 9, 6200  # codes of a one-hot column; people of a hospital (other columns have larger groups)


@dataclass(frozen=True)
class Dealing:
    """How people are dealt: by a column, of which one code is the public source.

    Attributes:
        column: its name.
        source: the code of the public source.
        fewest: people that a hospital has.
    """

    column: str
    source: int
    fewest: int


REPORTED = Dealing("occupation", 1, 2000)


@dataclass(frozen=True, eq=False)
class Task:
    """One hospital, and the source's model.

    Attributes:
        code: of its people in the column.
        source: the public records.
        start: the source's classifier.
        trained: the hospital's records and labels.
        tested: the same of others like them.
    """

    code: int
    source: TensorDataset
    start: nn.Linear
    trained: tuple[Tensor, Tensor]
    tested: tuple[Tensor, Tensor]

    def reached(self, method: Method, *, epsilon: float, seed: int) -> float:
        """Accuracy in percent of what a method makes of the source's classifier, with noise of a seed."""
        site = Site(self.trained[0].numpy(), self.trained[1].numpy())
        hospital = Hospital(HeldRecords(site, classes=2, delta=DELTA, seed=seed))
        model = DomainAdaptation(
            nn.Identity(), copy.deepcopy(self.start), hospital=hospital, plan=hospital.plan(method, epsilon=epsilon),
            seed=seed, device="cpu", source_epochs=0,
        )  # fmt: skip
        return 100.0 * model.fit(DataLoader(self.source, batch_size=512), progress=False).score(*self.tested)


Measure = Callable[[Sequence[Task], int], list[float]]
"""Of a seed's hospitals, the accuracies in percent."""


def tasks(path: Path, dealing: Dealing, *, seed: int) -> Iterator[Task]:
    """Every hospital of a seed."""
    values, labels, groups = table(path, dealing)
    public = np.flatnonzero(groups == dealing.source)[:_MOST]
    torch.manual_seed(seed)
    start = fitted(values[public], labels[public])
    for code in range(int(groups.max()) + 1):
        own = np.flatnonzero(groups == code)
        if code == dealing.source or len(own) < dealing.fewest:
            continue
        own = np.random.default_rng(seed).permutation(own)[:_MOST]
        first, rest = own[: int(0.7 * len(own))], own[int(0.7 * len(own)) :]
        source = TensorDataset(values[public], labels[public])
        yield Task(code, source, start, (values[first], labels[first]), (values[rest], labels[rest]))


def table(path: Path, dealing: Dealing) -> tuple[Tensor, Tensor, npt.NDArray[np.int64]]:
    """Records (n, d), labels (n,) and the column's codes (n,); a column of categories is no part of the records."""
    with np.load(path, allow_pickle=False) as archive:
        codes, sizes, numeric, names = (archive[key] for key in ("x", "sizes", "numeric", "feature_names"))
        dealt = [str(name) for name in names].index(dealing.column)
        columns = []
        for place in range(len(names)):
            if numeric[place]:
                columns.append((2.0 * codes[:, place] / (sizes[place] - 1) - 1.0)[:, None])
            elif sizes[place] <= _CODES and place != dealt:
                columns.append(np.eye(sizes[place])[codes[:, place]])
        groups = codes[:, dealt].astype(np.int64)
        values = np.concatenate(columns, axis=1)
        values -= values[groups == dealing.source].mean(axis=0)
        return torch.from_numpy(values.astype(np.float32)), torch.from_numpy(archive["y"].astype(np.int64)), groups


def _alone(method: Method, epsilon: float) -> Measure:
    return lambda dealt, seed: [task.reached(method, epsilon=epsilon, seed=seed) for task in dealt]


def source(dealt: Sequence[Task], _: int) -> list[float]:
    """Where the way begins."""
    return [_accuracy(task.start, *task.tested) for task in dealt]


def own_labels(dealt: Sequence[Task], _: int) -> list[float]:
    """Where it ends."""
    return [_accuracy(fitted(*task.trained), *task.tested) for task in dealt]


def all_labels(dealt: Sequence[Task], _: int) -> list[float]:
    """One classifier of all hospitals' records and labels, without privacy."""
    whole = fitted(*(torch.cat([task.trained[part] for task in dealt]) for part in (0, 1)))
    return [_accuracy(whole, *task.tested) for task in dealt]


MEASURES: dict[str, Measure] = {
    "source": source,
    **{f"{name} {e:g}": _alone(method, e) for name, method in PRIVATE.items() for e in EPSILONS},
    "all labels": all_labels,
    "own labels": own_labels,
}


def jobs(path: Path, seeds: Sequence[int]) -> Iterator[records.Job]:
    """All runs: a measure of every hospital."""
    for seed in seeds:
        dealt = functools.cache(lambda seed=seed: [*tasks(path, REPORTED, seed=seed)])
        for name in MEASURES:
            if seed < FIRST_SEEDS.get(name.rsplit(" ", 1)[0], len(SEEDS)):
                yield {"seed": seed, "trained on": name}, functools.partial(_measured, dealt, name, seed)


def _measured(dealt: Callable[[], list[Task]], name: str, seed: int) -> records.Row:
    dealing = dealt()
    reached = MEASURES[name](dealing, seed)
    codes = [str(task.code) for task in dealing]
    counts = [len(task.trained[1]) for task in dealing]
    return {"accuracy": dict(zip(codes, reached, strict=True)), "records": dict(zip(codes, counts, strict=True))}


def fitted(x: Tensor, y: Tensor) -> nn.Linear:
    """Logistic regression with a little weight decay."""
    head = nn.Linear(x.shape[1], 2)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.cross_entropy(head(x), y) + 1e-4 * head.weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    return head


def _accuracy(head: nn.Module, x: Tensor, y: Tensor) -> float:
    return 100.0 * float((head(x).argmax(dim=1) == y).double().mean())


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """By what it was trained on and seed, the mean accuracy over hospitals."""
    return {
        name: {
            one["seed"]: statistics.mean(one["accuracy"].values())
            for one in sorted(runs, key=lambda one: one["seed"])
            if one["trained on"] == name
        }
        for name in MEASURES
    }


def page(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown; how far on the way is by the same seeds' ends."""
    means = summary(runs)
    lines = ["| trained on | accuracy, mean of the hospitals | of the way (95%) | seeds |", "|---|---|---|---|"]
    for name, values in means.items():
        if not values:
            continue
        low, high, reached = (np.array([means[end][seed] for seed in values]) for end in ("source", "own labels", name))
        way = "" if name in ("source", "all labels", "own labels") else _way(reached - low, high - low)
        lines.append(f"| {name} | {records.mean_and_deviation([*values.values()], 2)} | {way} | {len(values)} |")
    return "\n".join(lines)


def _way(gained: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> str:
    """In percent, with the percentile bootstrap over seeds where there are many; seeds share people."""
    share = f"{100.0 * gained.mean() / whole.mean():.0f}%"
    if len(gained) < _MANY:
        return share
    drawn = np.random.default_rng(0).integers(len(gained), size=(10_000, len(gained)))
    low, high = np.percentile(100.0 * gained[drawn].mean(axis=1) / whole[drawn].mean(axis=1), (2.5, 97.5))
    return f"{share} ({low:.0f} to {high:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--format", choices=("json", "text"), default="text")
    records.options(parser, RESULTS, seeds=SEEDS)
    arguments = parser.parse_args()
    if arguments.command != "summary":
        if arguments.data_dir is None:
            parser.error("--data-dir is needed")
        torch.set_num_threads(1)
        records.Rows(RESULTS, arguments.results).run(jobs(arguments.data_dir / "adult.npz", arguments.seeds))
        return
    runs = records.read(arguments.results or RESULTS)
    means = {name: round(statistics.mean(values.values()), 2) for name, values in summary(runs).items() if values}
    print(json.dumps(means) if arguments.format == "json" else page(runs))


if __name__ == "__main__":
    main()
