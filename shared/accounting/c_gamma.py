"""Renyi moments of a subsampled step from the C_gamma pair, at every real order alpha > 1.

The symmetric pair of discretisation.py has, with L = 1 + gamma (e^{s y - s^2/2} - 1), y ~ N(0,1), s = sqrt(S),

    e^{(alpha-1) eps(alpha)} = 1 + E_S E_y[ (L^alpha + L^{1-alpha} - 1 - L) 1{L >= 1} ]       (docs/privacy/pld.md, 6)

The bracket is convex in L, so every rounding that raises the profile raises it. But an order weighs the tails by
e^{c S}, c = alpha (alpha-1)/2, so nothing may be cut off: what the lattice of H leaves out is bounded in closed form
(shift_mixture.py). Moments at the fixed shifts of one grid are computed once and shared by every step: a row of the
table belongs to one shift, one sampling ratio and one tuple of orders. It is connect-the-dots on a geometric grid of
the loss x; beyond the grid, where normal masses leave float64, the tail is

    E[L^a; y > y_end] <= e^{a (x_end - v_end)} e^{a (a-1) s^2 / 2} Phi(a s - y_end),    v = s y - s^2 / 2,

because L e^{-v} = gamma + (1 - gamma) e^{-v} falls in v.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from dpswd.shared.accounting import shift_mixture
from dpswd.shared.accounting.discretisation import StepPair, inner_epsilon
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.curves import ShiftLaw

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


def log_moment(
    law: ShiftLaw, gamma: float, orders: ArrayLike, *, full: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Upper bound of (alpha - 1) eps(alpha) of one subsampled step.

    The first step of a (d, k) and sampling ratio takes some 0.2 s, later ones with other noise a millisecond.

    Args:
        law: the law of the squared shift.
        gamma: sampling ratio b/n in (0, 1].
        orders: real orders alpha > 1, one axis.
        full: ``law.log_moment(orders)`` where the caller has it.

    Returns:
        The bounds, shape of ``orders``; never more than the full batch's exact curve.

    Raises:
        InvalidValue: gamma or an order is out of range.
    """
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not 0.0 < gamma <= 1.0:
        raise InvalidValue(f"gamma is {gamma!r}; it must be above 0 and at most 1 (batch / records)")
    if alpha.ndim != 1 or not np.all(np.isfinite(alpha)) or np.any(alpha <= 1.0):
        raise InvalidValue("orders must be finite and above 1, along one axis")
    full = law.log_moment(alpha) if full is None else full
    if gamma == 1.0 or law.largest == 0.0:
        return full
    mixture, keys = shift_mixture.of(law), tuple(alpha.tolist())
    excess = mixture.average([_row(index, gamma, keys) for index in mixture.indices])
    if not law.is_constant:
        excess = np.logaddexp(excess, shift_mixture.log_left_out(law, gamma, alpha, full))
    bound = np.log1p(np.exp(np.minimum(excess, 30.0))) + np.maximum(excess - 30.0, 0.0)  # log(1 + e^x) or more
    return np.minimum(bound * (1.0 + 1e-12), full)


@functools.lru_cache(maxsize=MAX_ROWS)
def _row(index: int, gamma: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """``_log_excess`` at the grid's shift s_i, read-only, shape (orders,)."""
    result = _log_excess(math.exp(index / shift_mixture.NODES_PER_NAT), gamma, np.array(orders))
    result.setflags(write=False)
    return result


def _log_excess(s: float, gamma: float, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
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
