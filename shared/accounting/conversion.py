"""From Renyi divergences to (epsilon, delta): Canonne, Kamath, Steinke 2020, Proposition 12.

epsilon = rdp(alpha) + log(1 - 1/alpha) - (log delta + log alpha) / (alpha - 1),   the best alpha > 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def headroom(orders: NDArray[np.float64], log_delta: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """What the conversion adds to the Renyi divergence: epsilon - rdp(alpha), at each order > 1."""
    return np.log1p(-1.0 / orders) - (log_delta + np.log(orders)) / (orders - 1.0)


def convex_envelope(orders: NDArray[np.float64], moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest convex function below the given upper bounds on (alpha-1) eps(alpha), at the same orders.

    (alpha-1) eps(alpha) is convex and 0 at alpha = 1 (van Erven, Harremoes 2014), so what bounds it at some orders
    bounds it by its convex envelope.

    Args:
        orders: increasing, > 1.
        moments: upper bounds at them, >= 0; ``inf`` where nothing is known.
    """
    hull_x, hull_y = [1.0], [0.0]
    for x, y in zip(orders.tolist(), moments.tolist(), strict=True):
        if not math.isfinite(y):
            continue
        while len(hull_x) > 1:
            slope = (hull_y[-1] - hull_y[-2]) / (hull_x[-1] - hull_x[-2])
            if (y - hull_y[-1]) / (x - hull_x[-1]) >= slope:
                break
            hull_x.pop()
            hull_y.pop()
        hull_x.append(x)
        hull_y.append(y)
    return np.interp(orders, hull_x, hull_y, right=math.inf)


def epsilon_of(orders: NDArray[np.float64], renyi: NDArray[np.float64], delta: float) -> float:
    """Smallest epsilon over the orders; 0 if that is negative, inf if no order is finite."""
    values = renyi + headroom(orders, math.log(delta))
    return max(0.0, float(np.min(values, initial=math.inf)))


def affordable_end(
    gap: Callable[[float], float],
    left: tuple[float, float],
    right: tuple[float, float],
    *,
    absolute: float = 0.0,
    relative: float = 0.0,
) -> float:
    """Shrinks a bracket by false position (Illinois) and returns its affordable end: rounded up, never down.

    Args:
        gap: positive where too much is spent; does not increase.
        left: a point that is not affordable, and its gap > 0, which may be ``inf``.
        right: a larger point that is, and its gap <= 0.
        absolute: width of the last bracket.
        relative: the same, in units of its right end.
    """
    (low, low_gap), (high, high_gap) = left, right
    last = 0
    while high - low > (tolerance := max(absolute, relative * high)) and high_gap != 0.0:
        if math.isfinite(low_gap) and math.isfinite(high_gap):
            at = low + (high - low) * low_gap / (low_gap - high_gap)
            # Stay off the ends by a little less than the tolerance, so that both ends close in.
            edge = min(0.4 * tolerance, 0.25 * (high - low))
            at = min(max(at, low + edge), high - edge)
        else:
            at = 0.5 * (low + high)
        if not low < at < high:
            break
        value = gap(at)
        side = 1 if value > 0.0 else -1
        if side > 0:
            low, low_gap = at, value
            high_gap *= 0.5 if last > 0 else 1.0
        else:
            high, high_gap = at, value
            low_gap *= 0.5 if last < 0 else 1.0
        last = side
    return high
