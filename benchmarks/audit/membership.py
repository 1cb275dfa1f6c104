"""Inference from what is delivered: is one odd record among few, and what is it like, by the file alone?

    python -m benchmarks.audit.membership run [--trials 100] [--seeds 0] [--results FILE]
    python -m benchmarks.audit.membership summary [--results FILE]

Two worlds differ in one replaced record. **Membership**: it is odd in all that is read of it, or as others are.
**Attribute**: it is odd in one column, which the attacker knows, and in the last column and its class, or not. A
generator is fitted, or a model adapted, in both worlds: by `Statistics`, by the ladder's rungs "glance" and "layers"
(`Normalisation`), "labels" (`Recalibrate`) and, of 600 records, "views" (`Replay`, along directions that are the same
in all trials, for they are public). The attacker sees the file alone: of a generator the shares
of the odd category and class among 2,000 drawn rows, of a model its scores at the odd record and at usual ones.
**Likelihood-ratio attack** (Carlini and others, S&P 2022): half of the trials are shadows, whose statistics give a
normal law for each world; the ratio of the two is the score of the other half. Of these a part chooses side and
threshold, the rest give Clopper-Pearson limits and from these a lower bound on epsilon that holds with 95%
(`benchmarks.audit.bounds`). The claim, epsilon 1, must not be refuted; that of a curator without noise must be. Seeds
draw the noise.
"""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.audit.bounds import evidence
from benchmarks.audit.faults import FAULTLESS, fault
from benchmarks.labelled import HeldRecords, Site
from benchmarks.records import Row, Rows, options, read
from benchmarks.records import table as lines
from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.generation.generating import generate, plan_generator
from dpswd.public_client.generation.schema import Column, Schema
from dpswd.public_client.generation.tabular import Tabular
from dpswd.public_client.methods import Normalisation, Recalibrate, Replay, Statistics
from dpswd.public_client.testing.artefacts import ATTRIBUTE, MEMBERSHIP, Values, ratios
from dpswd.public_client.training.method import Method

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

_COLUMNS, _SITE, _FAR = 4, 200, 3.0  # of the rungs' tables: columns, the hospital's records, the odd record's values


def world(secret: str, holds: bool, seed: int) -> HeldRecords:
    """A curator of few records of two columns in one of the two worlds; the noise is this seed's."""
    values = (np.arange(2 * RECORDS).reshape(RECORDS, 2) // 3 % 2).astype(np.float32)
    labels = np.zeros(RECORDS, dtype=np.int64)
    if secret == ATTRIBUTE:
        values[-1, 0] = ODD
    if holds:
        values[-1], labels[-1] = ODD, 1
    return HeldRecords(Site(values, labels), classes=2, delta=DELTA, seed=seed)


def of_generator(secret: str, holds: bool, seed: int) -> Values:
    """Shares of the odd category and of the odd class in what a generator draws."""
    curator = world(secret, holds, seed)
    plan, _ = plan_generator(curator, METHOD, epsilon=EPSILON)
    drawn, kinds = generate(curator, plan, seed=0, device="cpu", progress=False).sample(ROWS, seed=1)
    return np.array([float((drawn == ODD).double().mean()), float((kinds == 1).double().mean())])


def of_statistics(secret: str, holds: bool, seed: int) -> Values:
    """By how much an adapted head scores the odd class above the other, at the odd record and at a usual one."""
    source = torch.tensor([[0.0, 1.0], [1.0, 0.0], [ODD, ODD], [1.0, 1.0]]), torch.tensor([0, 0, 1, 0])
    model = nn.Identity(), nn.Linear(2, 2)
    return scored(Statistics(), world(secret, holds, seed), model, source, torch.tensor([[ODD, ODD], [0.0, 1.0]]))


def table(seed: int, records: int, moved: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Records (n, 4) of two classes, all columns moved by as much, and their classes."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(records) < 0.5 + 0.2 * moved).astype(np.int64)
    values = rng.normal(moved, 1.0, (records, _COLUMNS)).astype(np.float32)
    values[:, 0] += 2.0 * labels
    return torch.from_numpy(values), torch.from_numpy(labels)


@functools.cache
def trained() -> tuple[nn.Module, nn.Module]:
    """A team's extractor with a layer to normalise, and its classifier."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_COLUMNS, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 2)
    whole, (values, labels) = nn.Sequential(*model), table(1, 600, 0.0)
    optimizer = torch.optim.Adam(whole.parameters(), 1e-2)
    for _ in range(300):
        optimizer.zero_grad()
        functional.cross_entropy(whole(values), labels).backward()
        optimizer.step()
    whole.eval()
    return model


class SameDirections(HeldRecords):
    """The noise has a seed of its own, and directions, which are public, are the same each time."""

    def __init__(self, site: Site, *, classes: int, delta: float, seed: int) -> None:
        super().__init__(site, classes=classes, delta=delta, seed=seed)
        self._seeds = bytes


def of_rung(
    secret: str, holds: bool, seed: int, *, method: Method, records: int = _SITE, moved: float = 1.5,
    kind: type[HeldRecords] = HeldRecords,
) -> Values:  # fmt: skip
    """The same of a network that a rung adapts to a hospital whose columns and class frequencies have moved."""
    values, labels = table(2, records, moved)
    values[-1], labels[-1] = _FAR if holds else -_FAR, int(holds)
    if secret == ATTRIBUTE:
        values[-1, :-1] = _FAR
    curator = kind(Site(values.numpy(), labels.numpy()), classes=2, delta=DELTA, seed=seed)
    looked = torch.full((3, _COLUMNS), _FAR) * torch.tensor([[1.0], [-1.0], [0.0]])
    return scored(method, curator, copy.deepcopy(trained()), table(1, 600, 0.0), looked)


def scored(
    method: Method, curator: HeldRecords, model: tuple[nn.Module, nn.Module],
    source: tuple[torch.Tensor, torch.Tensor], looked: torch.Tensor,
) -> Values:  # fmt: skip
    """By how much the adapted model scores class 1 above class 0, at the records that are looked at."""
    hospital, (extractor, classifier) = Hospital(curator), model
    plan = hospital.plan(method, epsilon=EPSILON, extractor=extractor, classifier=classifier)
    torch.manual_seed(0)
    adaptation = DomainAdaptation(*model, hospital=hospital, plan=plan, seed=0, device="cpu", source_epochs=0)
    adaptation.fit(DataLoader(TensorDataset(*source), batch_size=64), progress=False)
    adapted = adaptation.model()
    with torch.no_grad():
        scores = adapted.classifier(adapted.extractor(looked)).double()
    return (scores[:, 1] - scores[:, 0]).numpy()


ARTEFACTS: Mapping[str, Callable[[str, bool, int], Values]] = {
    "generator": of_generator,
    "statistics": of_statistics,
    "glance and layers": functools.partial(of_rung, method=Normalisation(asks="all")),
    "labels": functools.partial(of_rung, method=Recalibrate()),
    "views": functools.partial(
        of_rung,
        method=Replay(directions=60, tuning_steps=60, source_records=600),
        records=600,
        moved=2.0,
        kind=SameDirections,
    ),
}


def measured(artefact: str, secret: str, curator: str, *, trials: int, seed: int) -> Row:
    """The least epsilon that so many files of each world prove, half of them as shadows."""
    numbers = range(seed * trials, (seed + 1) * trials)
    with fault(curator):
        seen = [
            np.stack([ARTEFACTS[artefact](secret, holds, 2 * number + holds) for number in numbers])
            for holds in (False, True)
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
        heads = {name: f"{{{name}}}" for name in ("artefact", "secret", "curator", "trials")}
        print(lines(read(asked.results or RESULTS), heads | {"at least": "{at_least:.2f}"}))
        return
    torch.set_num_threads(1)
    every = [
        (artefact, secret, curator, {"trials": asked.trials, "seed": seed})
        for seed in asked.seeds
        for artefact in ARTEFACTS
        for secret in (MEMBERSHIP, ATTRIBUTE)
        for curator in (FAULTLESS, BROKEN)
    ]
    jobs = [
        (
            {"artefact": artefact, "secret": secret, "curator": curator, **more},
            functools.partial(measured, artefact, secret, curator, **more),
        )
        for artefact, secret, curator, more in every
    ]
    rows = Rows(RESULTS, asked.results).run(jobs)
    if any((row["at_least"] > EPSILON) != (row["curator"] == BROKEN) for row in rows):
        raise SystemExit("the honest claim is refuted, or the broken curator was not caught")


if __name__ == "__main__":
    main()
