"""The exact sum of score statistics: whole numbers, whatever the order, the blocks, the threads or the device."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.shared.core.mechanisms.interface import FloatArray, LabelArray
from dpswd.shared.core.mechanisms.linear import Integers
from dpswd.shared.core.mechanisms.score_statistics.geometry import ROUNDED
from dpswd.shared.core.wire.limits import UNLABELLED

LARGEST_SCORE = 1e4
"""Scores are cut here: a softmax of larger differences is 0 or 1 in any case."""
_INSIDE = 1.0 - 2.0**-40  # of the norm, to which a record's part is brought: rounding does not lift it above 1
_VALUES = 1 << 21  # in memory at a time, 16 MiB

Values = npt.NDArray[np.float64]


class ScoreSums:
    """Counts, gradients and squares of the records that were added; see `Accumulator`.

    Args:
        classes: C.
        scale: (d,) of the basis before its clip.
        correction: (C, d) that is added to the scores.
    """

    def __init__(self, *, classes: int, scale: FloatArray, correction: FloatArray) -> None:
        self._scale = scale.astype(np.float64)
        self._correction = correction.astype(np.float64)
        columns = len(scale)
        self._counts: Integers = np.zeros(classes, dtype=np.int64)
        self._gradient: Integers = np.zeros((classes, columns), dtype=np.int64)
        self._square: Integers = np.zeros(columns * (columns + 1) // 2, dtype=np.int64)

    @property
    def sums(self) -> tuple[Integers, ...]:
        """Counts (C,); gradient (C, d) and the square's upper triangle, in units of 2^-20."""
        return self._counts, self._gradient, self._square

    def add(self, features: Tensor, labels: LabelArray | None) -> None:
        """Adds records.

        Args:
            features: (m, d - 1 + C): the basis without its constant, then scores. NaN and infinities count as 0.
            labels: (m,); `UNLABELLED` records add nothing.
        """
        assert labels is not None, "offered only where there are labels"
        outputs = torch.nan_to_num(features.detach().to("cpu", torch.float64), nan=0.0, posinf=0.0, neginf=0.0).numpy()
        self._counts += np.bincount(labels - UNLABELLED, minlength=len(self._counts) + 1)[1:]
        rows = max(1, _VALUES // (self._gradient.size + self._square.size))
        for start in range(0, len(outputs), rows):
            own = labels[start : start + rows]
            gradients, squares = parts(outputs[start : start + rows], own, self._scale, self._correction)
            self._gradient += _whole(gradients)
            self._square += _whole(squares)


def parts(outputs: Values, labels: LabelArray, scale: Values, correction: Values) -> tuple[Values, Values]:
    """What each record adds, each a function of itself alone.

    Args:
        outputs: (m, d - 1 + C), finite.
        labels: (m,); records without one add nothing.
        scale: (d,).
        correction: (C, d).

    Returns:
        (m, C, d) gradients, of norm 1 at most; (m, d (d + 1) / 2) upper triangles of squares, row by row, entries off
        the diagonal times the root of 2, of norm 1 at most.
    """
    classes = len(correction)
    basis = np.concatenate([np.ones((len(outputs), 1)), outputs[:, : -classes or None]], axis=1)
    scores = np.clip(outputs[:, -classes:], -LARGEST_SCORE, LARGEST_SCORE) + basis @ correction.T
    chance = np.exp(scores - scores.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    power = np.square(chance).sum(axis=1)
    longest = np.sqrt(0.5 * (1.0 + power) - chance.min(axis=1))  # of label less chance, over the root of 2
    scaled = basis * scale
    lengths = np.linalg.norm(scaled, axis=1) * longest
    clipped = scaled * (np.minimum(1.0, _INSIDE / np.maximum(lengths, np.finfo(np.float64).tiny)))[:, None]
    counted = labels != UNLABELLED
    residual = -chance
    residual[np.flatnonzero(counted), labels[counted]] += 1.0
    residual *= counted[:, None] * math.sqrt(0.5)
    gradients = residual[:, :, None] * clipped[:, None, :]
    first, second = np.triu_indices(basis.shape[1])
    twice = np.where(first == second, 1.0, math.sqrt(2.0))
    weight = 0.5 * np.maximum(0.0, 1.0 - power) * counted
    return gradients, weight[:, None] * twice * clipped[:, first] * clipped[:, second]


def _whole(each: Values) -> Integers:
    """The sum over records of what each adds, rounded coordinate by coordinate and record by record."""
    return np.asarray(np.rint(each * 2.0**ROUNDED).astype(np.int64).sum(axis=0))
