"""Adult by occupation: each is a labelled hospital, one is the public source; label and covariate shift at once.

    python -m benchmarks.labelled_occupations run --data-dir ../shared/data     # what is not on file yet
    python -m benchmarks.labelled_occupations summary

needs adult.npz in the folder (UCI Adult, CC BY 4.0). The source is the occupation of code 1, 6,112 people of whom 23%
earn more than 50K, about as in all; hospitals are the nine others with at least 2,000 people, of whom 4% to 48% do.
Each holds 70% of its people, drawn anew for every seed, and is tested on the rest. Numeric columns are scaled to -1..1,
categories of up to nine codes are one-hot, the source's mean is taken off. Every release passes through the mock
curator. The same linear classifier trained on the hospital's own labels, without privacy, is where the way ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
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
from public_client.adaptation.domain_adaptation import DomainAdaptation
from public_client.adaptation.hospital import Hospital
from public_client.methods import Finetune, Statistics

RESULTS = Path(__file__).parent / "results" / "labelled-occupations.json"
SOURCE, FEWEST, DELTA = 1, 2000, 1e-5
EPSILONS, SEEDS = (1.0, 0.2), (0, 1, 2)
PRIVATE = {"statistics": Statistics(), "class shares": Statistics(learns="shares"), "finetune": Finetune()}
_OCCUPATION, _CODES = "occupation", 9


def table(path: Path) -> tuple[Tensor, Tensor, npt.NDArray[np.int64]]:
    """Records (n, d), labels (n,) and occupations (n,)."""
    with np.load(path, allow_pickle=False) as archive:
        codes, sizes, numeric, names = (archive[key] for key in ("x", "sizes", "numeric", "feature_names"))
        places = [str(name) for name in names].index(_OCCUPATION)
        columns = []
        for place in range(len(names)):
            if numeric[place]:
                columns.append((2.0 * codes[:, place] / (sizes[place] - 1) - 1.0)[:, None])
            elif sizes[place] <= _CODES:
                columns.append(np.eye(sizes[place])[codes[:, place]])
        occupations = codes[:, places].astype(np.int64)
        values = np.concatenate(columns, axis=1)
        values -= values[occupations == SOURCE].mean(axis=0)
        return torch.from_numpy(values.astype(np.float32)), torch.from_numpy(archive["y"].astype(np.int64)), occupations


def run(path: Path) -> None:
    """Adds the runs that are not on file."""
    values, labels, occupations = table(path)
    public = occupations == SOURCE
    hospitals = [code for code in range(int(occupations.max()) + 1) if (occupations == code).sum() >= FEWEST]
    source = TensorDataset(values[public], labels[public])
    for seed in SEEDS:
        torch.manual_seed(seed)
        start = _fitted(values[public], labels[public])
        for code in hospitals:
            which = {"occupation": code, "seed": seed}
            found = [one for one in records.read(RESULTS) if all(one[key] == which[key] for key in which)]
            known = {name: value for one in found for name, value in one.items()}
            missing = [(name, e) for name in PRIVATE for e in EPSILONS if f"{name} {e:g}" not in known]
            if code == SOURCE or not missing:
                continue
            own = np.random.default_rng(seed).permutation(np.flatnonzero(occupations == code))
            trained, tested = own[: int(0.7 * len(own))], own[int(0.7 * len(own)) :]
            test = (values[tested], labels[tested])
            told: dict[str, Any] = {
                "source": _accuracy(start, *test),
                "own labels": _accuracy(_fitted(values[trained], labels[trained]), *test),
            }
            for name, epsilon in missing:
                site = Site(values[trained].numpy(), labels[trained].numpy())
                hospital = Hospital(HeldRecords(site, classes=2, delta=DELTA, seed=seed))
                classifier = nn.Linear(values.shape[1], 2)
                classifier.load_state_dict(start.state_dict())
                model = DomainAdaptation(
                    nn.Identity(), classifier, hospital=hospital, seed=seed, device="cpu", source_epochs=0,
                    plan=hospital.plan(PRIVATE[name], epsilon=epsilon),
                )  # fmt: skip
                model.fit(DataLoader(source, batch_size=512), progress=False)
                told[f"{name} {epsilon:g}"] = 100.0 * model.score(*test)
            records.append(RESULTS, which | {"records": len(trained)} | told)


def _fitted(x: Tensor, y: Tensor) -> nn.Linear:
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


def summary(runs: list[dict[str, Any]]) -> dict[str, list[float]]:
    """By column, the mean accuracy over hospitals of each seed that has them all."""
    merged: dict[tuple[int, int], dict[str, Any]] = {}
    for one in runs:  # what was added later stands on its own line
        merged.setdefault((one["occupation"], one["seed"]), {}).update(one)
    runs = list(merged.values())
    codes = {one["occupation"] for one in runs}
    by_seed = {seed: [one for one in runs if one["seed"] == seed] for seed in {one["seed"] for one in runs}}
    whole = {seed: found for seed, found in by_seed.items() if {one["occupation"] for one in found} == codes}
    names = ["source", *(f"{name} {epsilon:g}" for name in PRIVATE for epsilon in EPSILONS), "own labels"]
    return {name: [statistics.mean(one[name] for one in found) for found in whole.values()] for name in names}


def page(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    means = summary(runs)
    lines = ["| trained on | accuracy, mean of the hospitals | of the way | seeds |", "|---|---|---|---|"]
    for name, values in means.items():
        low, high = (statistics.mean(means[end]) for end in ("source", "own labels"))
        way = (
            "" if name in ("source", "own labels") else f"{100.0 * (statistics.mean(values) - low) / (high - low):.0f}%"
        )
        lines.append(f"| {name} | {records.mean_and_deviation(values, 2)} | {way} | {len(values)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--format", choices=("json", "text"), default="text")
    arguments = parser.parse_args()
    if arguments.command == "run":
        if arguments.data_dir is None:
            parser.error("--data-dir is needed")
        torch.set_num_threads(1)
        run(arguments.data_dir / "adult.npz")
    runs = records.read(RESULTS)
    told = {name: round(statistics.mean(values), 2) for name, values in summary(runs).items() if values}
    print(json.dumps(told) if arguments.format == "json" else page(runs))


if __name__ == "__main__":
    main()
