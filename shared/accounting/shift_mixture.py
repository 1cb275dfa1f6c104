"""The law of a step's shift on one grid of shifts, shared by every law, and a bound of what that leaves out.

The shifts of the grid are s_i = exp(i / 1024); a random shift uses every fourth of them or fewer. A law of S is split
onto it such that the profile of one release grows at every epsilon >= 0 (slice_law.py), and with it the expectation of
every convex function of the likelihood ratio that is linear on one side of 1: by the pair's symmetry the profile
determines both sides. So one table of Gaussian moments at the grid's shifts serves every step of a session, whatever
its noise: c_gamma.py, one_sided_table.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from dpswd.shared.accounting.slice_law import compact_law, round_up_scale
from dpswd.shared.core.privacy.curves import ShiftLaw, log_kummer

NODES_PER_NAT = 1024
"""Grid points of the shift for each factor e. A split between neighbours of distance r raises e^{c S} by (c S r)^2 / 4
of itself at most, c = alpha (alpha-1)/2, and a moment that grows as s^j by (j r)^2 / 8."""

_LEAST_STRIDE = 4
"""Distance on the grid of the nodes of a random shift, whose own spread hides what a finer grid would gain."""

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


@dataclass(frozen=True)
class ShiftMixture:
    """Shifts of the grid and their weights: the law of S split onto it, convexly in the total variation.

    Attributes:
        indices: the shifts are exp(index / NODES_PER_NAT), increasing, n of them.
        weights: their weights, shape (n,).
    """

    indices: tuple[int, ...]
    weights: NDArray[np.float64]

    def average(self, rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Log of the mixture's mean of quantities whose logarithms at the shifts are ``rows``: n of shape (orders,)."""
        table = np.concatenate(rows).reshape(len(rows), -1)  # many times faster than np.stack
        top = table.max(axis=0)
        result: NDArray[np.float64] = top + np.log(self.weights @ np.exp(table - top))
        return result


@functools.lru_cache(maxsize=8)
def of(law: ShiftLaw) -> ShiftMixture:
    """The mixture that bounds ``law`` in every divergence that a convex function flat below 1 (or above) defines."""
    if law.is_constant:
        squares, masses, stride = np.array([law.largest]), np.ones(1), 1
    else:
        squares, masses, stride = _lattice(law)
    position = 0.5 * np.log(squares) * NODES_PER_NAT
    left = np.floor(position / stride).astype(np.int64)
    first, last = int(left[0]), int(left[-1]) + 1
    indices = np.arange(first, last + 1, dtype=np.int64) * stride
    nodes = np.exp(indices / NODES_PER_NAT)
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
    return ShiftMixture(tuple(indices[present].tolist()), weights[present])


def _lattice(law: ShiftLaw) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Values of S, increasing, and their masses, shape (m,); the stride on the grid that they are worth."""
    compact = compact_law(law.feature_dimension, law.directions, scale=law.scale, log_tail=LOG_TAIL)
    squares, masses = law.scale * compact.points + law.constant, compact.masses
    # The rare small shifts are rounded up, so that the grid serves the common ones.
    rare = int(np.searchsorted(np.cumsum(masses), _RARE))
    squares = np.maximum(squares, max(squares[rare], _LOWEST_SHARE**2 * squares[-1]))
    position = 0.5 * np.log(squares) * NODES_PER_NAT
    span = position[-1] - position[0]
    stride = max(_LEAST_STRIDE, 1 << max(0, math.ceil(math.log2(max(span, 1.0) / _MAX_NODES))))
    return squares, masses, stride


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


def log_left_out(
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
    moment: NDArray[np.float64] = np.logaddexp.reduce(parts, axis=0) + c * constant + math.log(gamma)
    if gamma == 1.0:
        return moment
    plain = float(np.logaddexp.reduce(log_p)) + math.log1p(-gamma)
    return np.logaddexp(moment, plain)


def log_probability_left_out(law: ShiftLaw) -> float:
    """Log of the probability of what the lattice of H leaves out."""
    slices = compact_law(law.feature_dimension, law.directions, scale=law.scale, log_tail=LOG_TAIL).slices
    return slices.log_left_out
