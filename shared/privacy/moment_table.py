"""Moments of the C_gamma pair at fixed shifts, computed once and shared by every step that needs them.

The shifts lie on one grid, the same for every law: a law of S is split onto it (shift_mixture.py), and a session of
many different steps costs one small matrix product for each. A row of the table belongs to one shift, one sampling
ratio and one tuple of orders.

A row is connect-the-dots on a geometric grid of the loss x (discretisation.py): every cell's mass moves to its ends
such that both measures keep theirs. Beyond the grid, where normal masses leave float64, the tail is

    E[L^a; y > y_end] <= (L(y_end) e^{-v_end})^a E[e^{a v}; y > y_end]
                       = e^{a (x_end - v_end)} e^{a (a-1) s^2 / 2} Phi(a s - y_end),    v = s y - s^2 / 2,

because L e^{-v} = gamma + (1 - gamma) e^{-v} falls in v.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr

from shared.privacy.discretisation import StepPair, inner_epsilon
from shared.privacy.shift_mixture import NODES_PER_NAT

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ROWS = 20_000
"""Rows kept; 60 orders take half a kilobyte each."""

_SPACING = 0.01
"""Ratio of neighbouring losses less 1; the excess grows by spacing^2 / 6 where a x is moderate."""

_SMALLEST = 1e-3
"""First grid point in units of the loss at the typical observation; below it the loss moves by less than that."""

_DEEPEST = 37.0
"""Largest threshold y on the grid: normal masses beyond it are no longer ordinary floating-point numbers."""

_ROUNDING = 1e-9
"""Relative error of the masses of cells as narrow as _SPACING, from differences of normal tails."""


@functools.lru_cache(maxsize=MAX_ROWS)
def row(index: int, gamma: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """``log_excess`` at the grid's shift s_i, read-only, shape (orders,)."""
    result = log_excess(math.exp(index / NODES_PER_NAT), gamma, np.array(orders))
    result.setflags(write=False)
    return result


def log_excess(s: float, gamma: float, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(e^{(a-1) eps(a)} - 1) of the C_gamma pair at one shift, rounded up.

    Args:
        s: the shift, positive.
        gamma: sampling ratio in (0, 1).
        alpha: real orders a > 1, shape (orders,).

    Returns:
        One value for each order, shape (orders,).
    """
    grid, end_x, end_y = _grid(s, gamma)
    excess: NDArray[np.float64] = alpha * (alpha - 1.0) / 2.0 * s * s
    excess = excess + alpha * (end_x - _inner(end_x, gamma)) + log_ndtr(alpha * s - end_y)
    if grid.size:
        cells = StepPair(np.array([s]), np.array([1.0]), gamma).cells(grid)
        left = np.append((cells.masses - cells.moved)[1:, 0], 0.0)  # the first cell's left end is loss 0
        masses = (cells.moved[:, 0] + left) * (1.0 + _ROUNDING)
        present = masses > 0.0
        if np.any(present):
            excess = np.logaddexp(excess, _on_grid(grid[present], np.log(masses[present]), alpha))
    return excess + _ROUNDING


def _on_grid(
    x: NDArray[np.float64], log_masses: NDArray[np.float64], alpha: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sums over the grid: a mass at x and its mirror image at -x weigh (e^{(a-1)x} - 1)(1 - e^{-a x})."""
    terms = (alpha - 1.0)[:, None] * x + log_masses  # (orders, n)
    top = terms.max(axis=1)
    weight = np.expm1(-(alpha - 1.0)[:, None] * x) * np.expm1(-alpha[:, None] * x)
    result: NDArray[np.float64] = top + np.log((np.exp(terms - top[:, None]) * weight).sum(axis=1))
    return result


def _grid(s: float, gamma: float) -> tuple[NDArray[np.float64], float, float]:
    """Losses x_1 < ... < x_n, the loss where the grid ends and its threshold y. Empty where s is very large."""
    if s / 2.0 >= _DEEPEST:
        return np.empty(0), 0.0, s / 2.0
    largest = _outer(s * _DEEPEST - s * s / 2.0, gamma)
    smallest = min(_SMALLEST * _outer(s * min(1.0, s) + s * s / 2.0, gamma), 0.1 * largest)
    count = math.ceil(math.log(largest / smallest) / _SPACING) + 2
    grid = np.geomspace(smallest, largest, count)
    return grid, float(grid[-1]), _inner(float(grid[-1]), gamma) / s + s / 2.0


def _inner(x: float, gamma: float) -> float:
    return float(inner_epsilon(np.array([x]), gamma)[0])


def _outer(inner: float, gamma: float) -> float:
    """log(1 + gamma (e^inner - 1)), the inverse of discretisation.inner_epsilon."""
    if inner > 30.0:
        return float(np.logaddexp(math.log(gamma) + inner, math.log1p(-gamma)))
    return math.log1p(gamma * math.expm1(inner))
