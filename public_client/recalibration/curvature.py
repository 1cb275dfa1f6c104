"""What is expected of a release, from public records, and how far the hospital's own curvature corrects it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import special

Values = npt.NDArray[np.float64]

_SCALES = np.exp(np.linspace(-3.0, 1.5, 19))
"""Of the hospital's curvature in units of the source's, before its release is seen: log-normal around 1."""
_SCALE_WIDTH = 0.7
_WIDTHS = np.array([0.0, 0.05, 0.1, 0.2, 0.4])
"""Deviations of single entries from that scale, in units of the source's."""
_ITERATIONS, _RARE = 50, 1e-6
_KURTOSIS = 3.0  # of a record's curvature, in units of a normal law's: sampling noise of its mean
_LEAST = 0.1
_SURE = 7.0  # deviation of the log-odds of two classes, beyond which labels tell little of them
_DEPENDENT, _NOTHING = 1e-6, 1e-12  # of an axis' square beside the widest; of a model that is sure of all


@dataclass(frozen=True, eq=False)
class Public:
    """Public source records under the team's model.

    Attributes:
        scores: (m, C).
        basis: (m, d), the first column 1.
        shares: (C,) of the classes.
    """

    scores: Values
    basis: Values
    shares: Values

    @cached_property
    def unit(self) -> float:
        """Deviation of the contrasts of the scores."""
        across = self.scores @ contrasts(self.scores.shape[1])
        return float(np.sqrt(across.var(axis=0).mean()))

    def at(self, correction: Values) -> Values:
        """(m, C) probabilities of the classes where a correction (C, d) is added to the scores."""
        return np.asarray(special.softmax(self.scores + self.basis @ correction.T, axis=1))

    @cached_property
    def _pairs(self) -> Values:
        return np.asarray(self.basis[:, :, None] * self.basis[:, None, :]).reshape(len(self.basis), -1)

    def curvature(self, chance: Values, weights: Values | float = 1.0) -> Values:
        """(p, p) weighted mean of the log-loss's curvature in a correction's contrasts, at probabilities (m, C)."""
        across, d = contrasts(chance.shape[1]), self.basis.shape[1]
        along = chance @ across
        classes = np.einsum("mc,ck,cl->mkl", chance, across, across) - along[:, :, None] * along[:, None, :]
        each = (np.reshape(weights, (-1, 1, 1)) * classes).reshape(len(chance), -1).T @ self._pairs / len(chance)
        return np.asarray(each.reshape(*classes.shape[1:], d, d).transpose(0, 2, 1, 3).reshape(across.shape[1] * d, -1))

    def softened(self, columns: int) -> Values:
        """(C, d), which scales scores to where a record's label tells something; 0 where they are, or have no slope."""
        classes = self.scores.shape[1]
        correction = np.zeros((classes, columns))
        correction[:, 1:classes] = ((softness(self.unit) - 1.0) * self.unit * contrasts(classes))[:, : columns - 1]
        return correction

    def fall(self, correction: Values, *, before: Values | None = None) -> float:
        """By how much a correction that is true lowers the log-loss of another, or of none: the laws' divergence."""
        other = np.maximum(self.at(np.zeros_like(correction) if before is None else before), 1e-300)
        return float(special.rel_entr(self.at(correction), other).sum(axis=1).mean())

    def size(self, correction: Values) -> float:
        """Root mean square over the records of how far a correction (C, d) moves the log-odds of two classes."""
        change = self.basis @ correction.T
        spread = np.square(change - change.mean(axis=1, keepdims=True)).sum(axis=1).mean()
        return float(np.sqrt(2.0 * spread / (change.shape[1] - 1)))


@dataclass(frozen=True, eq=False)
class Expected:
    """What a step is expected to release where the source's law of records holds.

    Attributes:
        chance: (m, C) probabilities of each public record's classes.
        weights: (m,) by which the clip shortens its scaled basis.
        square: (d, d) mean of half a record's weight times u u^T, what the curvature's block sums.
        noise: (p, p) covariance of a record's gradient.
    """

    chance: Values
    weights: Values
    square: Values
    noise: Values

    @classmethod
    def of(cls, public: Public, correction: Values, scale: Values) -> Expected:
        """At a correction (C, d), where the basis has a scale (d,) before the clip.

        That brings it to where no label could make a record's part longer than 1.
        """
        chance, scaled = public.at(correction), public.basis * scale
        most = np.sqrt(0.5 * (1.0 - 2.0 * chance.min(axis=1) + np.square(chance).sum(axis=1)))
        weights = 1.0 / np.maximum(1.0, np.linalg.norm(scaled, axis=1) * most)
        each = np.square(weights) * 0.5 * (1.0 - np.square(chance).sum(axis=1))
        wide = np.tile(scale, chance.shape[1] - 1)
        noise = np.outer(wide, wide) * public.curvature(chance, np.square(weights))
        return cls(chance, weights, (scaled * each[:, None]).T @ scaled / len(scaled), noise)


def softness(unit: float) -> float:
    """At most 1: what scores are scaled by where their contrasts spread by `unit`, so that a record's label tells."""
    return min(1.0, _SURE / (math.sqrt(2.0) * max(unit, 1e-6)))


def balancing(scores: Values, shares: Values) -> Values:
    """(C,) offsets under which the mean probabilities of scores (m, C) are these shares (C,)."""
    offset = np.zeros(len(shares))
    for _ in range(_ITERATIONS):
        offset += np.log(shares + _RARE) - np.log(special.softmax(scores + offset, axis=1).mean(axis=0) + _RARE)
    return offset


def contrasts(classes: int) -> Values:
    """(C, C - 1) orthonormal columns that add up to 0."""
    return np.asarray(np.linalg.qr(np.eye(classes)[:, :-1] - 1.0 / classes)[0])


def correcting(released: Values, expected: Values, *, deviation: float, records: float) -> Values:
    """(d, d) symmetric T: the hospital's basis is, as far as its noised curvature tells, T times the source's.

    Averaged over scales and widths of deviations by their likelihood; entries that drown stay the source's.

    Args:
        released: (d, d) the mean square that the hospital released, noised.
        expected: (d, d) the source's.
        deviation: of the noise on an entry of the diagonal; off it less by the root of 2.
        records: n.
    """
    sizes, axes = np.linalg.eigh(expected + _NOTHING * np.eye(len(expected)))
    own = sizes > _DEPENDENT * sizes[-1]  # the other axes are sums of columns that are 0, or next to it
    d, widths, axes = int(own.sum()), np.sqrt(sizes[own]), axes[:, own]
    inverse = (axes / widths).T
    seen, gram = inverse @ released @ inverse.T, inverse @ inverse.T
    noise = 0.5 * deviation**2 * (np.outer(np.diag(gram), np.diag(gram)) + gram**2)
    sampling = _KURTOSIS / records * (1.0 + np.eye(d))
    places = np.triu_indices(d)
    corrections, logs = [], []
    for scale in _SCALES:
        away, chance = seen - scale * np.eye(d), noise + scale**2 * sampling
        for width in scale * _WIDTHS:
            spread = chance + width**2
            fit = (away**2 / spread + np.log(spread))[places].sum() + (np.log(scale) / _SCALE_WIDTH) ** 2
            logs.append(-0.5 * fit)
            corrections.append(scale * np.eye(d) + width**2 / spread * away)
    shrunk = np.tensordot(special.softmax(logs), np.array(corrections), axes=1)
    values, vectors = np.linalg.eigh(shrunk)
    law = (vectors * np.maximum(values, _LEAST * float(np.median(values).clip(0.05)))) @ vectors.T
    # Of all maps between the laws the one that moves records least: others turn narrow axes into wide ones.
    squares, turned = np.linalg.eigh(widths[:, None] ** 2 * law * widths**2)
    half = (turned * np.sqrt(np.maximum(squares, 0.0))) @ turned.T
    return np.asarray(axes @ (half / np.outer(widths, widths)) @ axes.T)
