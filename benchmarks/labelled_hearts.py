"""Heart disease in four hospitals, each private and labelled: accuracy of one labelled release from each.

    python -m benchmarks.labelled_hearts run --data-dir ../shared/data       # anew, beside what is on file
    python -m benchmarks.labelled_hearts summary --format json               # of the runs on file

needs heart_uci.npz in the folder (see benchmarks/heart.py; UCI heart disease, CC BY 4.0; A. Janosi, W. Steinbrunn,
M. Pfisterer, R. Detrano). Records, columns and sizes are FLamby's (Ogier du Terrail and others 2022): ten columns, the
patients who have all of them, 199/104, 172/89, 30/16 and 85/45 for training and test, here drawn anew for every split.
Each hospital releases class statistics of the ten columns scaled by public clinical ranges, under its own epsilon and
delta 1e-4; nothing else is known, no record is public. The figure is the mean of the hospitals' test accuracies.

The published work adds or removes a record; the product replaces one. Under add-or-remove sigma is the accountant's
for a sum that moves by the largest norm of a record's vector (class_statistics/geometry.py).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks import records
from benchmarks.labelled import ADD, REPLACE, Site, released
from dpswd.public_client.methods.statistics import Statistics
from dpswd.public_client.methods.statistics_head import (
    LEAST_SEPARATION,
    ClassSums,
    Head,
    Prior,
    discriminant,
    shares_of,
)

RESULTS = Path(__file__).parent / "results" / "labelled-hearts.json"
DELTA = 1e-4
EPSILONS: tuple[float | None, ...] = (1.0, 0.1, None)
SPLITS = 20
TRAINED = {"cleveland": 199, "hungarian": 172, "switzerland": 30, "va": 85}
RANGES = {
    "age": (55.0, 10.0), "sex": (0.5, 0.5), "cp": (2.5, 1.5), "trestbps": (130.0, 20.0), "chol": (220.0, 50.0),
    "fbs": (0.5, 0.5), "restecg": (1.0, 1.0), "thalach": (150.0, 25.0), "exang": (0.5, 0.5), "oldpeak": (1.0, 1.0),
}  # fmt: skip
"""Middle and half width of each column, from what a cardiology patient usually has and how columns are coded."""
SIGNS = (1, 1, 0, 1, 1, 1, 1, -1, 1, 1)
"""Of the risk, as textbooks have it: the pulse that is reached under load speaks against disease; of the code of chest
pain nothing is said. Used in the runs with a prior only."""
_LARGEST = 2.0  # half widths; what lies further out is no more telling
_CLIP = 0.7 * len(RANGES) ** 0.5  # of the norm that scaled columns have; 0.7 as the method's target norm over its clip
_CHOL = list(RANGES).index("chol")


class Clinical(nn.Module):
    """Ten columns to ten numbers of size 1, a cholesterol of 0 (not measured) to 0; together brought to norm 1/2."""

    def __init__(self) -> None:
        super().__init__()
        middle, width = torch.tensor(list(RANGES.values())).T
        self.scaled, self.measured = nn.Linear(len(width), len(width)), nn.Linear(len(width), len(width))
        with torch.no_grad():
            self.scaled.weight.copy_(torch.diag(1.0 / width))
            self.scaled.bias.copy_(-middle / width)
            self.measured.weight.zero_()
            self.measured.weight[_CHOL, _CHOL] = 1.0
            self.measured.bias.fill_(1.0)
            self.measured.bias[_CHOL] = 0.0
        self.cut, self.gate = nn.Hardtanh(-_LARGEST, _LARGEST), nn.Hardtanh(0.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """(b, 10) to (b, 10)."""
        made: Tensor = self.cut(self.scaled(x)) * self.gate(self.measured(x)) * (0.5 / _CLIP)
        return made


def load(path: Path) -> dict[str, Site]:
    """The hospitals' patients who have all ten columns."""
    with np.load(path, allow_pickle=False) as archive:
        sites = {}
        for name in TRAINED:
            values = archive[f"x_{name}"][:, : len(RANGES)]
            whole = ~np.isnan(values).any(axis=1)
            sites[name] = Site(values[whole], archive[f"y_{name}"][whole].astype(np.int64))
    return sites


def textbook() -> npt.NDArray[np.float64]:
    """(2, d) means of the classes, half the least separation to either side along the signs of the risk."""
    d = len(SIGNS)
    towards = np.array(SIGNS) / np.linalg.norm(SIGNS)
    half = 0.5 * LEAST_SEPARATION / np.sqrt(d) * towards  # a feature's deviation is about 1 / sqrt(d)
    return np.stack([-half, half])


def one_split(
    sites: dict[str, Site], *, split: int, epsilon: float | None, relation: str, prior: bool
) -> dict[str, float | None]:
    """Accuracies of one split, in percent: over hospitals and over patients, and of the simplest rule."""
    extractor, method = Clinical().eval(), Statistics(prior="none")
    rng = np.random.default_rng(split)
    sums: dict[str, ClassSums] = {}
    tests: dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]] = {}
    commonest, signs, prices = [], [], []
    for place, (name, site) in enumerate(sites.items()):
        order = rng.permutation(len(site.labels))
        own, rest = order[: TRAINED[name]], order[TRAINED[name] :]
        sums[name], price = released(
            Site(site.records[own], site.labels[own]),
            extractor,
            classes=2,
            epsilon=epsilon,
            delta=DELTA,
            seed=1000 * split + place,
            method=method,
            relation=relation,
        )
        with torch.no_grad():
            features = extractor(torch.from_numpy(site.records[rest])).double().numpy() / 0.5
        tests[name] = (features, site.labels[rest])
        prices.append(price)
        signs.append(_accuracy(Head(textbook(), np.zeros(2)), *tests[name]))
        commonest.append(100.0 * float((site.labels[rest] == round(float(site.labels[own].mean()))).mean()))
    together = ClassSums.together(list(sums.values()))
    head = discriminant(together, Prior(textbook()) if prior else None)
    shares = shares_of(together)
    one = {name: _accuracy(head, *tests[name]) for name in sites}
    own_shares = {
        name: _accuracy(head.with_shares(shares, shares_of(sums[name], around=shares)), *tests[name]) for name in sites
    }
    patients = [len(labels) for _, labels in tests.values()]
    return {
        "one_model": statistics.mean(one.values()),
        "own_shares": statistics.mean(own_shares.values()),
        "one_model_patients": float(np.average(list(one.values()), weights=patients)),
        "own_shares_patients": float(np.average(list(own_shares.values()), weights=patients)),
        "commonest_class": statistics.mean(commonest),
        "signs_alone": statistics.mean(signs),
        "priced": None if epsilon is None else max(prices),
        **{f"own_shares_{name}": value for name, value in own_shares.items()},
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Mean accuracy over hospitals, 0 to 1, under add-or-remove, without a prior, with each hospital's own shares."""
    means = {}
    for epsilon in EPSILONS:
        values = _values(runs, epsilon, ADD, prior=False, name="own_shares")
        if values and epsilon is not None:
            means[f"epsilon {epsilon:g}"] = round(statistics.mean(values) / 100.0, 4)
    return means


def table(runs: list[dict[str, Any]]) -> str:
    """Of all runs on file, in Markdown."""
    lines = [
        "| relation | epsilon | prior | each hospital's own class shares | one model |",
        "|---|---|---|---|---|",
    ]
    for relation in (ADD, REPLACE):
        for epsilon in EPSILONS:
            for prior in (False, True):
                names = ("own_shares", "one_model")
                columns = [_values(runs, epsilon, relation, prior=prior, name=name) for name in names]
                if not columns[0] or (epsilon is None and relation == REPLACE):
                    continue
                words = "none: hardly any noise" if epsilon is None else f"{epsilon:g}"
                cells = " | ".join(records.mean_and_deviation(column) for column in columns)
                prior_words = "signs" if prior else "none"
                label = "" if epsilon is None else relation
                lines.append(f"| {label} | {words} | {prior_words} | {cells} |")
    for name, words in (("commonest_class", "each hospital's commonest class"), ("signs_alone", "the signs alone")):
        values = _values(runs, 1.0, ADD, prior=False, name=name)
        if values:
            lines.append(f"|  | no release: {words} |  | {records.mean_and_deviation(values)} |  |")
    return "\n".join(lines)


def _values(runs: list[dict[str, Any]], epsilon: float | None, relation: str, *, prior: bool, name: str) -> list[float]:
    return [
        float(run[name])
        for run in runs
        if (run["epsilon"], run["relation"], run["prior"]) == (epsilon, relation, prior)
    ]


def _accuracy(head: Head, features: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    return 100.0 * float(((features @ head.weight.T + head.bias).argmax(axis=1) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measures, and compares with what is on file")
    run.add_argument("--data-dir", type=Path, required=True)
    records.options(run, RESULTS, seeds=range(SPLITS))  # of splits
    shown = commands.add_parser("summary", help="of the runs on file")
    shown.add_argument("--format", choices=("json", "text"), default="text")
    records.options(shown, RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "summary":
        runs = records.read(arguments.results or RESULTS)
        print(json.dumps(summary(runs)) if arguments.format == "json" else table(runs))
        return
    torch.set_num_threads(1)
    sites = load(arguments.data_dir / "heart_uci.npz")
    jobs = []
    for split, epsilon, relation, prior in itertools.product(arguments.seeds, EPSILONS, (ADD, REPLACE), (False, True)):
        settings = {"split": split, "epsilon": epsilon, "relation": relation, "prior": prior}
        jobs.append((settings | {"delta": DELTA}, functools.partial(one_split, sites, **settings)))
    records.Rows(RESULTS, arguments.results).run(jobs)


if __name__ == "__main__":
    main()
