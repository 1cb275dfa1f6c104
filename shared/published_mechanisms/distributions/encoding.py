"""What one record adds to the sum of a direction's distribution function, and how far that reaches.

M thresholds lie evenly in a window of width w around 0, t_m = (m - M/2 + 1/2) w / M. A projection s lies in one of the
M + 1 cells between them, c = M/2 + round(s M / w), and its indicators are x_m = 1[c > m] - 1[M/2 > m]: |c - M/2| of
them are not zero. The release holds L coefficients of them in the orthonormal cosines of M places.
docs/privacy/sliced-distributions.md proves what stands here.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.shared.core.mechanisms.quantiles.coefficients import cosine_basis
from dpswd.shared.core.noise.directions import orthogonal_norm

THRESHOLDS = 256
"""M: cells are a hundredth of the window, far narrower than anything that noise lets through."""
CELLS = THRESHOLDS + 1


@functools.lru_cache(maxsize=4)
def cell_table(coefficients: int) -> npt.NDArray[np.float64]:
    """The coefficients of a record in each cell, (M + 1, L), read-only; those of the middle cell are 0."""
    above = np.arange(THRESHOLDS)[None, :] < np.arange(CELLS)[:, None]  # (M + 1, M)
    indicators = above.astype(np.float64) - above[THRESHOLDS // 2]
    table: npt.NDArray[np.float64] = indicators @ cosine_basis(THRESHOLDS, coefficients).numpy()
    table.setflags(write=False)
    return table


def largest_coefficient() -> float:
    """No record's coefficient is larger."""
    return math.sqrt(THRESHOLDS / 2)


def encoded(projections: Tensor, *, window: float, coefficients: int) -> Tensor:
    """The same coefficients as a smooth function, for public or generated records: cells as narrow as one likes.

    Args:
        projections: (m, k) of mapped and clipped features.
        window: w.
        coefficients: L.

    Returns:
        (m, L, k), differentiable; summed over records it is what is released, within the width of a cell.
    """
    place = (projections / window).clamp(-0.5, 0.5)  # of the window, 0 in its middle
    rows = [place * math.sqrt(THRESHOLDS)]
    for order in range(1, coefficients):
        angle = math.pi * order
        scale = math.sqrt(2.0 * THRESHOLDS) / angle
        rows.append(scale * (torch.sin(angle * (place + 0.5)) - math.sin(0.5 * angle)))
    return torch.stack(rows, dim=1)


def sensitivity(dimension: int, *, directions: int, coefficients: int, window: float, count_weight: float) -> float:
    """The largest distance of two records' vectors, rounded up: what replacing one record may move the sum by.

    Args:
        dimension: d.
        directions: k.
        coefficients: L.
        window: w.
        count_weight: a of a record's one in its class's count; 0 without counts.
    """
    squared, k = _within_class(dimension, directions, coefficients, window), directions
    # Two classes: each record against the middle cell. Two norms of 1/2 in the place of one of 1.
    apart = min(squared[0], 0.5 * squared[1], float(k * THRESHOLDS)) + 2.0 * count_weight * count_weight
    together = min(*squared, float(k * THRESHOLDS))
    return math.sqrt(max(together, apart)) * (1.0 + 1e-9)


def _within_class(dimension: int, k: int, coefficients: int, window: float) -> tuple[float, float]:
    """Bounds of the squared distance of two records of one class: by all thresholds, and by few coefficients."""
    cells = orthogonal_norm(dimension, k) * THRESHOLDS / window  # of a shift of norm 1, all directions together
    indicators = math.sqrt(k) * cells + k
    return indicators, (2 * coefficients - 1) / THRESHOLDS * (cells + math.sqrt(k)) ** 2
