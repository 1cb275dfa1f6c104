"""Targets made of Cleveland, whose labels are public: how the view of tables with gaps was chosen.

Half of Cleveland is the source. The target is drawn from the other half, with other patients (each column's mean
tilted at random, other class frequencies) and with gaps: a few columns, at random rates, on the same patients or not.
It has as many records as a real hospital. Run by `python -m benchmarks.heart --made`.
"""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.local import released
from benchmarks.records import Job
from benchmarks.vectors import RATE, source_trained, standardised_table, tuned
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.replay import fit as replay
from dpswd.public_client.replay.missing_columns import TableView
from dpswd.public_client.replay.posterior import VIEW_STEPS
from dpswd.public_client.replay.verdict import Fitted
from dpswd.public_client.replay.views import View

if TYPE_CHECKING:
    from benchmarks.heart import Hospital

RESULTS = Path(__file__).parent / "results" / "heart-made.json"
_TILT, _CLASSES = 0.4, 0.7  # deviations of the slopes of log weights, per deviation of a column and for the classes
_MOST_GAPS = 4  # columns with gaps; none in every fifth target
_LEAST_RATE = 0.2
_TWO_CLASSES = 2


@dataclass(frozen=True)
class Made:
    """A made target.

    Attributes:
        source: half of Cleveland.
        target: drawn from the other half, as a hospital of its own.
        rates: (columns,) of gaps.
    """

    source: Hospital
    target: Hospital
    rates: np.ndarray  # type: ignore[type-arg]


def made(cleveland: Hospital, count: int, seed: int) -> Made:
    """One target of `count` records."""
    from benchmarks.heart import with_flags

    generator = np.random.default_rng(seed)
    order = generator.permutation(len(cleveland.labels))
    rest, held = order[: len(order) // 2], order[len(order) // 2 :]
    columns = len(cleveland.fill)
    x = cleveland.records[:, :columns]
    z = (x[held] - x.mean(axis=0)) / x.std(axis=0)
    slopes = generator.normal(scale=_TILT, size=columns)
    often = generator.normal(scale=_CLASSES)
    weights = np.exp(z @ slopes + often * cleveland.labels[held])
    drawn = held[generator.choice(len(held), count, p=weights / weights.sum())]
    rates = np.zeros(columns)
    gaps = generator.choice(columns, generator.integers(_MOST_GAPS + 1), replace=False)
    rates[gaps] = generator.uniform(_LEAST_RATE, 1.0, size=len(gaps))
    uniforms = generator.random((count, 1 if generator.random() < 0.5 else columns))
    missing = np.broadcast_to(uniforms < rates, (count, columns))
    return Made(
        replace(
            cleveland, records=cleveland.records[rest], labels=cleveland.labels[rest], missing=cleveland.missing[rest]
        ),
        replace(
            cleveland,
            records=with_flags(np.where(missing, cleveland.fill, x[drawn]), missing),
            labels=cleveland.labels[drawn],
            missing=missing,
        ),
        rates,
    )


def job(source: Hospital, target: Hospital, epsilon: float, seed: int, arguments: argparse.Namespace) -> Job:  # noqa: ARG001 - no service
    """A made target of the real one's size; of the real one nothing but its size is used."""
    count = len(target.labels)
    settings = {"records": count, "columns": len(target.fill), "epsilon": epsilon, "seed": seed}
    return settings, functools.partial(_measured, source, count, epsilon, seed)


def _measured(source: Hospital, count: int, epsilon: float, seed: int) -> dict[str, Any] | None:
    from benchmarks.heart import DELTA, FLAG, auc, decision

    task = made(source, count, 1000 * seed + count)
    if len(np.unique(task.target.labels)) < _TWO_CLASSES:
        return None
    extractor = standardised_table(task.source, FLAG)
    before, _ = source_trained(extractor, task.source, seed)
    data, patients = task.source.labelled(), torch.from_numpy(task.target.records)
    with torch.no_grad():
        residuals = released(extractor(patients), extractor(data.images), epsilon=epsilon, delta=DELTA)
    identity = TableView(torch.from_numpy(task.target.fill))

    def score(view: View | None) -> float:
        classifier = before if view is None else tuned(extractor, before, view, data, seed)[1]
        with torch.no_grad():
            return auc(decision(classifier(extractor(patients))), task.target.labels)

    def fit_view(view: View | None) -> Fitted:
        with reporting("", VIEW_STEPS, shown=False) as bar:
            return replay.find_view(
                extractor, data, residuals,
                learning_rate=RATE, generator=torch.Generator().manual_seed(seed), bar=bar, view=view,
            )  # fmt: skip

    gaps, gains = fit_view(identity), fit_view(None)
    assert isinstance(gaps.view, TableView)
    true = TableView(identity.fill)
    true.rates.copy_(torch.from_numpy(task.rates))
    rates = gaps.view.rates.numpy()
    return {
        "with_gaps": int((task.rates > 0).sum()),
        "found": int(((rates > 0) & (task.rates > 0)).sum()),
        "off": float(np.abs(rates - task.rates).mean()),
        "false": int(((rates > 0) & (task.rates == 0)).sum()),
        "source_only": score(None),
        "gaps": score(gaps.view if gaps.convinced else None),
        "gains": score(gains.view if gains.convinced else None),
        "known": score(true if task.rates.any() else None),
    }
