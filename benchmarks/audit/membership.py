"""Membership inference on what is delivered: was one odd record among few, by the file alone?

    python -m benchmarks.audit.membership run [--trials 100] [--seeds 0] [--results FILE]
    python -m benchmarks.audit.membership summary [--results FILE]

A hospital of 40 records holds, or does not hold, one record of a category and a class that no other has; neighbours
differ in this replaced record. A generator is fitted, or a model adapted (`Statistics`), in both worlds. The attacker
sees the file alone: of a generator the shares of the odd category and class among 2,000 drawn rows, of a model its
scores at the odd record and at a usual one. **Likelihood-ratio attack** (Carlini and others, S&P 2022): half of the
trials are shadows, whose statistics give a normal law for each world; the ratio of the two is the score of the other
half. Of these a part chooses side and threshold, the rest give Clopper-Pearson limits and from these a lower bound on
epsilon that holds with 95% (`benchmarks.audit.bounds`). The claim, epsilon 1, must not be refuted; that of a curator
without noise must be. Seeds draw the noise.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import multivariate_normal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.audit.bounds import evidence
from benchmarks.audit.faults import FAULTLESS, fault
from benchmarks.labelled import HeldRecords, Site
from benchmarks.records import Row, Rows, options, read, table
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.generation.schema import Column, Schema
from dpswd.public_client.generation.tabular import Tabular
from dpswd.public_client.methods import Statistics

RESULTS = Path(__file__).parents[1] / "results" / "audit-membership.json"
RECORDS, ROWS, EPSILON, DELTA, ALPHA = 40, 2000, 1.0, 1e-3, 0.05
ODD = 2.0
SCHEMA = Schema(
    (
        Column(name="first", kind="categorical", values=(0.0, 1.0, ODD)),
        Column(name="second", kind="categorical", values=(0.0, 1.0, ODD)),
    )
)
METHOD = Tabular(schema=SCHEMA, fitted_rows=500, updates=30)
BROKEN = "noise left out"
_SPREAD = 1e-6  # added to variances: a statistic may be the same in every shadow

Values = npt.NDArray[np.float64]


def world(member: bool, seed: int) -> HeldRecords:
    """The curator of the world with the odd record, or of the one without; the noise is this seed's."""
    values = (np.arange(2 * RECORDS).reshape(RECORDS, 2) // 3 % 2).astype(np.float32)
    labels = np.zeros(RECORDS, dtype=np.int64)
    if member:
        values[-1], labels[-1] = ODD, 1
    return HeldRecords(Site(values, labels), classes=2, delta=DELTA, seed=seed)


def of_generator(curator: HeldRecords) -> Values:
    """Shares of the odd category and of the odd class in what a generator draws."""
    plan, _ = plan_generator(curator, METHOD, epsilon=EPSILON)
    drawn, kinds = generate(curator, plan, seed=0, device="cpu", progress=False).sample(ROWS, seed=1)
    return np.array([float((drawn == ODD).double().mean()), float((kinds == 1).double().mean())])


def of_model(curator: HeldRecords) -> Values:
    """By how much an adapted model scores the odd class above the other, at the odd record and at a usual one."""
    hospital, classifier = Hospital(curator), nn.Linear(2, 2)
    source = torch.tensor([[0.0, 1.0], [1.0, 0.0], [ODD, ODD], [1.0, 1.0]]), torch.tensor([0, 0, 1, 0])
    torch.manual_seed(0)
    model = DomainAdaptation(
        nn.Identity(), classifier, hospital=hospital, plan=hospital.plan(Statistics(), epsilon=EPSILON), seed=0,
        device="cpu", source_epochs=0,
    )  # fmt: skip
    model.fit(DataLoader(TensorDataset(*source), batch_size=4), progress=False)
    with torch.no_grad():
        scores = model.model().classifier(torch.tensor([[ODD, ODD], [0.0, 1.0]])).double()
    return (scores[:, 1] - scores[:, 0]).numpy()


ARTEFACTS: Mapping[str, Callable[[HeldRecords], Values]] = {"generator": of_generator, "adapted model": of_model}


def ratios(outside: Values, inside: Values) -> tuple[Values, Values]:
    """Log-likelihood ratios of the later half of each world's statistics (N, s), by normal laws of the earlier half."""
    half = len(outside) // 2
    laws = [
        multivariate_normal(own[:half].mean(axis=0), np.cov(own[:half].T) + _SPREAD * np.eye(own.shape[1]))
        for own in (outside, inside)
    ]
    return tuple(np.atleast_1d(laws[1].logpdf(own[half:]) - laws[0].logpdf(own[half:])) for own in (outside, inside))


def measured(artefact: str, curator: str, *, trials: int, seed: int) -> Row:
    """The least epsilon that so many files of each world prove, half of them as shadows."""
    numbers = range(seed * trials, (seed + 1) * trials)
    with fault(curator):
        seen = [
            np.stack([ARTEFACTS[artefact](world(member, 2 * number + member)) for number in numbers])
            for member in (False, True)
        ]
    return {"at_least": evidence(*ratios(*seen), delta=DELTA, alpha=ALPHA).epsilon}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--trials", type=int, default=100, help="files of each world")
    options(parser, RESULTS, seeds=(0,))
    asked = parser.parse_args()
    if asked.command == "summary":
        heads = {name: f"{{{name}}}" for name in ("artefact", "curator", "trials")}
        print(table(read(asked.results or RESULTS), heads | {"at least": "{at_least:.2f}"}))
        return
    torch.set_num_threads(1)
    every = [
        (artefact, curator, {"trials": asked.trials, "seed": seed})
        for seed in asked.seeds
        for artefact in ARTEFACTS
        for curator in (FAULTLESS, BROKEN)
    ]
    jobs = [
        ({"artefact": artefact, "curator": curator, **more}, functools.partial(measured, artefact, curator, **more))
        for artefact, curator, more in every
    ]
    rows = Rows(RESULTS, asked.results).run(jobs)
    if any((row["at_least"] > EPSILON) != (row["curator"] == BROKEN) for row in rows):
        raise SystemExit("the honest claim is refuted, or the broken curator was not caught")


if __name__ == "__main__":
    main()
