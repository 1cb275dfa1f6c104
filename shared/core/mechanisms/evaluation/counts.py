"""Counts of a model's predictions on labelled records, noised: accuracy, confusion matrix, calibration.

docs/privacy/evaluation.md derives the sensitivities. Sums are kept in exact integers: counts that are equal for two
neighbouring data sets are equal to the last bit, whatever the order, the chunks or the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import LabelArray
from dpswd.shared.core.mechanisms.linear import Integers
from dpswd.shared.core.noise.clipping import neutralise
from dpswd.shared.core.noise.noise import GridArray, Integer, NoiseSource, grid_step, release_on_grid
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.core.wire.payloads import MessagePayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

CONFIDENCE_WEIGHT = 0.25
"""rho: the place of a confidence in its bin, -1/2 to 1/2, is released times this. The place is needed to a few per cent
of a bin's width only, so a small weight costs little precision and nearly no sensitivity."""
LARGEST_SCORE = 1e4
"""Scores are cut here: a softmax of larger ones is 0 or 1 in any case."""
PLACE_UNITS = 1 << 20  # a confidence's place in its bin is a whole number of 2^-20 bins
_LARGEST_INT32 = 2**31 - 1
_LARGEST_EXACT = 2**52  # of a count in steps, in float64
_NOISE_REACH = 2**15  # 16 sigma of noise, in steps


@dataclass(frozen=True, eq=False)
class EvaluationReply(MessagePayload, message=pb.EvaluationReply, field="reply"):
    """What an evaluation releases, in units of records, as int32, or int64 of very many.

    Attributes:
        correct: (M,), noised number of correct predictions of each model. Where the number of labelled records is
            private: of one model (2,), of correct and of wrong ones; of several (M + 1,), half of what each has more
            correct than wrong, and `number_weight(M)` times the number of labelled records.
        confusion: (C, C) noised counts, row the label, column the prediction; None unless declared.
        calibration: (3, B) noised sums: correct, wrong, and a quarter of the confidence's place in its bin; None unless
            declared.
    """

    correct: Annotated[GridArray, Wire(shape=("M",), most=protocol.MAX_CLASSES)]
    confusion: Annotated[GridArray | None, Wire(shape=("C", "C"), most=protocol.MAX_CLASSES**2)]
    calibration: Annotated[GridArray | None, Wire(shape=(3, "B"), most=3 * protocol.MAX_BINS)]


class EvaluationCounter:
    """Counts records chunk by chunk, each by a function of itself alone; see `Accumulator`.

    Args:
        classes: C, at least 2.
        bins: B of the confidence between 1/C and 1; 0 without calibration.
        models: M; of more than one the numbers of correct predictions alone are counted.
    """

    def __init__(self, *, classes: int, bins: int = 0, models: int = 1) -> None:
        if classes < 2 or bins < 0:
            raise InvalidValue(f"counts need at least 2 classes and 0 or more bins; got {classes} and {bins}")
        self._classes = classes
        self._bins = bins
        self._models = models
        self._right: NDArray[np.int64] = np.zeros(models, dtype=np.int64)
        self._labelled: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self.confusion: NDArray[np.int64] = np.zeros((classes, classes), dtype=np.int64)
        """Counts so far; private."""
        self._table: NDArray[np.int64] = np.zeros((2, bins), dtype=np.int64)
        self._places: NDArray[np.int64] = np.zeros(bins, dtype=np.int64)

    def add(self, features: Tensor, labels: LabelArray | None) -> None:
        """Counts a chunk of records.

        Args:
            features: (m, M C) scores, the first model's first, floating point; NaN and infinities count as 0.
            labels: (m,) from 0 to C - 1; `UNLABELLED` records count nowhere.

        Raises:
            InvalidValue: a shape or a label is outside what is allowed; the text names no value.
        """
        assert labels is not None, "offered only where there are labels"
        wide = self._models * self._classes
        if features.dim() != 2 or features.shape != (len(labels), wide) or labels.ndim != 1:
            raise InvalidValue(f"scores {tuple(features.shape)}, labels {labels.shape}; needed: (m, {wide}) and (m,)")
        if len(labels) and not (labels.min() >= UNLABELLED and labels.max() < self._classes):
            raise InvalidValue(f"a label is outside of 0 to {self._classes - 1}")
        # A record without a label adds 0 somewhere: leaving it out would take a time that tells how many there are.
        labelled = (labels != UNLABELLED).astype(np.int64)
        finite = neutralise(features.detach()).to("cpu", torch.float64).clamp(-LARGEST_SCORE, LARGEST_SCORE)
        each = finite.reshape(len(labels), self._models, self._classes).argmax(dim=2).numpy()
        self._right += (each == labels[:, None]).sum(axis=0)
        self._labelled += labelled.sum()
        if self._models > 1:
            return
        predictions = each[:, 0]
        confidences = torch.softmax(finite, dim=1).max(dim=1).values.numpy()
        np.add.at(self.confusion, (labels, predictions), labelled)
        if self._bins:
            bins, places = bin_places(confidences, classes=self._classes, bins=self._bins)
            np.add.at(self._table, ((predictions != labels).astype(np.int64), bins), labelled)
            np.add.at(self._places, bins, places * labelled)

    @property
    def sums(self) -> tuple[Integers, ...]:
        """See `Accumulator`: confusion (C, C), calibration counts (2, B), places (B,), correct (M,), labelled (1,)."""
        return self.confusion, self._table, self._places, self._right, self._labelled


def signals(sums: tuple[Integers, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """What is noised of a counter's sums, private: correct (M,), confusion (C, C) and calibration (3, B)."""
    confusion, table, places, right, _ = sums
    weighed = places * (CONFIDENCE_WEIGHT / PLACE_UNITS)  # a power of two: exact
    return right.astype(np.float64), confusion.astype(np.float64), np.vstack([table, weighed]).astype(np.float64)


def released(
    sums: tuple[Integers, ...],
    *,
    records: int,
    correct_sigma: float,
    confusion_sigma: float,
    calibration_sigma: float,
    noise: NoiseSource,
    partly_labelled: bool = False,
) -> EvaluationReply:
    """Adds noise to a counter's sums.

    Args:
        sums: of all records.
        records: n.
        correct_sigma: of the number of correct predictions.
        confusion_sigma: of each cell; 0: not released.
        calibration_sigma: of each calibration sum; 0: not released.
        noise: where the noise comes from.
        partly_labelled: whether the number of labelled records is private, so that it must follow from the release.

    Raises:
        InvalidValue: a sum could leave the widest integers.
    """
    correct, confusion, calibration = signals(sums)
    most = largest_count(records, models=len(correct), partly_labelled=partly_labelled)

    def noised(signal: NDArray[np.float64], sigma: float) -> GridArray | None:
        if not sigma:
            return None
        integer = count_width(records=most, sigma=sigma)
        return release_on_grid(torch.from_numpy(signal), sigma=sigma, noise=noise, integer=integer)

    if partly_labelled:
        labelled = sums[-1].astype(np.float64)
        several = len(correct) > 1
        more, number = correct - labelled / 2.0, number_weight(len(correct)) * labelled
        correct = np.concatenate([more, number] if several else [correct, labelled - correct])
    first = noised(correct, correct_sigma)
    if first is None:
        raise InvalidValue("correct_sigma is 0; the number of correct predictions is always released with noise")
    return EvaluationReply(first, noised(confusion, confusion_sigma), noised(calibration, calibration_sigma))


def number_weight(models: int) -> float:
    """What the number of labelled records weighs beside M differences of correct and wrong ones: as much as is free.

    A labelled record adds 1/2 or -1/2 to each difference, so that two of them are sqrt(M) apart at most; a record
    without a label adds nothing, and is sqrt(M / 4 + weight^2) from them (docs/privacy/evaluation.md).
    """
    return math.nextafter(math.sqrt(0.75 * models), 0.0)


def bin_places(
    confidences: NDArray[np.float64], *, classes: int, bins: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The bin of each confidence and its place in it.

    Args:
        confidences: (m,), from 1/C to 1 but for rounding.
        classes: C.
        bins: B.

    Returns:
        Bins (m,), 0 to B - 1, and places (m,), -2^19 to 2^19 in units of 2^-20 of a bin's width, 0 in the middle.
    """
    lowest = 1.0 / classes
    scaled = np.clip((confidences - lowest) / (1.0 - lowest), 0.0, 1.0) * bins
    numbers = np.minimum(np.floor(scaled), bins - 1).astype(np.int64)
    places = np.rint((scaled - numbers - 0.5) * PLACE_UNITS).astype(np.int64)
    return numbers, np.clip(places, -PLACE_UNITS // 2, PLACE_UNITS // 2)


def largest_count(records: int, *, models: int, partly_labelled: bool) -> int:
    """What a released number of n records may be at most, without its noise."""
    return math.ceil(records * max(1.0, number_weight(models) if partly_labelled and models > 1 else 1.0))


def count_width(*, records: int, sigma: float) -> Integer:
    """The type that noised counts of n records travel in; a function of public numbers alone.

    Args:
        records: n, or `largest_count` of them.
        sigma: standard deviation of the noise.

    Raises:
        InvalidValue: the counts may leave the integers that float64 holds.
    """
    reach = records / grid_step(sigma) + _NOISE_REACH
    if reach <= _LARGEST_INT32:
        return "int32"
    if reach <= _LARGEST_EXACT:
        return "int64"
    raise InvalidValue(
        f"counts of {records} records do not fit in 52 bits at noise sigma {sigma:g}; records / sigma must stay "
        f"below {2**41 - 16}: use more noise"
    )
