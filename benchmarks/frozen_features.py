"""The ladder on features of a frozen network, without labels, as a team would call it.

    python -m benchmarks.frozen_features run --data-dir ../shared/data [--seeds 0,1,2]
    python -m benchmarks.frozen_features summary [--format json]      # "googlenet 3": source, delivered, exact, worst

`googlenet`: the six pairs of Office's amazon (958 records), dslr (157) and webcam (295), of office_googlenet.npz with
arrays x_D (n, 1024) and y_D (n,). `digits 300` and `digits 1000`: the held-out pairs of `benchmarks.pseudo_label_deep`
with so many records at the hospital; its development pairs with 100 and 300 are what the method was made on. The team
has a logistic regression. Seeds are those of the noise and, for digits, of the hospital's records. Exact is
self-training where features may be looked at.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import pseudo_label_deep, records
from benchmarks.pseudo_labels import percent, self_trained
from dpswd import Hospital, MockCurator, adapt, mock_description

RESULTS = Path(__file__).parent / "results" / "frozen-features.json"
SITES, EPSILONS, SIZES = ("amazon", "dslr", "webcam"), (1.0, 3.0, 8.0), (300, 1000)
DELTA = 1e-4  # of the few hundred records of Office
_DIGITS_DELTA = 1e-5

Data = tuple[Tensor, Tensor]


def office(path: Path) -> dict[str, Data]:
    """Features (n, 1024) and labels (n,) of each site."""
    with np.load(path, allow_pickle=False) as stored:
        return {
            site: (torch.from_numpy(stored[f"x_{site}"]).float(), torch.from_numpy(stored[f"y_{site}"]).long())
            for site in SITES
        }


def measured(source: Data, held: Data, fresh: Data, *, epsilon: float, delta: float, seed: int) -> records.Row:
    """Accuracies in percent on fresh records (n, d)."""
    features, labels = source
    classifier = pseudo_label_deep.linear_classifier(features, labels)
    described = mock_description(
        records=len(held[0]), record_shape=tuple(features.shape[1:]), epsilon=2.0 * epsilon, delta=delta
    )
    curator = MockCurator(
        described, records=lambda count: held[0][:count], randomness=np.random.default_rng(seed).bytes
    )
    reached = adapt(
        classifier, (features.numpy(), labels.numpy()), Hospital(curator), epsilon=epsilon, seed=seed, progress=False
    )
    with torch.no_grad():
        delivered = percent(reached.module(fresh[0]), fresh[1])
    return {
        "source_only": percent(classifier(fresh[0]), fresh[1]),
        "delivered": delivered,
        "exact": percent(self_trained(classifier, features, labels, held[0])(fresh[0]), fresh[1]),
        "outcome": reached.outcome,
        "asked": [[answer.rung, answer.outcome] for answer in reached.answers],
    }


def jobs(data_dir: Path, seeds: Sequence[int]) -> Iterator[records.Job]:
    """All cells."""
    sites = office(data_dir / "office_googlenet.npz")
    for seed, (source, target), epsilon in itertools.product(seeds, itertools.permutations(SITES, 2), EPSILONS):
        cell = {"set": "googlenet", "source": source, "target": target, "epsilon": epsilon, "seed": seed}
        own = sites[target]
        yield cell, functools.partial(measured, sites[source], own, own, epsilon=epsilon, delta=DELTA, seed=seed)
    chosen = [row for row in records.read(pseudo_label_deep.CHOSEN) if row["part"] == "held-out"]
    for seed, row, size, epsilon in itertools.product(seeds, chosen, SIZES, EPSILONS):
        pair = {name: row[name] for name in ("backbone", "source", "target", "shift")}
        cell = {"set": f"digits {size}", **pair, "epsilon": epsilon, "seed": seed}
        yield cell, functools.partial(_of_digits, pair, size, epsilon, seed, data_dir)


def _of_digits(pair: dict[str, Any], size: int, epsilon: float, seed: int, data_dir: Path) -> records.Row:
    origin = pseudo_label_deep.team(pair["backbone"], pair["source"], data_dir, pseudo_label_deep.CACHE)
    held, fresh = pseudo_label_deep.hospital(pair["target"], pair["shift"], 1 + seed, data_dir)
    with torch.no_grad():
        source, own, new = (
            (origin.extractor(data.images), data.labels) for data in (origin.source, held.part(slice(size)), fresh)
        )
    return measured(source, own, new, epsilon=epsilon, delta=_DIGITS_DELTA, seed=seed)


def summary(rows: Sequence[records.Row]) -> dict[str, dict[str, Any]]:
    """Means over pairs and seeds, by set and epsilon."""
    figures: dict[str, dict[str, Any]] = {}
    for name, epsilon in sorted({(row["set"], row["epsilon"]) for row in rows}):
        some = [row for row in rows if (row["set"], row["epsilon"]) == (name, epsilon)]
        gains = [row["delivered"] - row["source_only"] for row in some]
        figures[f"{name} {epsilon:g}"] = {
            **{kind: round(statistics.fmean(row[kind] for row in some), 2) for kind in ("source_only", "delivered")},
            "exact": round(statistics.fmean(row["exact"] for row in some), 2),
            "runs": len(some),
            "changed": sum(row["outcome"] == "changed" for row in some),
            "lost_over_0.3": sum(gain < -0.3 for gain in gains),
            "worst": round(min(gains), 2),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"))
    parser.add_argument("--format", choices=("text", "json"), default="text")
    records.options(parser, RESULTS, seeds=(0, 1, 2))
    asked = parser.parse_args()
    if asked.what == "run":
        torch.set_num_threads(1)
        records.Rows(RESULTS, asked.results).run([*jobs(asked.data_dir, asked.seeds)])
        return
    figures = summary(records.read(asked.results or RESULTS))
    for name, row in figures.items() if asked.format == "text" else ():
        print(name, *(f"{kind} {value}" for kind, value in row.items()))
    if asked.format == "json":
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
