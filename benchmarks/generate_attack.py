"""Membership inference on generators: does the drawn table tell whether one odd record was among few?

    python -m benchmarks.generate_attack [--trials 200] [--epsilon 2] [--seeds 0]

A hospital of 40 records holds, or does not hold, one record of a category and a class that no other has. Generators are
fitted in both worlds; the attacker sees a generator alone, draws 2,000 rows, and scores it by how many have the odd
category, and by the odd class's share. Half of the trials choose the score's side and threshold, the other half give
Clopper-Pearson limits and from these a lower bound on epsilon that holds with 95% (`benchmarks.audit.bounds`). The
claim must not be refuted; a curator that adds a tenth of the noise must be. Neighbours differ in one replaced record.
Seeds draw the noise.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.audit.bounds import Evidence, evidence
from benchmarks.labelled import HeldRecords, Site
from benchmarks.records import Row, Rows, options
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.generation.schema import Column, Schema
from dpswd.public_client.generation.tabular import Tabular
from dpswd.shared.core.mechanisms.class_statistics import mechanism as class_statistics

RESULTS = Path(__file__).parent / "results" / "generate-attack.json"
RECORDS, ROWS, DELTA, ALPHA = 40, 2000, 1e-3, 0.05
ODD = 2.0
SCHEMA = Schema(
    (
        Column(name="first", kind="categorical", values=(0.0, 1.0, ODD)),
        Column(name="second", kind="categorical", values=(0.0, 1.0, ODD)),
    )
)
METHOD = Tabular(schema=SCHEMA, fitted_rows=500, updates=30)
BROKEN = 10.0
"""By what the broken curator divides its noise."""


def fitted(member: bool, seed: int, *, epsilon: float) -> Generator:
    """A generator of the world with the odd record, or of the one without; the noise is this seed's."""
    values = (np.arange(2 * RECORDS).reshape(RECORDS, 2) // 3 % 2).astype(np.float32)
    labels = np.zeros(RECORDS, dtype=np.int64)
    if member:
        values[-1], labels[-1] = ODD, 1
    curator = HeldRecords(Site(values, labels), classes=2, delta=DELTA, seed=seed)
    plan, _ = plan_generator(curator, METHOD, epsilon=epsilon)
    return generate(curator, plan, seed=0, device="cpu", progress=False)


def score(generator: Generator) -> float:
    """Larger is more like the world with the odd record; of the generator's own numbers and rows alone."""
    drawn, kinds = generator.sample(ROWS, seed=1)
    return float((drawn == ODD).double().mean() + (kinds == 1).double().mean())


@contextmanager
def too_little_noise() -> Iterator[None]:
    """Within, curators add a tenth of the noise that was declared."""
    release = class_statistics.release_finely

    def fewer(signal: torch.Tensor, *, sigma: float, **options: object) -> object:
        return release(signal, sigma=sigma / BROKEN, **options)  # type: ignore[arg-type]

    with mock.patch.object(class_statistics, "release_finely", fewer):
        yield


def attacked(trials: int, *, epsilon: float, seed: int) -> Evidence:
    """What so many generators of each world prove."""
    numbers = range(seed * trials, (seed + 1) * trials)
    scores: list[npt.NDArray[np.float64]] = [
        np.array([score(fitted(member, 2 * number + member, epsilon=epsilon)) for number in numbers])
        for member in (False, True)
    ]
    return evidence(*scores, delta=DELTA, alpha=ALPHA)


def measured(curator: str, *, trials: int, epsilon: float, seed: int) -> Row:
    """The least epsilon that an honest or a broken curator's generators prove."""
    with too_little_noise() if curator == "broken" else nullcontext():
        return {"at_least": attacked(trials, epsilon=epsilon, seed=seed).epsilon}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="generators of each world")
    parser.add_argument("--epsilon", type=float, default=2.0)
    options(parser, RESULTS, seeds=(0,))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    every = [
        (curator, {"trials": arguments.trials, "epsilon": arguments.epsilon, "seed": seed})
        for seed in arguments.seeds
        for curator in ("honest", "broken")
    ]
    jobs = [({"curator": curator, **asked}, functools.partial(measured, curator, **asked)) for curator, asked in every]
    rows = Rows(RESULTS, arguments.results).run(jobs)
    for row in rows:
        print(f"claimed {row['epsilon']:g}: {row['curator']} at least {row['at_least']:.2f} (seed {row['seed']})")
    if any((row["at_least"] > row["epsilon"]) != (row["curator"] == "broken") for row in rows):
        raise SystemExit("the honest claim is refuted, or the broken curator was not caught")


if __name__ == "__main__":
    main()
