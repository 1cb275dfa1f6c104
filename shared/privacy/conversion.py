"""Renyi divergences to (epsilon, delta) and back: Canonne, Kamath, Steinke 2020, Proposition 12.

epsilon = rdp(alpha) + log(1 - 1/alpha) - (log delta + log alpha) / (alpha - 1),   the best alpha > 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from shared.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_DELTA, MAX_DELTA = 1e-300, 0.5
"""Below the first, logarithms of products leave float64's range; above the second a guarantee says little."""


def check_delta(delta: float) -> None:
    """Refuse a delta outside [1e-300, 0.5].

    Raises:
        InvalidValue: it names delta and the allowed range.
    """
    if isinstance(delta, bool) or not MIN_DELTA <= delta <= MAX_DELTA:  # also refuses NaN
        raise InvalidValue(f"delta is {delta!r}; it must be from {MIN_DELTA:g} to {MAX_DELTA:g}")


def headroom(orders: NDArray[np.float64], log_delta: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """What the conversion adds to the Renyi divergence: epsilon - rdp(alpha), at each order > 1."""
    result: NDArray[np.float64] = np.log1p(-1.0 / orders) - (log_delta + np.log(orders)) / (orders - 1.0)
    return result


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
    result: NDArray[np.float64] = np.interp(orders, hull_x, hull_y, right=math.inf)
    return result


def epsilon_of(orders: NDArray[np.float64], renyi: NDArray[np.float64], delta: float) -> float:
    """Smallest epsilon over the orders; 0 if that is negative, inf if no order is finite."""
    values = renyi + headroom(orders, math.log(delta))
    return max(0.0, float(np.min(values, initial=math.inf)))


def delta_of(orders: NDArray[np.float64], renyi: NDArray[np.float64], epsilon: float) -> float:
    """Smallest delta over the orders, at most 1."""
    exponent = (orders - 1.0) * (renyi - epsilon + np.log1p(-1.0 / orders)) - np.log(orders)
    return math.exp(min(0.0, float(np.min(exponent, initial=0.0))))
