"""What is expected of a release, from public records, and how far the hospital's own curvature corrects it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

Values = npt.NDArray[np.float64]

_SCALES = np.exp(np.linspace(-3.0, 1.5, 19))
"""Of the hospital's curvature in units of the source's, before its release is seen: log-normal around 1."""
_SCALE_WIDTH = 0.7
_WIDTHS = np.array([0.0, 0.05, 0.1, 0.2, 0.4])
"""Deviations of single entries from that scale, in units of the source's."""
_KURTOSIS = 3.0  # of a record's curvature, in units of a normal law's: sampling noise of its mean
_LEAST, _TINY = 0.1, 1e-9
_NOTHING = 1e-12  # of the square of a model that is sure of all


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

    def at(self, correction: Values) -> Values:
        """(m, C) probabilities of the classes where a correction (C, d) is added to the scores."""
        return np.asarray(special.softmax(self.scores + self.basis @ correction.T, axis=1))

    def fall(self, correction: Values) -> float:
        """By how much a correction (C, d) that is true lowers the mean log-loss: the divergence of the two laws."""
        before, after = self.at(np.zeros_like(correction)), self.at(correction)
        return float(special.rel_entr(after, np.maximum(before, 1e-300)).sum(axis=1).mean())

    def size(self, correction: Values) -> float:
        """Root mean square over the records of how far a correction (C, d) moves the log-odds of two classes."""
        change = self.basis @ correction.T
        spread = np.square(change - change.mean(axis=1, keepdims=True)).sum(axis=1).mean()
        return float(np.sqrt(2.0 * spread / (change.shape[1] - 1)))


@dataclass(frozen=True, eq=False)
class Expected:
    """What a record is expected to add where the source's law of records holds.

    Attributes:
        square: (d, d) of half its weight times u u^T, what the curvature's block sums.
        noise: (p, p) curvature of the clipped basis: the covariance of a record's gradient.
        pull: (p, p) by how much the mean gradient changes with the parameters.
        raw: (p, p) curvature of the basis itself: of the log-loss in the parameters.
    """

    square: Values
    noise: Values
    pull: Values
    raw: Values

    @classmethod
    def of(cls, public: Public, correction: Values, scale: Values, frame: Values) -> Expected:
        """At a correction.

        Args:
            public: the records.
            correction: (C, d).
            scale: (d,) of the basis before the clip.
            frame: (C, d, p) of the parameters: orthonormal.
        """
        chance = public.at(correction)
        clipped = clip(public.basis * scale, chance)
        weight = 0.5 * (1.0 - np.square(chance).sum(axis=1))
        square = (clipped * weight[:, None]).T @ clipped / len(clipped)
        own, other = _along(clipped, chance, frame), _along(public.basis, chance, frame)
        return cls(square, _product(own, own), _product(own, other), _product(other, other))

    def moved(self, by: Values) -> Expected:
        """Where a record's basis is `by` (d, d) times as before."""
        parameters = len(self.noise) // len(by)
        wide = np.kron(np.eye(parameters), by)
        return Expected(by @ self.square @ by.T, *(wide @ each @ wide.T for each in (self.noise, self.pull, self.raw)))


def clip(scaled: Values, chance: Values) -> Values:
    """(m, d) the scaled basis, brought to where no label could make a record's part longer than 1."""
    most = np.sqrt(0.5 * (1.0 - 2.0 * chance.min(axis=1) + np.square(chance).sum(axis=1)))
    lengths = np.linalg.norm(scaled, axis=1) * most
    return np.asarray(scaled / np.maximum(1.0, lengths)[:, None])


def contrasts(classes: int) -> Values:
    """(C, C - 1) orthonormal columns that add up to 0."""
    return np.asarray(np.linalg.qr(np.eye(classes)[:, :-1] - 1.0 / classes)[0])


def correcting(released: Values, expected: Values, *, deviation: float, records: float) -> Values:
    """(d, d) T: the hospital's basis is, as far as its noised curvature tells, T times the source's.

    Averaged over scales and widths of deviations by their likelihood; entries that drown stay the source's.

    Args:
        released: (d, d) the mean square that the hospital released, noised.
        expected: (d, d) the source's.
        deviation: of the noise on an entry of the diagonal; off it less by the root of 2.
        records: n.
    """
    d = len(expected)
    root = np.linalg.cholesky(expected + max(_TINY * np.trace(expected), _NOTHING) * np.eye(d))
    inverse = np.linalg.inv(root)
    seen, gram = inverse @ released @ inverse.T, inverse @ inverse.T
    diagonal = np.diag(gram)
    noise = 0.5 * deviation**2 * (np.outer(diagonal, diagonal) + gram**2)
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
    half = (vectors * np.sqrt(np.maximum(values, _LEAST * float(np.median(values).clip(0.05))))) @ vectors.T
    return np.asarray(root @ half @ inverse)


def _along(basis: Values, chance: Values, frame: Values) -> tuple[Values, Values]:
    """(C, m, p) the roots of probabilities times each class's derivative of its score, and (m, p) their mean."""
    each = np.stack([basis @ own for own in frame])
    return np.sqrt(chance.T)[:, :, None] * each, np.asarray(np.einsum("mc,cmp->mp", chance, each))


def _product(one: tuple[Values, Values], other: tuple[Values, Values]) -> Values:
    """(p, p) mean over records of the covariance of derivatives over the classes."""
    total: Any = np.tensordot(one[0], other[0], axes=([0, 1], [0, 1])) - one[1].T @ other[1]
    return np.asarray(total / len(one[1]))
