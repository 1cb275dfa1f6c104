"""Heart disease: Cleveland is public, three other hospitals are private; AUC.

    python -m benchmarks.heart --data-dir ../shared/data --seeds 0,1,2,3,4             # beside what is on file
    python -m benchmarks.heart --data-dir ../shared/data --seeds 0,1,2,3,4 --ceiling   # what could be reached at best
    python -m benchmarks.heart --data-dir ../shared/data --seeds 0,1,2,3,4 --made      # Cleveland against itself

needs heart_uci.npz in the folder: arrays x_D (n, 13) with NaN for missing and y_D (n,) for D in cleveland, hungarian,
switzerland and va; UCI heart disease (CC BY 4.0; A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano). All patients are
used, with two choices of columns: the ten that most hospitals mostly have, and all thirteen. A missing value (chol and
trestbps: 0 as well) becomes Cleveland's median, which is public, and the record says so by a flag for each column. The
source-only classifier sees no flag: Cleveland's own six gaps have none.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks import records
from benchmarks.vectors import Domain, adapt, standardised_table

SOURCE, TARGETS = "cleveland", ("hungarian", "switzerland", "va")
COLUMNS = (10, 13)  # age, sex, cp, trestbps, chol, fbs, restecg, thalach, exang, oldpeak; slope, ca, thal
_TRESTBPS, _CHOL = 3, 4
RESULTS = Path(__file__).parent / "results" / "heart.json"
DELTA = 1e-3  # below 1 / n for each of the three
FLAG = 3.0  # size of a flag of a gap, in deviations of a column
_RESAMPLED = 500


@dataclass(frozen=True)
class Hospital(Domain):
    """Records (n, 2 columns) of values and flags, and labels of one hospital; gaps filled.

    Attributes:
        missing: (n, columns), where a value was filled in.
        fill: (columns,), by what.
    """

    missing: npt.NDArray[np.bool_]
    fill: npt.NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--epsilons", default="1")
    parser.add_argument("--columns", default=",".join(str(count) for count in COLUMNS))
    parser.add_argument("--service", action="store_true", help="over a curator process with mutual TLS and a ledger")
    records.options(parser, RESULTS, seeds=range(5))
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ceiling", action="store_true", help="exact knowledge of the targets in place of releases")
    what.add_argument("--made", action="store_true", help="targets made of Cleveland, whose labels are public")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    from benchmarks import heart_ceiling, heart_made  # they need what is defined here

    job, stored = (
        (heart_ceiling.job, heart_ceiling.RESULTS)
        if arguments.ceiling
        else (heart_made.job, heart_made.RESULTS)
        if arguments.made
        else (_job, RESULTS)
    )
    jobs = []
    for count in records.numbers(arguments.columns):
        hospitals = load(arguments.data_dir / "heart_uci.npz", count)
        for seed, epsilon in itertools.product(arguments.seeds, map(float, arguments.epsilons.split(","))):
            jobs += [job(hospitals[SOURCE], hospitals[target], epsilon, seed, arguments) for target in TARGETS]
    records.Rows(stored, arguments.results).run(jobs)


def load(path: Path, columns: int) -> dict[str, Hospital]:
    """The four hospitals.

    Args:
        path: of heart_uci.npz.
        columns: how many of the thirteen, from the first.
    """
    with np.load(path, allow_pickle=False) as archive:
        names = (SOURCE, *TARGETS)
        raw = {name: _with_gaps(archive[f"x_{name}"][:, :columns]) for name in names}
        medians = np.nanmedian(raw[SOURCE], axis=0).astype(np.float32)
        return {
            name: Hospital(
                name,
                with_flags(np.where(np.isnan(raw[name]), medians, raw[name]), np.isnan(raw[name]) & (name != SOURCE)),
                archive[f"y_{name}"].astype(np.int64),
                np.isnan(raw[name]),
                medians,
            )
            for name in names
        }


def with_flags(values: npt.NDArray[np.float32], missing: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Records (n, 2 c) of values and flags."""
    return np.concatenate([values, missing], axis=1).astype(np.float32)


def _with_gaps(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    gaps = values.copy()
    for column in (_TRESTBPS, _CHOL):  # nobody lives with a blood pressure or a cholesterol of 0
        gaps[gaps[:, column] == 0.0, column] = np.nan
    return gaps


def auc(scores: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Area under the ROC curve, in percent: the chance that an ill patient scores above a healthy one; ties half."""
    ill, healthy = scores[labels == 1], scores[labels == 0]
    above = (ill[:, None] > healthy[None, :]).mean()
    ties = (ill[:, None] == healthy[None, :]).mean()
    return float(100.0 * (above + 0.5 * ties))


def decision(scores: Tensor) -> npt.NDArray[np.float64]:
    """(n,) how ill, from scores (n, 2)."""
    return (scores[:, 1] - scores[:, 0]).double().numpy()


def chance(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Deviation of the gain in AUC over patients, by drawing both classes' patients anew: how much of it is luck."""
    generator = np.random.default_rng(0)
    groups = [np.flatnonzero(labels == value) for value in (0, 1)]
    gains = []
    for _ in range(_RESAMPLED):
        drawn = np.concatenate([generator.choice(group, len(group)) for group in groups])
        gains.append(auc(after[drawn], labels[drawn]) - auc(before[drawn], labels[drawn]))
    return float(np.std(gains, ddof=1))


def _job(source: Hospital, target: Hospital, epsilon: float, seed: int, arguments: argparse.Namespace) -> records.Job:
    settings = {
        "target": target.name,
        "columns": len(target.fill),
        "epsilon": epsilon,
        "delta": DELTA,
        "seed": seed,
        "service": arguments.service,
    }
    return settings, functools.partial(_figures, source, target, epsilon, seed, service=arguments.service)


def _figures(source: Hospital, target: Hospital, epsilon: float, seed: int, *, service: bool) -> records.Row:
    scores = adapt(
        standardised_table(source, FLAG),
        source,
        target,
        epsilon=epsilon,
        delta=DELTA,
        seed=seed,
        service=service,
        fill=torch.from_numpy(target.fill),
    )
    return {
        "source_only": auc(decision(scores.source_only), target.labels),
        "trained_on": auc(decision(scores.trained_on), target.labels),
        "auc": auc(decision(scores.adapted), target.labels),
        "chance": chance(decision(scores.source_only), decision(scores.adapted), target.labels),
        "changed": scores.changed,
        "spent": scores.spent,
        "records": len(target.labels),
    }


if __name__ == "__main__":
    main()
