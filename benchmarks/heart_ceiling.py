"""What adaptation could reach on heart disease if the targets were known exactly; no noise, no privacy.

Each limit gives the client one kind of knowledge that no release has more of (`LIMITS`), changes the source by it, and
tunes the source-only classifier as the control is tuned. The last two are no adaptation: they learn from the target's
labels. Run by `python -m benchmarks.heart --ceiling`.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from benchmarks.records import Job
from benchmarks.vectors import source_trained, standardised_table, tuned
from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.replay.missing_columns import TableView
from dpswd.public_client.replay.views import FeatureView, View

if TYPE_CHECKING:
    from benchmarks.heart import Hospital

RESULTS = Path(__file__).parent / "results" / "heart-ceiling.json"
Values = npt.NDArray[np.float64]

LIMITS = {
    "trained_on": "control: as long, no knowledge",
    "marginals": "each column's mean and deviation",
    "classes": "class frequencies",
    "both": "both",
    "monotone": "each column's whole distribution (monotone maps)",
    "coral": "means and covariances (CORAL)",
    "rates": "which columns have gaps, and how often",
    "gaps": "every patient's pattern of gaps",
    "gaps_labels": "the same, learned from labels instead of scores",
    "labels": "the target's labels: logistic regression, of values and flags, cross-validated, at its best penalty",
    "labels_seen": "the same on the very patients it learned from",
}
"""By name, what each limit knows."""
_REPEATED = 16  # resampled source records for each source record
_FOLDS = 10
_WEIGHTS = (0.001, 0.01, 0.1, 1.0, 10.0)  # of the labels against the penalty


class _Patterns(View):
    """Source records with the gaps of target patients that are drawn at random."""

    tunes_extractor = False

    def __init__(self, fill: Tensor, missing: Tensor, keeps_scores: bool) -> None:
        super().__init__()
        self._fill, self._missing, self.keeps_scores = fill, missing, keeps_scores

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        missing = self._missing[torch.randint(len(self._missing), (len(records),), generator=generator)]
        with torch.no_grad():
            values = torch.where(missing, self._fill, records[:, : len(self._fill)])
            features: Tensor = extractor(torch.cat((values, missing.to(values)), dim=1))
        return features


def job(source: Hospital, target: Hospital, epsilon: float, seed: int, arguments: argparse.Namespace) -> Job:  # noqa: ARG001 - no release is made
    """One target's limits."""
    settings = {"target": target.name, "columns": len(target.fill), "seed": seed}
    return settings, functools.partial(limits, source, target, seed)


def limits(source: Hospital, target: Hospital, seed: int) -> dict[str, float]:
    """AUC under each limit and of the source-only classifier, in percent."""
    from benchmarks.heart import FLAG, auc, decision, with_flags

    extractor = standardised_table(source, FLAG)
    columns = len(target.fill)
    before, _ = source_trained(extractor, source, seed)

    def score(classifier: nn.Module) -> float:
        with torch.no_grad():
            return auc(decision(classifier(extractor(torch.from_numpy(target.records)))), target.labels)

    def after(view: View, data: Labelled) -> float:
        return score(tuned(extractor, before, view, data, seed)[1])

    same = FeatureView(torch.ones(before.in_features))
    fill, missing = torch.from_numpy(target.fill), torch.from_numpy(target.missing)
    rates = TableView(fill)
    rates.rates.copy_(missing.float().mean(dim=0))
    even = np.ones(len(source.labels))
    weights = _class_weights(source, target)
    x, y = (site.records[:, :columns].astype(np.float64) for site in (source, target))
    mapped: dict[str, tuple[Values, Values]] = {
        "trained_on": (x, even),
        "marginals": (_affine(x, y, even), even),
        "classes": (x, weights),
        "both": (_affine(x, y, weights), weights),
        "monotone": (_monotone(x, y), even),
        "coral": (_coral(x, y), even),
    }
    figures = {
        name: after(same, _resampled(with_flags(values, np.zeros(values.shape, bool)), source, share, seed))
        for name, (values, share) in mapped.items()
    }
    return {
        "source_only": score(before),
        **figures,
        "rates": after(rates, source.labelled()),
        "gaps": after(_Patterns(fill, missing, keeps_scores=True), source.labelled()),
        "gaps_labels": after(_Patterns(fill, missing, keeps_scores=False), source.labelled()),
        "labels": max(auc(_out_of_fold(target, weight, seed), target.labels) for weight in _WEIGHTS),
        "labels_seen": max(auc(_fitted(target, weight), target.labels) for weight in _WEIGHTS),
    }


def _class_weights(source: Hospital, target: Hospital) -> Values:
    """(m,) of source records, so that the classes are as frequent as at the target."""
    shares = [np.bincount(site.labels, minlength=2) / len(site.labels) for site in (source, target)]
    return np.asarray((shares[1] / shares[0])[source.labels], dtype=np.float64)


def _resampled(values: npt.NDArray[np.float32], source: Hospital, weights: Values, seed: int) -> Labelled:
    """Records drawn by their weights; all of them, once, where the weights are even."""
    chosen = np.arange(len(values))
    if weights.std() > 0.0:
        generator = np.random.default_rng(seed)
        chosen = generator.choice(chosen, _REPEATED * len(values), p=weights / weights.sum())
    return Labelled(torch.from_numpy(values[chosen]), torch.from_numpy(source.labels[chosen]))


def _affine(x: Values, y: Values, weights: Values) -> Values:
    """Columns of x with the means and deviations of y's, under weights."""
    mean = np.average(x, axis=0, weights=weights)
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
    return np.asarray((x - mean) / deviation * y.std(axis=0) + y.mean(axis=0))


def _monotone(x: Values, y: Values) -> Values:
    """Columns of x with the distributions of y's: each value becomes the mean of y over that value's levels."""
    columns = []
    levels = (np.arange(len(x)) + 0.5) / len(x)
    for own, other in zip(x.T, y.T, strict=True):
        mapped = np.quantile(other, levels)[np.argsort(np.argsort(own, kind="stable"), kind="stable")]
        for value in np.unique(own):
            mapped[own == value] = mapped[own == value].mean()
        columns.append(mapped)
    return np.stack(columns, axis=1)


def _coral(x: Values, y: Values) -> Values:
    """Records with the mean and the covariance of y (Sun, Feng and Saenko, AAAI 2016, and the means).

    The published identity (in standardised columns) is added to both covariances, which keeps them invertible where a
    column is missing everywhere.
    """
    scale = x.std(axis=0)
    own, other = (x - x.mean(axis=0)) / scale, (y - y.mean(axis=0)) / scale
    eye = np.eye(x.shape[1])
    whiten, colour = _root(np.cov(own.T) + eye, -0.5), _root(np.cov(other.T) + eye, 0.5)
    return np.asarray((own @ whiten @ colour) * scale + y.mean(axis=0))


def _root(matrix: Values, power: float) -> Values:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * values**power) @ vectors.T)


def _scaled(y: Values) -> Values:
    return np.asarray((y - y.mean(axis=0)) / np.maximum(y.std(axis=0), 1e-9))


def _fitted(target: Hospital, weight: float) -> Values:
    x = _scaled(target.records.astype(np.float64))
    return np.asarray(_regression(weight).fit(x, target.labels).decision_function(x))


def _regression(weight: float) -> LogisticRegression:
    return LogisticRegression(C=weight, max_iter=2000)


def _out_of_fold(target: Hospital, weight: float, seed: int) -> Values:
    """Scores of each patient by a classifier that has not seen the label."""
    scores = np.zeros(len(target.labels))
    folds = StratifiedKFold(min(_FOLDS, int(np.bincount(target.labels).min())), shuffle=True, random_state=seed)
    x = _scaled(target.records.astype(np.float64))  # means and deviations of all: no label is in them
    for rest, left in folds.split(x, target.labels):
        scores[left] = _regression(weight).fit(x[rest], target.labels[rest]).decision_function(x[left])
    return scores
