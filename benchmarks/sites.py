"""Natural sites: a model of a pooled source, corrected at every other site by `recalibrate`.

    python -m benchmarks.sites run --data-dir ../shared/data [--seeds 0,1] [--results FILE]
    python -m benchmarks.sites summary [--results FILE] [--format json]
    python -m benchmarks.sites unlabelled [--seeds 0] [--results FILE]      # the same models and sites, no labels there

Three tables, which lie in the folder: the International Stroke Trial (source: the UK, sites: countries), thyroid
disease records (source: referral "other", sites: the other referrers) and readmissions of diabetes patients (source:
every admission but emergency rooms, site: emergency rooms, as in TableShift). A site has 200 records or more. The
team's model is a logistic regression on the source's standardised columns, coded ones one-hot, with the ridge that
cross-validation at the source likes best. A site's curator runs in this process: its admission, price, computation and
noise. What is delivered is measured on the site's own records, beside the team's model and a logistic regression of the
site's own labels by cross-validation, without privacy. These sites are no untouched test: docs/ml-team/recalibrate.md
says what was looked at.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import records
from benchmarks.labelled import HeldRecords, Site
from dpswd import MockCurator, adapt, mock_description
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.methods import Recalibrate

RESULTS = Path(__file__).parent / "results" / "sites.json"
WITHOUT = RESULTS.with_name("sites-unlabelled.json")
DELTA, EPSILONS, SEEDS, UNLABELLED = 1e-5, (0.1, 1.0), 5, (1.0, 3.0)
_SHOWN = 20_000  # source records, at most, where there are no labels
LEAST, WORSE = 200, 0.005  # records of a site; log-loss above the team's model
_CODES, _RARE, _LONGEST = 30, 1e-3, 5.0  # codes of a column; spread of a column; standardised values
_BINS = 10
_MEASURES = ("accuracy", "log_loss", "auc", "calibration_error")

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: in results.
        file: in the data folder.
        source: the value of its column of sites that is the source; None for all but `site`.
        site: the only site, or None for all others of at least `LEAST` records.
    """

    name: str
    file: str
    source: str | None
    site: str | None = None


TABLES = (
    Table("stroke", "stroke_trial.npz", "UK"),
    Table("thyroid", "thyroid.npz", "other"),
    Table("readmission", "readmission.npz", None, "7"),
)


@dataclass(frozen=True, eq=False)
class Dealt:
    """A table's source and sites.

    Attributes:
        start: the team's classifier.
        source: the public records.
        sites: (records, labels) by name.
    """

    start: nn.Linear
    source: TensorDataset
    sites: dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]


def dealt(table: Table, folder: Path) -> Dealt:
    """A table with the team's model."""
    with np.load(folder / table.file, allow_pickle=False) as archive:
        raw, labels, names = archive["x"], archive["y"].astype(np.int64), archive["columns"]
        categories = json.loads(str(archive["categories"]))
        sites = archive["site"].astype(str)
    public = sites != table.site if table.source is None else sites == table.source
    values = columns(raw, [str(name) for name in names], categories, public)
    source = TensorDataset(torch.from_numpy(values[public]), torch.from_numpy(labels[public]))
    others = [table.site] if table.site else sorted(set(sites) - {str(table.source)})
    dealt_sites = {str(one): sites == one for one in others if (sites == one).sum() >= LEAST}
    return Dealt(
        fitted(values[public], labels[public]),
        source,
        {one: (values[at], labels[at]) for one, at in dealt_sites.items()},
    )


def columns(
    raw: npt.NDArray[np.float32], names: Sequence[str], categories: dict[str, Any], public: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """Columns in units of the source: coded ones one-hot, missing values the median and a column of their own."""
    made: list[Values] = []
    for place, name in enumerate(names):
        own = raw[:, place].astype(np.float64)
        missing = np.isnan(own)
        if len(categories.get(name, ())) > 2 or name.endswith("_id"):
            codes, counts = np.unique(own[public & ~missing], return_counts=True)
            made += [(own == code).astype(np.float64) for code in codes[np.argsort(-counts)][:_CODES]]
        else:
            made.append(np.where(missing, np.nanmedian(own[public]), own))
        if missing[public].any():
            made.append(missing.astype(np.float64))
    whole = np.stack(made, axis=1)
    center, spread = whole[public].mean(axis=0), whole[public].std(axis=0)
    varied = spread > _RARE
    units = (whole[:, varied] - center[varied]) / spread[varied]
    return np.asarray(np.clip(units, -_LONGEST, _LONGEST).astype(np.float32))


def fitted(values: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> nn.Linear:
    """A logistic regression as a linear layer with two scores, whose difference is the log-odds."""
    best = _search().fit(values, labels).best_estimator_
    made = nn.Linear(values.shape[1], 2)
    with torch.no_grad():
        for parameter, of in ((made.weight, best.coef_), (made.bias, best.intercept_[:, None])):
            half = torch.from_numpy(of).float() / 2.0
            parameter.copy_(torch.cat([-half, half]).reshape(parameter.shape))
    return made


def _search() -> GridSearchCV:
    ridges = {"C": [0.003, 0.03, 0.3]}
    return GridSearchCV(LogisticRegression(max_iter=300), ridges, scoring="neg_log_loss", cv=3)


def measured(chance: Values, labels: npt.NDArray[np.int64]) -> dict[str, float]:
    """What probabilities (m, 2) are worth: accuracy in percent, log-loss in nats, AUC in percent, calibration error."""
    sure, right = chance.max(axis=1), chance.argmax(axis=1) == labels
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    apart = [abs((sure - right)[bins == one].sum()) for one in range(_BINS)]
    return {
        "accuracy": 100.0 * float(right.mean()),
        "log_loss": float(log_loss(labels, chance, labels=[0, 1])),
        "auc": 100.0 * float(roc_auc_score(labels, chance[:, 1])),
        "calibration_error": float(sum(apart)) / len(labels),
    }


def own_labels(values: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> dict[str, float]:
    """Five-fold cross-validation of a logistic regression, whose ridge is chosen inside of each fold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that stop early
        return measured(cross_val_predict(_search(), values, labels, cv=5, method="predict_proba"), labels)


def delivered(task: Dealt, site: str, *, epsilon: float, seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """What a site is given, and what is said of it."""
    values, labels = task.sites[site]
    own = 1000 * seed + list(task.sites).index(site)  # other noise at each site
    hospital = Hospital(HeldRecords(Site(values, labels), classes=2, delta=DELTA, seed=own))
    classifier = nn.Linear(task.start.in_features, 2)
    classifier.load_state_dict(task.start.state_dict())
    model = DomainAdaptation(
        nn.Identity(), classifier, hospital=hospital, plan=hospital.plan(Recalibrate(), epsilon=epsilon), seed=seed,
        device="cpu", source_epochs=0,
    )  # fmt: skip
    model.fit(DataLoader(task.source, batch_size=4096, shuffle=True), progress=False)
    chance = model.predict_proba(torch.from_numpy(values)).double().numpy()
    (report,) = model.reports
    assert report["charged_epsilon"] <= epsilon
    outcome = {"outcome": report["outcome"], "finding": report["finding"]}
    return measured(chance / chance.sum(axis=1, keepdims=True), labels), outcome


def jobs(folder: Path, seeds: Sequence[int]) -> Iterator[records.Job]:
    """All site-runs."""
    for table in TABLES:
        task = dealt(table, folder)
        for site, (values, labels) in task.sites.items():
            own = functools.cache(functools.partial(own_labels, values, labels))
            for epsilon, seed in itertools.product(EPSILONS, seeds):
                which = {"table": table.name, "site": site, "epsilon": epsilon, "seed": seed}
                yield which, functools.partial(site_run, task, site, own, epsilon=epsilon, seed=seed)


def site_run(task: Dealt, site: str, own: Callable[[], dict[str, float]], *, epsilon: float, seed: int) -> records.Row:
    """The team's model, what is delivered, and the site's own labels."""
    values, labels = task.sites[site]
    with torch.no_grad():
        before = measured(torch.softmax(task.start(torch.from_numpy(values)).double(), 1).numpy(), labels)
    after, outcome = delivered(task, site, epsilon=epsilon, seed=seed)
    return {"records": len(labels), "source": before, "delivered": after, "own_labels": own()} | outcome


def without_labels(folder: Path, seeds: Sequence[int]) -> Iterator[records.Job]:
    """The ladder at every site, by a linear model and by a network of one hidden layer."""
    for table in TABLES:
        task = dealt(table, folder)
        models = {"linear": task.start, "network": _network(*task.source.tensors)}
        for site, name, epsilon, seed in itertools.product(task.sites, models, UNLABELLED, seeds):
            which = {"table": table.name, "site": site, "model": name, "epsilon": epsilon, "seed": seed}
            yield which, functools.partial(_unlabelled, task, models[name], site, epsilon=epsilon, seed=seed)


def _network(rows: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(rows.shape[1], 32), nn.ReLU(), nn.Linear(32, 2))
    adam = torch.optim.Adam(made.parameters(), 1e-3, weight_decay=1e-4)
    for _ in range(3):
        for part in torch.split(torch.randperm(len(rows)), 256):
            adam.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(made(rows[part]), labels[part]))
            adam.step()
    return made.eval().requires_grad_(False)


def _unlabelled(task: Dealt, model: nn.Module, site: str, *, epsilon: float, seed: int) -> records.Row:
    values, labels = task.sites[site]
    held, (rows, classes) = torch.from_numpy(values), task.source.tensors
    shown = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_SHOWN]
    described = mock_description(records=len(held), record_shape=held.shape[1:], epsilon=2.0 * epsilon, delta=DELTA)
    noise = np.random.default_rng((seed, list(task.sites).index(site))).bytes
    curator = MockCurator(described, records=lambda count: held[:count], randomness=noise)
    source = rows[shown].numpy(), classes[shown].numpy()
    reached = adapt(copy.deepcopy(model), source, Hospital(curator), epsilon=epsilon, progress=False)
    with torch.no_grad():
        before, after = (
            measured(torch.softmax(own(held).double(), 1).numpy(), labels) for own in (model, reached.module)
        )
    asked = [[answer.rung, answer.outcome] for answer in reached.answers]
    return {"source": before, "delivered": after, "outcome": reached.outcome, "asked": asked}


def unlabelled_words(runs: Sequence[dict[str, Any]]) -> str:
    """What the page says of them."""
    return f"{sum(run['outcome'] == 'changed' for run in runs)} of {len(runs)} changed"


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over sites and seeds, by table and epsilon, and how many site-runs are worse than the team's model."""
    if not runs:
        raise SystemExit("no results on file; run `python -m benchmarks.sites run` first")
    figures: dict[str, Any] = {}
    for table in TABLES:
        for epsilon in EPSILONS:
            own = [one for one in runs if (one["table"], one["epsilon"]) == (table.name, epsilon)]
            if not own:
                continue
            means = {kind: _means(own, kind) for kind in ("delivered", "source", "own_labels")}
            figures[f"{table.name} {epsilon:g}"] = means.pop("delivered") | means | {
                "by_record": _means(own, "delivered", by_record=True),
                "sites": len({one["site"] for one in own}),
                "kept": sum(one["outcome"] == "kept" for one in own),
            }  # fmt: skip
    worse = [one["delivered"]["log_loss"] - one["source"]["log_loss"] for one in runs]
    share = sum(value > WORSE for value in worse) / len(worse)
    return figures | {"site_runs": len(worse), "share_worse": share, "worst": max(worse)}


def _means(runs: Sequence[dict[str, Any]], kind: str, *, by_record: bool = False) -> dict[str, float]:
    weights = [one["records"] if by_record else 1.0 for one in runs]
    total = math.fsum(weights)
    return {
        name: math.fsum(w * one[kind][name] for w, one in zip(weights, runs, strict=True)) / total for name in _MEASURES
    }


def lines(figures: dict[str, Any]) -> Iterator[str]:
    """The summary as a table."""
    yield "| table | | accuracy | log-loss | AUC | calibration error |"
    yield "|---|---|---|---|---|---|"
    tables: dict[str, dict[str, Any]] = {}
    for key, own in figures.items():
        if isinstance(own, dict):
            name, epsilon = key.rsplit(" ", 1)
            tables.setdefault(name, {"team's model": own["source"]})[f"delivered, epsilon {epsilon}"] = own
            tables[name]["own labels"] = tables[name].pop("own labels", own["own_labels"])  # the last row
    for name, rows in tables.items():
        for kind, of in rows.items():
            numbers = f"{of['accuracy']:.1f} | {of['log_loss']:.3f} | {of['auc']:.1f} | {of['calibration_error']:.3f}"
            yield f"| {name} | {kind} | {numbers} |"
    share, worst = 100.0 * figures["share_worse"], figures["worst"]
    yield f"\n{figures['site_runs']} site-runs; {share:.1f}% worse by more than {WORSE:g}, the worst by {worst:+.4f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Recalibration at natural sites", allow_abbrev=False)
    parser.add_argument("command", choices=("run", "summary", "unlabelled"))
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"))
    records.options(parser, RESULTS, seeds=range(SEEDS))
    parser.add_argument("--format", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    if asked.command == "run":
        records.Rows(RESULTS, asked.results).run(jobs(asked.data_dir, asked.seeds))
        return
    if asked.command == "unlabelled":
        records.Rows(WITHOUT, asked.results).run(without_labels(asked.data_dir, asked.seeds[:1]))
        print(unlabelled_words(records.read(asked.results or WITHOUT)))
        return
    figures = summary(records.read(asked.results or RESULTS))
    print(json.dumps(figures, indent=1) if asked.format == "json" else "\n".join(lines(figures)))


if __name__ == "__main__":
    main()
