"""One-sided moments of the likelihood ratio of two neighbouring releases.

With L = p/q, the likelihood ratio of a release whose squared shift S has the law ``ShiftLaw``:

    B+(j) = E_q (L - 1)_+^j,     B-(j) = E_q (1 - L)_+^j,     E_q L^z = M(z) = E exp(z (z-1) S / 2).

M is known in closed form, so both are Mellin inversions along a vertical line (no quadrature over S is needed):

    B+(j) = 1/(2 pi i) int_{Re z = c > j} M(z) K_j(z) dz,              K_j(z) = j! / (z (z-1) ... (z-j)),
    B-(j) = 1/(2 pi i) int_{Re z = c < 0} M(z) (-1)^(j+1) K_j(z) dz.

On the line through the saddle point nothing cancels; with Im z = w sinh(u) the trapezoidal rule converges fast.
Both moments are logarithmically convex in j (Lyapunov), so chords between computed orders are upper bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.special import gammaln, loggamma

from dpswd.shared.accounting.bounds import integer_moments
from dpswd.shared.core.privacy.curves import ShiftLaw

_SLACK = 1e-7
"""Relative slack that covers the quadrature's error (measured against mpmath: below 1e-9)."""

_FEW_NODES, _MANY_NODES, _MANY_DIRECTIONS = 32, 64, 30
"""Gauss nodes for one direction: fewer suffice where many directions keep the argument per direction small."""

_LINE_STEP = 0.09
_LINE_NODES = np.arange(0.0, 9.0, _LINE_STEP)
_SADDLE_GRID = np.geomspace(1e-2, 1e8, 72)
_HALVING = 1e-4
"""Largest relative change between the rule with half the nodes and the rule: the error is about its square."""

COMPUTED_ORDERS = np.array([*range(2, 13), 14, 16, 18, 20, 23, 26, 30, 35, 41, 48, 56, 65, 76, 89, 104, 126])
"""Orders j integrated one by one; those between are bounded by chords, those above by E L^j."""


@lru_cache(maxsize=64)
def _squared_cosine_rule(d: int, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gauss rule for h = t^2, h ~ Beta(1/2, (d-1)/2), d >= 2: nodes h and weights, ``size`` each.

    The symmetric (Gegenbauer) rule for t keeps the relative accuracy of tiny h (h is about 1/d).
    """
    n = np.arange(1.0, 2.0 * size)
    lam = (d - 2) / 2.0
    off = np.empty_like(n)
    off[0] = 1.0 / (2.0 * (1.0 + lam))
    off[1:] = n[1:] * (n[1:] + 2.0 * lam - 1.0) / (4.0 * (n[1:] + lam) * (n[1:] + lam - 1.0))
    nodes, vectors = eigh_tridiagonal(np.zeros(2 * size), np.sqrt(off))
    positive = nodes > 0.0
    return nodes[positive] ** 2, 2.0 * vectors[0, positive] ** 2


_Number = TypeVar("_Number", np.float64, np.complex128)


def _log_mgf(law: ShiftLaw, theta: NDArray[_Number]) -> NDArray[_Number]:
    """Log E exp(theta S) by the Gauss rule, for real or complex theta (up to a multiple of 2 pi i)."""
    if law.is_constant:
        return theta * law.largest
    size = _FEW_NODES if law.directions >= _MANY_DIRECTIONS else _MANY_NODES
    nodes, weights = _squared_cosine_rule(law.feature_dimension, size)
    argument = theta * law.scale
    # The real part of the largest exponent is taken out, so that nothing overflows.
    top = np.maximum(argument.real * nodes[-1], argument.real * nodes[0])
    total = np.exp(argument[..., None] * nodes - top[..., None]) @ weights
    with np.errstate(divide="ignore"):
        result: NDArray[_Number] = law.directions * (np.log(total) + top) + theta * law.constant
    return result


def _log_kernel(z: NDArray[_Number], j: NDArray[np.float64]) -> NDArray[_Number]:
    """The logarithm of j! / (z (z-1) ... (z-j)) for Re z > j."""
    log_gamma = loggamma if np.iscomplexobj(z) else gammaln
    result: NDArray[_Number] = gammaln(j + 1.0) + log_gamma(z - j) - log_gamma(z + 1.0)
    return result


def _on_line(law: ShiftLaw, j: NDArray[np.float64], *, upper: bool) -> NDArray[np.float64]:
    """Log B+(j) (upper) or log B-(j), inf where the quadrature cannot be trusted. Shapes (orders,).

    The lower moment with z = 1 - z': M(z) = M(z') and (-1)^(j+1) K_j(z) = K_j(z' - 1 + j), Re z' > 1. So both lines
    lie to the right of their poles, at z = pole + distance.
    """
    column = j[:, None]
    pole = column if upper else np.ones_like(column)
    line = pole + _SADDLE_GRID[None, :]
    offset = 0.0 if upper else column - 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        height = _log_mgf(law, line * (line - 1.0) / 2.0) + _log_kernel(line + offset, column)
    best = np.nanargmin(height, axis=1)
    rows = np.arange(j.size)
    c, gap, top = line[rows, best], _SADDLE_GRID[best], height[rows, best]
    # The line's natural length: the mean curvature of log M, and the pole's distance.
    width = 1.0 / np.sqrt(law.mean + 1.0 / gap**2)
    tau = width[:, None] * np.sinh(_LINE_NODES)[None, :]
    z = c[:, None] + 1j * tau
    with np.errstate(over="ignore", invalid="ignore"):  # a rule with too few nodes is caught just below
        log_values = _log_mgf(law, z * (z - 1.0) / 2.0) + _log_kernel(z + offset, column)
        values = np.exp(log_values - top[:, None]).real * np.cosh(_LINE_NODES)[None, :]
        values[:, 0] *= 0.5
        fine = values.sum(axis=1) * _LINE_STEP
        coarse = values[:, ::2].sum(axis=1) * 2.0 * _LINE_STEP
        exact = law.log_moment(c) + _log_kernel(c + (0.0 if upper else j - 1.0), j)
        trusted = (np.abs(exact - top) < 1e-9 * np.maximum(1.0, np.abs(top))) & (fine > 1e-6)
        trusted &= np.abs(fine - coarse) < _HALVING * fine
    return np.where(trusted, top + np.log(np.where(trusted, fine * width / np.pi, 1.0)), np.inf)


def integrated(law: ShiftLaw, orders: NDArray[np.int64], *, upper: bool) -> NDArray[np.float64]:
    """Upper bounds on log B+(j) (``upper``) or log B-(j) at ``orders``, integers from 2 on. Shape (orders,)."""
    j = orders.astype(np.float64)
    return np.minimum(_on_line(law, j, upper=upper) + _SLACK, _trivial(law, orders, upper=upper))


def table_size(largest: int) -> int:
    """The size of the table of integer moments that serves orders up to ``largest`` and all computed ones."""
    return max(largest, int(COMPUTED_ORDERS[-1]))


OneSided: TypeAlias = Callable[..., NDArray[np.float64]]
"""How to bound the one-sided moments of a law: `one_sided_moment`, or what `one_sided_table` has for it."""


def _trivial(law: ShiftLaw, j: NDArray[np.int64], *, upper: bool) -> NDArray[np.float64]:
    # B+ <= E L^j, B- <= 1
    return integer_moments(law, table_size(int(j[-1])))[j] if upper else np.zeros(j.size)


def one_sided_moment(law: ShiftLaw, largest: int, *, upper: bool) -> NDArray[np.float64]:
    """Upper bounds on log B+(j) (``upper``) or log B-(j) for j = 0 .. ``largest``, integrated for this law.

    Args:
        law: the squared shift of the release; not identically 0.
        largest: largest order, at least 2.
        upper: which side.

    Returns:
        Shape (largest + 1,); the entries of j = 0 and 1 are the trivial bounds.
    """
    orders = COMPUTED_ORDERS[: np.searchsorted(COMPUTED_ORDERS, largest, side="right")]
    if orders[-1] < largest < COMPUTED_ORDERS[-1]:
        orders = np.append(orders, largest)
    return between_orders(law, largest, orders, integrated(law, orders, upper=upper), upper=upper)


def between_orders(
    law: ShiftLaw, largest: int, orders: NDArray[np.int64], values: NDArray[np.float64], *, upper: bool
) -> NDArray[np.float64]:
    """Chords between ``values`` at increasing ``orders``, and the trivial bounds above. Shape (largest + 1,)."""
    j = np.arange(largest + 1)
    bound = _trivial(law, j, upper=upper)
    inside = slice(2, min(int(orders[-1]), largest) + 1)
    bound[inside] = np.minimum(bound[inside], np.interp(j[inside], orders.astype(np.float64), values))
    if not upper:
        bound[2:] = np.minimum.accumulate(bound[2:])  # B-(j) decreases in j, since (1 - L)_+ <= 1
    return bound
