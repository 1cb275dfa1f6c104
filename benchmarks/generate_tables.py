"""Synthetic tables from one release: what classifiers learn from them, tested on real records.

    python -m benchmarks.generate_tables run --data-dir ../shared/data
    python -m benchmarks.generate_tables summary

needs adult.npz and heart_uci.npz in the folder (UCI, CC BY 4.0; heart disease: the principal investigators are
A. Janosi, W. Steinbrunn, M. Pfisterer and R. Detrano). Seven tenths of the records are the hospital's, drawn anew for
each seed. Rows are drawn, as many as it has records and then 50,000, for rows cost nothing; logistic regression on the
schema's bins and gradient boosted trees on the values are trained on them with scikit-learn's own settings, and the
other three tenths are looked at once.
Beside them the same classifiers trained on the hospital's own records, without privacy. The schema says what the data
sets' documentation does: bounds, codes, and that 0 stands for no capital gain, and for an unknown cholesterol.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import records
from benchmarks.labelled import HeldRecords, Site
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.generation.schema import Column, Schema
from dpswd.public_client.generation.tabular import Bins, Tabular

RESULTS = Path(__file__).parent / "results" / "generate-tables.json"
DELTA = 1e-5
EPSILONS, SEEDS = (1.0, 0.2, 5.0), (0, 1, 2)
ROWS = 50_000
"""Drawn beside as many as there are records."""
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
_MOST_CODES = 20
"""Of an ordered column whose codes are bins of their own."""
Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def adult(directory: Path) -> tuple[Schema, Array, Labels]:
    """Codes (n, 13) of the census records, and whether more than 50K was earned."""
    with np.load(directory / "adult.npz", allow_pickle=False) as held:
        columns = []
        for given, size, ordered in zip(held["feature_names"], held["sizes"], held["numeric"], strict=True):
            name, most = str(given), float(size - 1)
            if ordered and size > _MOST_CODES:
                zero = {"low": 1.0, "missing": 0.0} if name.startswith("capital") else {"low": 0.0}
                columns.append(Column(name=name, kind="numeric", high=most, bins=20, whole=True, **zero))
            else:
                columns.append(Column(name=name, kind="categorical", values=tuple(map(float, range(size)))))
        return Schema(tuple(columns)), held["x"].astype(np.float32), held["y"].astype(np.int64)


def hearts(directory: Path) -> tuple[Schema, Array, Labels]:
    """The ten best known values of the patients of four hospitals together, unknown ones as codes."""
    schema = Schema(
        (
            Column(name="age", kind="numeric", low=20.0, high=80.0, bins=6, whole=True),
            Column(name="sex", kind="categorical", values=(0.0, 1.0)),
            Column(name="cp", kind="categorical", values=(1.0, 2.0, 3.0, 4.0)),
            Column(name="trestbps", kind="numeric", low=80.0, high=200.0, bins=6, missing=-9.0),
            Column(name="chol", kind="numeric", low=80.0, high=600.0, bins=6, missing=-9.0),
            Column(name="fbs", kind="categorical", values=(0.0, 1.0), missing=-9.0),
            Column(name="restecg", kind="categorical", values=(0.0, 1.0, 2.0), missing=-9.0),
            Column(name="thalach", kind="numeric", low=60.0, high=210.0, bins=6, missing=-9.0),
            Column(name="exang", kind="categorical", values=(0.0, 1.0), missing=-9.0),
            Column(name="oldpeak", kind="numeric", low=-3.0, high=7.0, bins=5, missing=-9.0),
        )
    )
    with np.load(directory / "heart_uci.npz", allow_pickle=False) as held:
        x = np.concatenate([held[f"x_{name}"] for name in HOSPITALS])[:, : len(schema.columns)]
        y = np.concatenate([held[f"y_{name}"] for name in HOSPITALS]).astype(np.int64)
    names = [column.name for column in schema.columns]
    for name in ("trestbps", "chol"):  # a 0 stands for unknown
        x[x[:, names.index(name)] == 0.0, names.index(name)] = np.nan
    return schema, np.where(np.isnan(x), -9.0, x).astype(np.float32), y


DATA = {"adult": adult, "hearts": hearts}


def scores(schema: Schema, x: Array, y: Labels, tests: Array, answers: Labels) -> dict[str, float]:
    """AUC in percent of classifiers trained on (x, y)."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    bins = Bins(schema)

    def seen(values: Array) -> npt.NDArray[np.float32]:
        made: npt.NDArray[np.float32] = (bins(torch.from_numpy(values)) > 0.0).numpy().astype(np.float32)
        return made

    linear = LogisticRegression(max_iter=300).fit(seen(x), y)
    trees = HistGradientBoostingClassifier(random_state=0).fit(x, y)
    return {
        "logistic regression": 100.0 * float(roc_auc_score(answers, linear.predict_proba(seen(tests))[:, 1])),
        "boosted trees": 100.0 * float(roc_auc_score(answers, trees.predict_proba(tests)[:, 1])),
    }


def split(count: int, seed: int) -> tuple[Labels, Labels]:
    """Numbers of the hospital's records, seven tenths, and of the others."""
    order = np.random.default_rng(seed).permutation(count)
    return order[: int(0.7 * count)], order[int(0.7 * count) :]


def run(name: str, epsilon: float | None, seed: int, directory: Path) -> dict[str, Any]:
    """One run; epsilon None: on the hospital's own records."""
    schema, x, y = DATA[name](directory)
    own, rest = split(len(y), seed)
    row: dict[str, Any] = {"data": name, "epsilon": epsilon, "seed": seed}
    if epsilon is None:
        return row | {"auc": scores(schema, x[own], y[own], x[rest], y[rest])}
    curator = HeldRecords(Site(x[own], y[own]), classes=2, delta=DELTA, seed=seed)
    plan, _ = plan_generator(curator, Tabular(schema=schema), epsilon=epsilon)
    begun = time.process_time()
    generator = generate(curator, plan, seed=seed, device="cpu", progress=False)
    spent = time.process_time() - begun
    row |= {"priced": curator.charges[0].epsilon, "cpu_seconds": round(spent, 1)}
    for which, rows in (("auc", len(own)), ("auc_of_many", ROWS)):
        drawn, labels = generator.sample(rows, seed)
        row[which] = scores(schema, drawn.numpy(), labels.numpy(), x[rest], y[rest])
    return row


def table(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    kinds = ("logistic regression", "boosted trees")
    lines = [f"| data | trained on | {' | '.join(kinds)} |", "|---|---|---|---|"]
    for name in DATA:
        for epsilon in (None, *EPSILONS):
            own = [one for one in runs if (one["data"], one["epsilon"]) == (name, epsilon)]
            if own:
                what = "real records" if epsilon is None else f"as many rows, epsilon {epsilon:g}"
                cells = " | ".join(records.mean_and_deviation([one["auc"][kind] for one in own]) for kind in kinds)
                lines.append(f"| {name} | {what} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path)
    records.options(parser, RESULTS, seeds=SEEDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "run":
        if arguments.data_dir is None:
            parser.error("--data-dir is needed")
        records.Rows(RESULTS, arguments.results).run(
            (
                {"data": name, "epsilon": epsilon, "seed": seed},
                functools.partial(run, name, epsilon, seed, arguments.data_dir),
            )
            for seed, epsilon, name in itertools.product(arguments.seeds, (None, *EPSILONS), DATA)
        )
        return
    print(table(records.read(arguments.results or RESULTS)))


if __name__ == "__main__":
    main()
