"""What the public source's records tell of a network's layers: the moments that a release is compared with.

Everything is in the units of the probes, and clipped like a hospital's: a target like the source gives its moments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Values = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_RANK = 48  # directions along which records vary together; what is left is taken as each value's own
_LEAST_VARIANCE = 1e-9
_SMALL_MOVE = 0.1
_FACTORS = (0.0, *np.geomspace(0.5, 6.0, 16))  # that a clip may hide: it says less of what lies beyond
_FINE = 1200


@dataclass(frozen=True, eq=False)
class Reference:
    """Moments of clipped statistics of the public source.

    Attributes:
        center: (d,) mean before the clip, about which is clipped.
        scale: (d,) what numbers are multiplied with for the clip.
        radius: of the clip.
        rows: (m, d) records less the center, before the clip.
        mean: (d,) of the clipped ones, about the center.
        classes: (C, d) means of each class, about that mean.
        kinds: (C,) the classes' numbers.
        shares: (C,) of the classes.
        along: (d, r) directions times the deviation along them.
        own: (d,) variances beside them.
        records: of the source.
    """

    center: Values
    scale: Values
    radius: float
    rows: Values
    mean: Values
    classes: Values
    kinds: Labels
    shares: Values
    along: Values
    own: Values
    records: int

    def undone(self, move: Values, noise: Values, records: int) -> Values:
        """(d,) the move of records whose clipped mean moves by this: in its direction, and as far as is likely.

        Near the radius a mean hardly grows with the move: so it is the median of the move's posterior, the clipped
        mean's length Gaussian, the move's half-Cauchy with the radius as scale (Gelman 2006, Bayesian Analysis 1(3)).

        Args:
            move: (d,) of the clipped mean.
            noise: (d,) deviation of the privacy noise on it.
            records: of the hospital, n.
        """
        length, by = float(np.linalg.norm(move * self.scale)), 1.0 / records + 1.0 / self.records
        if length == 0.0:
            return move
        along = move * self.scale**2 / length
        variance = along**2 @ (noise**2 + by * self.own) + by * np.square(along @ self.along).sum()
        rows = (clipped((self.rows + factor * move) * self.scale, self.radius) for factor in _FACTORS)
        seen = [np.linalg.norm(each.mean(axis=0) - self.mean * self.scale) for each in rows]
        factors = np.linspace(0.0, _FACTORS[-1], _FINE)
        prior = -np.log1p((factors * length / self.radius) ** 2)
        mass = special.softmax(prior - 0.5 * (np.interp(factors, _FACTORS, seen) - length) ** 2 / variance).cumsum()
        return np.asarray(np.interp(0.5, mass, factors) * move)

    @classmethod
    def of(cls, vectors: Values, labels: Labels, *, clip: float = 1.0, distance: float = 0.0) -> Reference:
        """Of the source's statistics.

        Args:
            vectors: (m, d).
            labels: (m,) classes, or categories by which the source varies.
            clip: its radius, in units of the distance that records and the move have together.
            distance: of the move, in the clip's units.
        """
        center, scale = vectors.mean(axis=0), scales(vectors)
        radius = clip * float(np.hypot(np.sqrt((vectors * scale).var(axis=0).sum()), distance))
        free = vectors - center
        rows = clipped(free * scale, radius) / scale
        mean = rows.mean(axis=0)
        rows = rows - mean
        kinds = np.unique(labels)
        shares = np.array([(labels == kind).mean() for kind in kinds])
        classes = np.stack([rows[labels == kind].mean(axis=0) for kind in kinds])
        rank = min(_RANK, *rows.shape)
        along = _directions(rows, rank)
        own = np.maximum((rows**2).mean(axis=0) - (along**2).sum(axis=1), _LEAST_VARIANCE)
        return cls(center, scale, radius, free, mean, classes, kinds, shares, along, own, len(vectors))


def scales(vectors: Values) -> Values:
    """(d,) weights of numbers in the clip under which noise of the same norm costs least, summed over the numbers.

    The noise on number i is as large as 1 / s_i, the norm that it is paid for the root of sum s_i^2 v_i: the sum of
    1 / s_i^2 at a given norm is least for s_i^2 = 1 / sqrt(v_i) (Lagrange). v_i holds a small move too.
    """
    return np.asarray((vectors.var(axis=0) + _SMALL_MOVE**2) ** -0.25)


def clipped(rows: Values, radius: float) -> Values:
    """Rows (m, d) brought to norm `radius` at most."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * np.minimum(1.0, radius / np.maximum(norms, np.finfo(float).tiny)))


def _directions(rows: Values, rank: int) -> Values:
    """(d, rank): the first principal components times their deviations, by the smaller of the two Gram matrices."""
    m, wide = len(rows), rows.shape[1] > len(rows)
    variances, axes = np.linalg.eigh((rows @ rows.T if wide else rows.T @ rows) / m)
    axes = axes[:, -rank:]
    return np.asarray(rows.T @ axes / np.sqrt(m) if wide else axes * np.sqrt(np.maximum(variances[-rank:], 0.0)))
