"""Office-Caltech10 with SURF features, all twelve pairs.

    python -m benchmarks.office --data-dir ../shared/data --seeds 0,1,2

needs office_caltech10_surf.npz in the folder: arrays x_D (n, 800) of counts and y_D (n,) for D in amazon, caltech10,
dslr and webcam. Each record is prepared by itself, by a rule that the operator can apply: square roots of its shares.
docs/ml-team/results.md is written from the results by `python -m benchmarks.paper table`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from pathlib import Path

import numpy as np
import torch

from benchmarks import records
from benchmarks.vectors import Domain, adapt, principal_components

SITES = ("amazon", "caltech10", "dslr", "webcam")
RESULTS = Path(__file__).parent / "results" / "office.json"
DELTA = 1e-3  # below 1 / n for each of the four; the papers' own row uses it as well
COMPONENTS = 50  # the dimension of the papers' Office row
MANY = 900  # records above which epsilon 1 is tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--service", action="store_true", help="over a curator process with mutual TLS and a ledger")
    records.options(parser, RESULTS, seeds=range(3))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    domains = load(arguments.data_dir / "office_caltech10_surf.npz")
    jobs = [
        _job(domains[source], domains[target], epsilon, seed, service=arguments.service)
        for seed in arguments.seeds
        for source, target in itertools.permutations(SITES, 2)
        for epsilon in ((8.0, 1.0) if len(domains[target].labels) > MANY else (8.0,))
    ]
    records.Rows(RESULTS, arguments.results).run(jobs)


def load(path: Path) -> dict[str, Domain]:
    """The four sites."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: _prepared(name, archive[f"x_{name}"], archive[f"y_{name}"]) for name in SITES}


def _prepared(name: str, counts: np.ndarray, labels: np.ndarray) -> Domain:  # type: ignore[type-arg]
    shares = counts / counts.sum(axis=1, keepdims=True)
    return Domain(name, np.sqrt(shares).astype(np.float32), labels.astype(np.int64))


def _job(source: Domain, target: Domain, epsilon: float, seed: int, *, service: bool) -> records.Job:
    settings = {
        "source": source.name,
        "target": target.name,
        "epsilon": epsilon,
        "delta": DELTA,
        "seed": seed,
        "service": service,
    }
    return settings, functools.partial(_figures, source, target, epsilon, seed, service=service)


def _figures(source: Domain, target: Domain, epsilon: float, seed: int, *, service: bool) -> records.Row:
    extractor = principal_components(source, COMPONENTS)
    scores = adapt(extractor, source, target, epsilon=epsilon, delta=DELTA, seed=seed, service=service)
    truth = torch.from_numpy(target.labels)
    figures = {
        name: 100.0 * float((value.argmax(dim=1) == truth).float().mean())
        for name, value in (
            ("source_only", scores.source_only),
            ("trained_on", scores.trained_on),
            ("accuracy", scores.adapted),
        )
    }
    return figures | {"spent": scores.spent, "records": len(truth)}


if __name__ == "__main__":
    main()
