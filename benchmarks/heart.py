"""Heart disease: Cleveland is public, three other hospitals are private; AUC.

    python -m benchmarks.heart --data-dir ../shared/data --seeds 0,1,2,3,4

needs heart_uci.npz in the folder: arrays x_D (n, 13) with NaN for missing and y_D (n,) for D in cleveland, hungarian,
switzerland and va; UCI heart disease (CC BY 4.0; A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano). The ten columns
that are mostly there everywhere are used, of all patients; a missing value (chol and trestbps: 0 as well) becomes
Cleveland's median, which is public.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import records
from benchmarks.vectors import Domain, adapt, standardised

SOURCE, TARGETS = "cleveland", ("hungarian", "switzerland", "va")
COLUMNS = 10  # age, sex, cp, trestbps, chol, fbs, restecg, thalach, exang, oldpeak
_TRESTBPS, _CHOL = 3, 4
RESULTS = Path(__file__).parent / "results" / "heart.json"
DELTA = 1e-3  # below 1 / n for each of the three


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--epsilons", default="1")
    parser.add_argument("--service", action="store_true", help="over a curator process with mutual TLS and a ledger")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    domains = load(arguments.data_dir / "heart_uci.npz")
    for seed in (int(seed) for seed in arguments.seeds.split(",")):
        for epsilon in (float(epsilon) for epsilon in arguments.epsilons.split(",")):
            for target in TARGETS:
                _run(domains[SOURCE], domains[target], epsilon, seed, arguments)


def load(path: Path) -> dict[str, Domain]:
    """The four hospitals."""
    with np.load(path, allow_pickle=False) as archive:
        names = (SOURCE, *TARGETS)
        raw = {name: _missing(archive[f"x_{name}"]) for name in names}
        medians = np.nanmedian(raw[SOURCE], axis=0)
        return {
            name: Domain(
                name,
                np.where(np.isnan(raw[name]), medians, raw[name]).astype(np.float32),
                archive[f"y_{name}"].astype(np.int64),
            )
            for name in names
        }


def _missing(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    kept = values[:, :COLUMNS].copy()
    for column in (_TRESTBPS, _CHOL):  # nobody lives with a blood pressure or a cholesterol of 0
        kept[kept[:, column] == 0.0, column] = np.nan
    return kept


def auc(scores: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Area under the ROC curve, in percent: the chance that an ill patient scores above a healthy one; ties half."""
    ill, healthy = scores[labels == 1], scores[labels == 0]
    above = (ill[:, None] > healthy[None, :]).mean()
    ties = (ill[:, None] == healthy[None, :]).mean()
    return float(100.0 * (above + 0.5 * ties))


def _run(source: Domain, target: Domain, epsilon: float, seed: int, arguments: argparse.Namespace) -> None:
    settings = {"target": target.name, "epsilon": epsilon, "delta": DELTA, "seed": seed, "service": arguments.service}
    if records.on_file(settings, records.read(arguments.results)):
        return
    scores = adapt(
        standardised(source), source, target, epsilon=epsilon, delta=DELTA, seed=seed, service=arguments.service
    )
    figures = {
        name: auc((value[:, 1] - value[:, 0]).double().numpy(), target.labels)
        for name, value in (
            ("source_only", scores.source_only),
            ("trained_on", scores.trained_on),
            ("auc", scores.adapted),
        )
    }
    run = settings | figures | {"spent": scores.spent, "records": len(target.labels)}
    records.append(arguments.results, run)
    print(json.dumps(run), flush=True)


if __name__ == "__main__":
    main()
