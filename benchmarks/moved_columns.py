"""Tables without labels whose columns lie elsewhere or have other units, beside other class frequencies, by the ladder.

    python -m benchmarks.moved_columns run [--models "MLP,boosted trees"] [--seeds 40,41] [--results FILE]
    python -m benchmarks.moved_columns summary [--results FILE] [--format json]

Made tables: two to four classes with normal columns that are mixed, five to eight of them, whose zeros lie one to three
deviations away. The team's model is of 3,000 records with even classes: an MLP, or scikit-learn's logistic regression
or boosted trees; a hospital has 3,000 others. In one column, or in all, up or up and down, records lie elsewhere; one
or two columns are in other units; the first class or the last one has 70% of the records (85% of two), or classes are
even. Settings were chosen on seeds 0 to 5.
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
import numpy.typing as npt
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from benchmarks import records
from dpswd import Hospital, MockCurator, adapt, as_module, mock_description

RESULTS = Path(__file__).parent / "results" / "moved_columns.json"
SEEDS = {"MLP": range(40, 46), "logistic regression": range(50, 53), "boosted trees": range(50, 51)}
RECORDS, EPSILON, DELTA = 3000, 1.0, 1e-6
OFFSETS = tuple(itertools.product(("one", "all", "up"), (0.3, 0.6, 1.0), ("even", "first", "last")))
UNITS = tuple(itertools.product(("x 2.2", "/ 2.5", "x 1.8 + 32", "/ 18", "two"), (0.0,), ("even", "first")))
KINDS = {
    "one elsewhere": ("one",),
    "all elsewhere": ("all", "up"),
    "one in other units": ("x 2.2", "/ 2.5", "x 1.8 + 32", "/ 18"),
    "two in other units": ("two",),
}
"""Rows of the table: shifts."""
_CLASSES, _COLUMNS = (2, 4, 3), (6, 5, 8)
_FAHRENHEIT = 3.0  # deviations of a column, that 32 degrees are

Values = npt.NDArray[np.float64]


class World:
    """One seed's law of the records."""

    def __init__(self, seed: int) -> None:
        rng, self.seed = np.random.default_rng(seed), seed
        self.classes, self.columns = _CLASSES[seed % 3], _COLUMNS[seed % 3]
        self._means = 1.2 * rng.normal(size=(self.classes, self.columns))
        self._mixing = np.eye(self.columns) + 0.3 * rng.normal(size=(self.columns, self.columns))
        self._away = rng.uniform(1.0, 3.0, size=self.columns)

    def drawn(self, count: int, seed: int, frequencies: str = "even") -> tuple[Values, npt.NDArray[np.int64]]:
        """Records (n, c) and labels (n,)."""
        rng, rare = np.random.default_rng(seed), 0.15 if self.classes == 2 else 0.1
        shares = np.full(self.classes, 1.0 / self.classes if frequencies == "even" else rare)
        if frequencies != "even":
            shares[0 if frequencies == "first" else -1] = 1.0 - rare * (self.classes - 1)
        labels = rng.choice(self.classes, size=count, p=shares)
        rows = (self._means[labels] + rng.normal(size=(count, self.columns))) @ self._mixing
        return rows + self._away * np.linalg.norm(self._mixing, axis=0), labels

    def moved(self, rows: Values, shift: str, size: float) -> Values:
        """Records as the hospital has them."""
        spread, made, one = self.drawn(RECORDS, self.seed)[0].std(axis=0), rows.copy(), self.seed % self.columns
        if shift == "one":
            made[:, one] += size * spread[one]
        elif shift in ("all", "up"):
            made += size * spread * (1 if shift == "up" else np.where(np.arange(self.columns) % 2, 1, -1))
        elif shift == "two":
            made[:, one] *= 2.2
            other = (one + 2) % self.columns
            made[:, other] = 1.8 * made[:, other] + _FAHRENHEIT * spread[other]
        else:
            factor = {"x 2.2": 2.2, "/ 2.5": 0.4, "x 1.8 + 32": 1.8, "/ 18": 1 / 18}[shift]
            made[:, one] = factor * made[:, one] + (_FAHRENHEIT * spread[one] if "+" in shift else 0.0)
        return made

    def model(self, kind: str) -> nn.Module:
        """The team's, of the source's standardised columns."""
        rows, labels = self.drawn(RECORDS, self.seed)
        if kind == "boosted trees":
            return as_module(HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(rows, labels))
        if kind == "logistic regression":
            return as_module(make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, labels))
        torch.manual_seed(self.seed)
        layers = [nn.Linear(self.columns, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, self.classes)]
        scaling = nn.Linear(self.columns, self.columns).requires_grad_(False)
        scaling.weight.copy_(torch.from_numpy(np.diag(1.0 / rows.std(axis=0))))
        scaling.bias.copy_(torch.from_numpy(-rows.mean(axis=0) / rows.std(axis=0)))
        made, x, y = nn.Sequential(scaling, *layers), torch.from_numpy(rows).float(), torch.from_numpy(labels)
        adam = torch.optim.Adam([one for one in made.parameters() if one.requires_grad], 3e-3)
        for _ in range(10):
            for part in torch.split(torch.randperm(len(x)), 100):
                adam.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(made(x[part]), y[part]))
                adam.step()
        return made.eval()


def adapted(kind: str, seed: int, shift: str, size: float, frequencies: str) -> records.Row:
    """Accuracies in percent, on 3,000 further records of the hospital."""
    world = World(seed)
    own, (fresh, labels) = (world.drawn(RECORDS, seed + more, frequencies) for more in (5_000, 9_000))
    rows = torch.from_numpy(world.moved(own[0], shift, size)).float()
    described = mock_description(records=RECORDS, record_shape=(world.columns,), epsilon=4.0, delta=DELTA)
    curator = MockCurator(described, records=lambda count: rows[:count], randomness=np.random.default_rng(seed).bytes)
    model, source = world.model(kind), world.drawn(RECORDS, seed)
    reached = adapt(
        model, (source[0].astype(np.float32), source[1]), Hospital(curator), epsilon=EPSILON, progress=False
    )

    def right(module: nn.Module, x: Values) -> float:
        with torch.no_grad():
            return 100.0 * float((module(torch.from_numpy(x).float()).argmax(dim=1).numpy() == labels).mean())

    there = world.moved(fresh, shift, size)
    figures = {"source": right(model, there), "delivered": right(reached.module, there), "unmoved": right(model, fresh)}
    return figures | {"outcome": reached.outcome, "asked": [answer.rung for answer in reached.answers]}


def jobs(models: Sequence[str], seeds: Sequence[int]) -> Iterator[records.Job]:
    """All cells."""
    for kind in models:
        for (shift, size, frequencies), seed in itertools.product((*OFFSETS, *UNITS), seeds or SEEDS[kind]):
            cell = {"model": kind, "shift": shift, "size": size, "frequencies": frequencies, "seed": seed}
            yield cell, functools.partial(adapted, kind, seed, shift, size, frequencies)


def summary(runs: Sequence[records.Row]) -> dict[str, Any]:
    """Means over seeds and sizes by model, shift and frequencies, and how many lost more than two points."""
    figures: dict[str, Any] = {}
    own = dict.fromkeys((kind, shift, frequencies) for kind in SEEDS for shift, _, frequencies in (*OFFSETS, *UNITS))
    for kind, shift, frequencies in own:
        named = {"model": kind, "shift": shift, "frequencies": frequencies}
        some = [run for run in runs if named.items() <= run.items()]
        if some:
            means = {of: statistics.fmean(run[of] for run in some) for of in ("source", "delivered", "unmoved")}
            losses = [run["delivered"] - run["source"] for run in some]
            lost = {"runs": len(some), "lost": sum(loss < -2.0 for loss in losses), "worst": min(losses)}
            figures[f"{kind} {shift} {frequencies}"] = means | lost
    return figures


def lines(figures: dict[str, Any]) -> Iterator[str]:
    """The summary as a table, whatever the frequencies."""
    yield f"| columns | {' | '.join(SEEDS)} |"
    yield f"|---|{'---|' * len(SEEDS)}"
    for name, shifts in KINDS.items():
        yield f"| {name} | {' | '.join(_cell(figures, kind, shifts) for kind in SEEDS)} |"


def _cell(figures: dict[str, Any], kind: str, shifts: Sequence[str]) -> str:
    """Means before, after, and where no column has moved; how many of the runs lost more than two points."""
    own = [each for key, each in figures.items() if key.rpartition(" ")[0] in [f"{kind} {one}" for one in shifts]]
    if not (runs := sum(each["runs"] for each in own)):
        return "not run"
    means = [sum(each["runs"] * each[name] for each in own) / runs for name in ("source", "delivered", "unmoved")]
    return f"{'/'.join(f'{mean:.1f}' for mean in means)} ({sum(one['lost'] for one in own)}/{runs})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Columns that lie elsewhere", allow_abbrev=False)
    parser.add_argument("command", choices=("run", "summary"))
    records.options(parser, RESULTS, seeds=())
    parser.add_argument("--models", default=",".join(SEEDS), help="with commas; all if not given")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    models = asked.models.split(",")
    if other := set(models) - set(SEEDS):
        parser.error(f"--models names {', '.join(sorted(other))}; allowed: {', '.join(SEEDS)}")
    if asked.command == "run":
        records.Rows(RESULTS, asked.results).run(jobs(models, asked.seeds))
        return
    figures = summary(records.read(asked.results or RESULTS))
    print(json.dumps(figures, indent=1) if asked.format == "json" else "\n".join(lines(figures)))


if __name__ == "__main__":
    main()
