"""Renyi moments of a subsampled step from the C_gamma pair, at every real order alpha > 1.

The symmetric pair of discretisation.py has, with L = 1 + gamma (e^{s y - s^2/2} - 1), y ~ N(0,1), s = sqrt(S),

    e^{(alpha-1) eps(alpha)} = 1 + E_S E_y[ (L^alpha + L^{1-alpha} - 1 - L) 1{L >= 1} ]           (docs/privacy, 3)

(Balle, Barthe, Gaboardi 2018; Dong, Roth, Su 2019). The bracket is convex in L, so the moment is a positive mixture
of the profile's values at eps >= 0, and every rounding that raises the profile raises it: the split of S onto a grid
(slice_law.py, moment_table.py) and connect-the-dots in the loss. Nothing may be cut off, however: an order alpha
weighs the tails by e^{c S}, c = alpha (alpha-1)/2. What the lattice of H leaves out is bounded in closed form with
E L^alpha <= 1 - gamma + gamma e^{cS}, and the whole by the full batch's exact curve.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erfc

from shared.errors import InvalidValue
from shared.privacy import moment_table
from shared.privacy.curves import log_kummer
from shared.privacy.slice_law import compact_law, round_up_scale

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from shared.privacy.curves import ShiftLaw

LOG_TAIL = -160.0
"""H is resolved down to this log-probability; orders that look further into its tail get the closed-form bound."""

_MAX_NODES = 160
"""Most shifts for one law; a wide law (few directions) gets a coarser grid."""

_LOWEST_SHARE = 1e-3
"""Shifts below this share of the largest one are counted as this large; their moments are 1e-6 of its."""

_RARE = 1e-6
"""Probability of the small shifts that are rounded up."""

_TILTS = 48
"""Tilts tried for a Chernoff bound; any of them is valid."""


def log_moment(law: ShiftLaw, gamma: float, orders: ArrayLike) -> NDArray[np.float64]:
    """Upper bound of (alpha - 1) eps(alpha) of one subsampled step.

    The first step of a (d, k) and sampling ratio takes some 0.2 s, later ones with other noise a millisecond.

    Args:
        law: the law of the squared shift.
        gamma: sampling ratio b/n in (0, 1].
        orders: real orders alpha > 1, one axis.

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
    full = law.log_moment(alpha)
    if gamma == 1.0 or law.largest == 0.0:
        return full
    if law.is_constant:
        excess = moment_table.log_excess(math.sqrt(law.largest), gamma, alpha)
    else:
        indices, weights = _nodes(law)
        keys = tuple(alpha.tolist())
        rows = np.stack([moment_table.row(index, gamma, keys) for index in indices.tolist()])  # (nodes, orders)
        top = rows.max(axis=0)
        excess = np.logaddexp(top + np.log(weights @ np.exp(rows - top)), _log_left_out(law, gamma, alpha, full))
    bound = np.log1p(np.exp(np.minimum(excess, 30.0))) + np.maximum(excess - 30.0, 0.0)  # log(1 + e^x) or more
    result: NDArray[np.float64] = np.minimum(bound * (1.0 + 1e-12), full)
    return result


def _nodes(law: ShiftLaw) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices of grid shifts and their weights: the law of S split onto the grid, convexly in the total variation."""
    compact = compact_law(law.feature_dimension, law.directions, scale=law.scale, log_tail=LOG_TAIL)
    squares, masses = law.scale * compact.points + law.constant, compact.masses
    # The rare small shifts are rounded up, so that the grid serves the common ones.
    rare = int(np.searchsorted(np.cumsum(masses), _RARE))
    squares = np.maximum(squares, max(squares[rare], _LOWEST_SHARE**2 * squares[-1]))
    position = 0.5 * np.log(squares) * moment_table.NODES_PER_NAT
    span = position[-1] - position[0]
    stride = 1 << max(0, math.ceil(math.log2(max(span, 1.0) / _MAX_NODES)))
    left = np.floor(position / stride).astype(np.int64)
    first, last = int(left[0]), int(left[-1]) + 1
    indices = np.arange(first, last + 1, dtype=np.int64) * stride
    nodes = np.exp(indices / moment_table.NODES_PER_NAT)
    complement = erfc(np.append(nodes, np.sqrt(squares)) / math.sqrt(8.0))  # 1 - t(S)
    grid, own = complement[: nodes.size], complement[nodes.size :]
    below, above = grid[left - first], grid[left - first + 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(below > above, (below - own) / (below - above), 1.0)
    # Where t is as good as linear in S, or as good as 1, the ratio above has lost its digits: round up.
    share = np.clip(share + 1e-9, 0.0, 1.0)
    weights = np.zeros(nodes.size)
    np.add.at(weights, left - first, masses * (1.0 - share))
    np.add.at(weights, left - first + 1, masses * share)
    present = weights > 0.0
    return indices[present], weights[present]


@dataclass(frozen=True)
class _Tails:
    """Cumulant functions of H on a grid of tilts, for Chernoff bounds.

    Attributes:
        theta: tilts, increasing, shape (q,).
        lattice: K of the rounded H, shape (q,).
        single: K of one exact variable, shape (q,).
    """

    theta: NDArray[np.float64]
    lattice: NDArray[np.float64]
    single: NDArray[np.float64]


@functools.lru_cache(maxsize=32)
def _tails(d: int, k: int, scale: float) -> _Tails:
    slices = compact_law(d, k, scale=scale, log_tail=LOG_TAIL).slices
    u = np.geomspace(1e-3, 1e3, _TILTS)  # dense below d/2, where K of a Gamma law of the same mean has its pole
    theta = 0.5 * d * np.concatenate((u / (1.0 + u), np.geomspace(1.0, 2e3, _TILTS // 2)))
    lattice = np.array([k * (slices.single.log_mgf(float(t)) + 1e-12) for t in theta])
    return _Tails(theta, lattice, log_kummer(d / 2.0, theta))


def _log_left_out(
    law: ShiftLaw, gamma: float, alpha: NDArray[np.float64], full: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Log of a bound of the excess that comes from H outside the lattice, shape of ``alpha``.

    For an event E, E[L^alpha; E] <= (1-gamma) P(E) + gamma E[e^{cS}; E], and for theta' >= theta = c scale,
    E[e^{theta H}; H > h] <= e^{K(theta') - (theta' - theta) h} (Chernoff). The events: H above the lattice, one
    variable above its cut, the others' sum too small for the coarse split.
    """
    d, k, constant = law.feature_dimension, law.directions, law.constant
    slices = compact_law(d, k, scale=law.scale, log_tail=LOG_TAIL).slices
    tails = _tails(d, k, round_up_scale(d, law.scale))
    c = alpha * (alpha - 1.0) / 2.0
    theta = c * law.scale
    single = (full - c * constant) / k  # K of one variable at theta
    extra = tails.theta[None, :] - theta[:, None]  # theta' - theta, (orders, q)
    usable = extra >= 0.0
    beyond = np.where(usable, tails.lattice - extra * slices.highest, np.inf).min(axis=1)
    cut = np.where(usable, tails.single - extra * slices.cut, np.inf).min(axis=1)
    log_p = np.array([slices.log_beyond, slices.log_cut, slices.log_rest])
    parts = [
        beyond if log_p[0] > -np.inf else np.full(alpha.size, -np.inf),
        math.log(k) + (k - 1) * single + cut if log_p[1] > -np.inf else np.full(alpha.size, -np.inf),
        slices.log_rest + theta * slices.rest + single,  # H = rest + one independent variable
    ]
    moment = np.logaddexp.reduce(parts, axis=0) + c * constant + math.log(gamma)
    plain = float(np.logaddexp.reduce(log_p)) + math.log1p(-gamma)
    result: NDArray[np.float64] = np.logaddexp(moment, plain)
    return result
