"""How far one record moves the sum of score statistics. docs/privacy/score-statistics.md proves what stands here."""

from __future__ import annotations

import math

ROUNDED = 20
"""Bits behind the point of what a record adds to a coordinate."""
_MARGIN = 2.0**-30  # relative; floating point in float64 is far within


def released_values(classes: int, columns: int) -> int:
    """Coordinates of the sum: counts (C), gradient (C, d), upper triangle of the curvature's square (d, d)."""
    return classes * (1 + columns) + columns * (columns + 1) // 2


def sensitivity(*, count_weight: float, square_weight: float, values: int) -> float:
    """What replacing one record moves the sum by at most, rounded up.

    Args:
        count_weight: a.
        square_weight: beta.
        values: coordinates of the sum; each of two records is rounded by half a unit in each.
    """
    beta = square_weight * square_weight
    together = 2.0 + 2.0 * beta + 0.5 / beta if 2.0 * beta > 1.0 else 4.0
    exact = math.sqrt(2.0 * count_weight * count_weight + max(4.0 + beta, together))
    return exact * (1.0 + _MARGIN) + math.sqrt(values) * 2.0**-ROUNDED
