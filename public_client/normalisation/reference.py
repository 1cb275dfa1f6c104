"""What the public source's records tell of a network's layers: the moments that a release is compared with.

Everything is in the units of the probes, and of vectors that are clipped like a hospital's: so a target that is like
the source gives the source's moments, whatever the clipping does to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_RANK = 48  # directions along which records vary together; what is left is taken as each value's own
_LEAST_VARIANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Reference:
    """Moments of clipped statistics of the public source.

    Attributes:
        center: (d,) mean before the clip, about which is clipped.
        radius: of the clip.
        mean: (d,) of the clipped ones, about the center.
        classes: (C, d) means of each class, about that mean.
        kinds: (C,) the classes' numbers.
        shares: (C,) of the classes.
        along: (d, r) directions times the deviation along them.
        own: (d,) variances beside them.
        records: of the source.
    """

    center: Values
    radius: float
    mean: Values
    classes: Values
    kinds: npt.NDArray[np.int64]
    shares: Values
    along: Values
    own: Values
    records: int

    @classmethod
    def of(cls, vectors: Values, labels: npt.NDArray[np.int64], *, radius: float) -> Reference:
        """Of the source's statistics.

        Args:
            vectors: (m, d).
            labels: (m,) classes, or categories by which the source varies.
            radius: of the clip.
        """
        center = vectors.mean(axis=0)
        rows = clipped(vectors - center, radius)
        mean = rows.mean(axis=0)
        rows = rows - mean
        kinds = np.unique(labels)
        shares = np.array([(labels == kind).mean() for kind in kinds])
        classes = np.stack([rows[labels == kind].mean(axis=0) for kind in kinds])
        rank = min(_RANK, *rows.shape)
        along = _directions(rows, rank)
        own = np.maximum((rows**2).mean(axis=0) - (along**2).sum(axis=1), _LEAST_VARIANCE)
        return cls(center, radius, mean, classes, kinds, shares, along, own, len(vectors))


def clipped(rows: Values, radius: float) -> Values:
    """Rows (m, d) brought to norm `radius` at most."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * np.minimum(1.0, radius / np.maximum(norms, np.finfo(float).tiny)))


def spread(vectors: Values) -> float:
    """The root of the mean squared distance of vectors (m, d) from their mean."""
    return float(np.sqrt(vectors.var(axis=0).sum()))


def _directions(rows: Values, rank: int) -> Values:
    """(d, rank): the first principal components times their deviations, by the smaller of the two Gram matrices."""
    m, d = rows.shape
    if d <= m:
        variances, axes = np.linalg.eigh(rows.T @ rows / m)
        return np.asarray(axes[:, -rank:] * np.sqrt(np.maximum(variances[-rank:], 0.0)))
    variances, places = np.linalg.eigh(rows @ rows.T / m)
    return np.asarray(rows.T @ places[:, -rank:] / np.sqrt(m))
