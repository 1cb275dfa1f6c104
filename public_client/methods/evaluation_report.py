"""What an evaluation's release says: post-processing, free.

Everything is linear in the release or projected from it, and every figure comes with what the noise may have done to
it: its law is known exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from scipy.special import ndtri

from dpswd.public_client.methods.evaluation_ratio import Tally
from dpswd.shared.core.errors import InvalidValue, rounded
from dpswd.shared.core.mechanisms.evaluation.counts import CONFIDENCE_WEIGHT, EvaluationReply
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration

Floats = npt.NDArray[np.float64]

_LEVEL = 0.95  # probability that an interval covers its figure
_FEWEST = 3.0
"""A bin whose noisy size is below so many of its own deviations is shown without figures."""


class Interval(NamedTuple):
    """A two-sided 95% interval."""

    low: float
    high: float


@dataclass(frozen=True)
class ReliabilityBin:
    """One bin of the reliability diagram.

    Attributes:
        low: its lowest confidence.
        high: its highest confidence.
        records: noisy number of records in it.
        confidence: their mean confidence; NaN where too few records stand against the noise.
        accuracy: share of correct ones among them; NaN likewise.
        accuracy_error: standard deviation of `accuracy` through the noise alone; NaN likewise.
    """

    low: float
    high: float
    records: float
    confidence: float
    accuracy: float
    accuracy_error: float


@dataclass(frozen=True, eq=False)
class Counts:
    """What one evaluation released, in units of records; see `EvaluationReply`. `wrong` is NaN where it was not."""

    correct: float
    wrong: float
    confusion: Floats | None
    calibration: Floats | None

    @classmethod
    def of(cls, reply: EvaluationReply) -> Counts:
        """The counts of a reply about one model.

        Raises:
            InvalidValue: it is about several.
        """
        confusion, calibration = reply.confusion, reply.calibration
        correct, *wrong = (float(value) for value in reply.correct.to_numpy())
        if len(wrong) > 1:
            raise InvalidValue(f"the release holds {1 + len(wrong)} numbers of correct predictions; 1 was declared")
        return cls(
            correct,
            wrong[0] if wrong else math.nan,
            None if confusion is None else confusion.to_numpy(),
            None if calibration is None else calibration.to_numpy(),
        )


@dataclass(frozen=True, eq=False)
class Report:
    """An evaluated model.

    Attributes:
        records: n.
        accuracy: share of correct predictions among the hospital's labelled records, best linear estimate, clipped to
            [0, 1]; NaN where too few are labelled to tell it from the noise.
        accuracy_interval: 95% interval of that share; the noise is all that is uncertain about it.
        population_interval: 95% interval of the accuracy on further records like these: noise and sampling.
        confusion: (C, C) non-negative counts that add up to `labelled`, row the label; or None.
        confusion_sigma: noise on each cell before the projection.
        reliability: bins; empty where calibration was not released.
        calibration_error: expected calibration error with the noise's share taken off; NaN without calibration.
        noise_floor: calibration error that noise alone would show; figures near it say nothing.
        overconfidence: mean confidence minus accuracy, unbiased; NaN without calibration.
        overconfidence_error: its standard deviation through the noise.
        epsilon: what the evaluation cost alone.
        delta: the data set's delta.
        spent: epsilon that the data set has spent, by its ledger, afterwards.
        remaining: epsilon that is left to this client.
        class_names: in order, where the operator declares them.
        labelled: number of labelled records: n, or what the operator says, or an estimate where that is private, at
            least 1.
        number_public: whether that is no estimate.
    """

    records: int
    accuracy: float
    accuracy_interval: Interval
    population_interval: Interval
    confusion: Floats | None
    confusion_sigma: float
    reliability: tuple[ReliabilityBin, ...]
    calibration_error: float
    noise_floor: float
    overconfidence: float
    overconfidence_error: float
    epsilon: float
    delta: float
    spent: float = math.nan
    remaining: float = math.nan
    class_names: tuple[str, ...] = ()
    labelled: float = math.nan
    number_public: bool = True

    @classmethod
    def of(
        cls, reply: EvaluationReply, *, declared: EvaluationDeclaration, records: int, number: int = 0, **context: Any
    ) -> Report:
        """Reads a release.

        Args:
            reply: from the curator.
            declared: with which noise.
            records: n.
            number: of labelled records, where the operator says it.
            **context: the report's own fields that no release tells: epsilon and all that follow it.

        Raises:
            InvalidValue: the release has not the declared parts or shapes.
        """
        release = Counts.of(reply)
        _check(release, declared)
        labelled = float(records)
        if declared.partly_labelled:
            tally = tally_of(release, declared)
            labelled = min(max(tally.labelled, 1.0), labelled)
        elif number:
            labelled = float(number)
        return cls(
            records=records,
            labelled=labelled,
            number_public=not declared.partly_labelled,
            **(_of_some(tally) if declared.partly_labelled else _of_all(release, declared, labelled)),
            confusion=None if release.confusion is None else nearest_counts(release.confusion, labelled),
            confusion_sigma=declared.confusion_sigma,
            **_calibration(release, declared, labelled),
            **context,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; figures that are not known are null."""
        return _plain_values(self) | {
            "accuracy_interval": list(self.accuracy_interval),
            "population_interval": list(self.population_interval),
            "level": _LEVEL,
            "confusion": None if self.confusion is None else self.confusion.tolist(),
            "reliability": [_plain_values(one) for one in self.reliability],
            "class_names": list(self.class_names),
        }

    def _records(self) -> str:
        if self.labelled == self.records:
            return f"all {self.records} labelled records"
        about = "" if self.number_public else "about "
        return f"the {about}{self.labelled:.0f} labelled ones of {self.records} records"

    def _head(self) -> str:
        if math.isnan(self.accuracy):
            return f"How often the model is right cannot be told: too few of {self.records} records have a label."
        return f"The model is right on {100 * self.accuracy:.1f}% of {self._records()}."

    def __str__(self) -> str:
        """One plain sentence, and then the evidence."""
        intervals = (self.accuracy_interval, self.population_interval)
        narrow, further = (f"{100 * one.low:.1f} to {100 * one.high:.1f}%" for one in intervals)
        lines = [
            self._head(),
            f"  {100 * _LEVEL:.0f}% intervals: {narrow} on these records, {further} on further ones like them",
        ]
        if self.confusion is not None:
            lines.append(f"confusion matrix (row: label), noise {self.confusion_sigma:.3g} on each count:")
            names = self.class_names or tuple(str(i) for i in range(len(self.confusion)))
            wide = max(7, *(len(name) for name in names))
            lines += [
                "  " + name.rjust(wide) + " " + " ".join(f"{count:7.0f}" for count in row)
                for name, row in zip(names, self.confusion, strict=True)
            ]
        if self.reliability:
            lines.append("calibration (confidence: mean confidence, share correct):")
            lines += [f"  {_bin_line(b)}" for b in self.reliability]
            lines.append(
                f"  calibration error {100 * self.calibration_error:.1f} points (noise alone would show "
                f"{100 * self.noise_floor:.1f}); overconfident by {100 * self.overconfidence:+.1f} "
                f"+- {100 * 1.96 * self.overconfidence_error:.1f} points"
            )
        lines.append(f"cost: epsilon {rounded(self.epsilon, up=True)} alone, at delta {self.delta:g}")
        if not math.isnan(self.spent):
            lines.append(
                f"the data set: epsilon {rounded(self.spent, up=True)} spent; left to you: "
                f"{rounded(self.remaining, up=False)}"
            )
        return "\n".join(lines)


def bin_edges(*, classes: int, bins: int) -> NDArray[np.float64]:
    """The edges of the bins, (B + 1,), from 1/C to 1."""
    lowest = 1.0 / classes
    return lowest + (1.0 - lowest) * np.arange(bins + 1) / bins


def _of_all(release: Counts, declared: EvaluationDeclaration, records: float) -> dict[str, Any]:
    """Accuracy and intervals where the number of labelled records is known."""
    correct, variance = best_correct(release, declared, records)
    deviations = float(ndtri(0.5 + _LEVEL / 2.0))
    width, share = deviations * math.sqrt(variance), min(max(correct / records, 0.0), 1.0)
    sampling = max(share * (1.0 - share), 0.25 / records) / records
    spread = deviations * math.sqrt(variance / records**2 + sampling)
    return {
        "accuracy": share,
        "accuracy_interval": _interval(correct / records, width / records),
        "population_interval": _interval(correct / records, spread),
    }


def _of_some(tally: Tally) -> dict[str, Any]:
    """Accuracy and intervals of the labelled ones among records of which some may have no label."""
    deviations = float(ndtri(0.5 + _LEVEL / 2.0))
    return {
        "accuracy": tally.share(),
        "accuracy_interval": Interval(*tally.interval(deviations, sampling=False)),
        "population_interval": Interval(*tally.interval(deviations, sampling=True)),
    }


def tally_of(release: Counts, declared: EvaluationDeclaration) -> Tally:
    """The numbers of correct and of wrong predictions, each from all parts of a release, weighted by their precision.

    Args:
        release: from the curator, of partly labelled records.
        declared: with which noise.
    """
    right, wrong = [(release.correct, declared.correct_sigma**2)], [(release.wrong, declared.correct_sigma**2)]
    if release.confusion is not None:
        trace, square, classes = float(np.trace(release.confusion)), declared.confusion_sigma**2, declared.classes
        right.append((trace, classes * square))
        wrong.append((float(release.confusion.sum()) - trace, (classes**2 - classes) * square))
    if release.calibration is not None:
        variance = declared.bins * declared.calibration_sigma**2
        right.append((float(release.calibration[0].sum()), variance))
        wrong.append((float(release.calibration[1].sum()), variance))
    return Tally(*_weighted(right), *_weighted(wrong))


def _weighted(estimates: list[tuple[float, float]]) -> tuple[float, float]:
    """The best mean of (estimate, variance), and its variance."""
    best = 1.0 / math.fsum(1.0 / variance for _, variance in estimates)
    return best * math.fsum(value / variance for value, variance in estimates), best


def correct_estimates(declared: EvaluationDeclaration) -> list[float]:
    """Variances of the independent estimates of the number of correct predictions, in the order of `best_correct`."""
    classes, bins = declared.classes, declared.bins
    variances = [declared.correct_sigma**2]
    if declared.confusion_sigma:
        square = declared.confusion_sigma**2
        variances += [classes * square, (classes**2 - classes) * square]
    if declared.calibration_sigma:
        variances += [bins * declared.calibration_sigma**2] * 2
    return variances


def correct_variance(declared: EvaluationDeclaration) -> float:
    """Variance of the best linear estimate of the number of correct predictions."""
    return 1.0 / math.fsum(1.0 / variance for variance in correct_estimates(declared))


def best_correct(release: Counts, declared: EvaluationDeclaration, records: float) -> tuple[float, float]:
    """The number of correct predictions from all parts of a release, weighted by their precision.

    The parts are independent and unbiased: the count itself; the confusion matrix's diagonal, and n minus the rest of
    it; the calibration table's correct, and n minus its wrong.

    Args:
        release: from the curator.
        declared: with which noise.
        records: labelled ones.

    Returns:
        The estimate and its variance.
    """
    estimates = [release.correct]
    if release.confusion is not None:
        trace = float(np.trace(release.confusion))
        estimates += [trace, records - (float(release.confusion.sum()) - trace)]
    if release.calibration is not None:
        estimates += [float(release.calibration[0].sum()), records - float(release.calibration[1].sum())]
    return _weighted(list(zip(estimates, correct_estimates(declared), strict=True)))


def nearest_counts(noisy: Floats, total: float) -> Floats:
    """The closest matrix of non-negative numbers with a given sum (Euclidean projection on a simplex).

    Args:
        noisy: any shape.
        total: positive.

    Returns:
        The same shape.
    """
    flat = np.sort(noisy.ravel())[::-1]
    excess = (np.cumsum(flat) - total) / np.arange(1, flat.size + 1)
    shift = excess[np.nonzero(flat > excess)[0][-1]]
    result: Floats = np.maximum(noisy - shift, 0.0)
    return result


def _calibration(release: Counts, declared: EvaluationDeclaration, records: float) -> dict[str, Any]:
    """The report's fields about calibration."""
    if release.calibration is None:
        unknown = ("calibration_error", "noise_floor", "overconfidence", "overconfidence_error")
        return {"reliability": ()} | dict.fromkeys(unknown, math.nan)
    sigma, edges = declared.calibration_sigma, bin_edges(classes=declared.classes, bins=declared.bins)
    right, wrong, places = release.calibration
    middle, width = (edges[1:] + edges[:-1]) / 2.0, edges[1] - edges[0]
    size = right + wrong
    confidence_sum = middle * size + places * width / CONFIDENCE_WEIGHT
    # Confidence minus correctness, summed over a bin's records: its noise is linear in the three sums.
    gap = confidence_sum - right
    deviation = sigma * np.sqrt((1.0 - middle) ** 2 + middle**2 + (width / CONFIDENCE_WEIGHT) ** 2)
    counts = nearest_counts(size, records)  # for the reader: no negative ones, and they add up
    shown = []
    for b in range(declared.bins):
        enough = size[b] > _FEWEST * math.sqrt(2.0) * sigma
        accuracy = min(max(right[b] / size[b], 0.0), 1.0) if enough else math.nan
        error = sigma * math.hypot(1.0 - accuracy, accuracy) / size[b] if enough else math.nan
        mean = min(max(confidence_sum[b] / size[b], edges[b]), edges[b + 1]) if enough else math.nan
        shown.append(ReliabilityBin(float(edges[b]), float(edges[b + 1]), float(counts[b]), mean, accuracy, error))
    return {
        "reliability": tuple(shown),
        "calibration_error": float(np.sqrt(np.maximum(gap**2 - deviation**2, 0.0)).sum() / records),
        "noise_floor": float(math.sqrt(2.0 / math.pi) * deviation.sum() / records),
        "overconfidence": float(gap.sum() / records),
        "overconfidence_error": float(math.sqrt((deviation**2).sum()) / records),
    }


def _check(release: Counts, declared: EvaluationDeclaration) -> None:
    held, needed = 1 + (not math.isnan(release.wrong)), 1 + declared.partly_labelled
    if held != needed:
        raise InvalidValue(f"the release holds {held} numbers of correct predictions; {needed} was declared")
    expected = (declared.classes, declared.classes) if declared.confusion_sigma else None
    shape = None if release.confusion is None else release.confusion.shape
    table = (3, declared.bins) if declared.calibration_sigma else None
    other = None if release.calibration is None else release.calibration.shape
    if expected != shape or table != other:
        raise InvalidValue(
            f"the release holds a confusion matrix {shape} and calibration sums {other}, but {expected} and {table} "
            "were declared"
        )


def _interval(middle: float, half: float) -> Interval:
    return Interval(min(max(middle - half, 0.0), 1.0), min(max(middle + half, 0.0), 1.0))


def _bin_line(one: ReliabilityBin) -> str:
    head = f"{one.low:.2f} to {one.high:.2f}  {one.records:7.0f} records  "
    if math.isnan(one.accuracy):
        return head + "too few against the noise"
    return head + f"{one.confidence:.2f}  {one.accuracy:.2f} +- {1.96 * one.accuracy_error:.2f}"


def _plain_values(figures: Report | ReliabilityBin) -> dict[str, Any]:
    """The fields by name; null for what is not known."""
    values = {own.name: getattr(figures, own.name) for own in fields(figures)}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}
