"""The law of H on a lattice, rounded so that every privacy profile can only grow.

H = ||z U||^2 is a sum of k iid Beta(1/2, (d-1)/2) variables and S = scale H + constant the squared shift of a release
in units of its noise variance. For every eps >= 0 the profile of one release is increasing in S, and convex as a
function of the total variation t(S) = erf(sqrt(S/8)). So the mass of a cell of S may move to the cell's ends where the
mean of t stays: every profile grows. One Beta variable x of the sum, the others fixed with sum r, may be split alike in
any t with -t''/t' >= 1/(2(x + r)) + scale/8; multiplying the right weight by exp(c step) adds c to -t''/t'. Lemma and
proofs: docs/privacy/full-batch-profile.md.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from dpswd.shared.accounting.beta_cells import Cells, cells, lowest_rest
from dpswd.shared.accounting.convolution import LatticeMeasure, tilted_power
from dpswd.shared.core.privacy.curves import ShiftLaw, log_kummer

_FINE_STEP = 0.005
"""Lattice step in units of the mean 1/d of one variable where E sqrt(x) is kept: E H grows by about 5e-5 of itself,
most of it in the cell at 0 (0.13 step^1.5)."""

_COARSE_STEP = 0.006
"""The same where E x is kept, times sqrt(k) and at most 1: E H grows by step^2 / (4 d r0), about 2e-5, and the
variance of H by step^2 / 12 of itself, which is the smaller a matter the larger k."""

_SCALE_STEP = 5e-4
"""Largest step^2 scale / d: the factor exp(scale step / 8) then raises E H by 3e-5 of itself at most."""

_MANY_DIRECTIONS = 64
_USEFUL_REST = 10.0
"""Smallest d r0 for which the coarse lattice is as good as the fine one."""

MAX_LATTICE = 2**18
"""Most points of one convolution and cells of one variable (100 MB); a wider law gets a coarser lattice."""

_NODE_SPACING = 0.15
"""Distance of neighbouring nodes in sqrt(d H), whose standard deviation is at most 1/sqrt(2) for every k >= 2."""

_SHIFT_SPACING = 0.05
"""Largest distance of neighbouring nodes in s = sqrt(S)."""

_MIN_NODES, _MAX_NODES = 60, 400

_PATCH_LEVELS = np.concatenate((np.arange(15.0, 61.0, 15.0), np.arange(95.0, 1000.0, 35.0)))
"""Log-probabilities (negated) around which a tilt resolves the tail; further apart where less depends on it."""

_RELATIVE_ROUNDING = 1e-12
"""Relative error of the quadrature weights and masses of one Beta variable, charged k times."""


@dataclass(frozen=True)
class SliceLaw:
    """An upper bound of the survival function of H on a lattice, and what it leaves out.

    Attributes:
        directions: k; no H is larger.
        single: one rounded Beta variable; H rounded is the sum of k of them.
        low: position of the first point; H below is rounded up to it.
        log_survival: log of an upper bound of P(H >= (low + i) step), decreasing, first entry 0, shape (N,).
        log_beyond: log of the mass above the lattice.
        log_cut, cut: one of the k variables exceeds ``cut`` with this log-probability; ``single`` ends there.
        log_rest, rest: with this log-probability some k - 1 of the variables sum to less than ``rest``, and the
            rounding need not go up; H is then at most ``rest`` and one more variable, independent of that event.
    """

    directions: int
    single: LatticeMeasure
    low: int
    log_survival: NDArray[np.float64]
    log_beyond: float
    log_cut: float
    cut: float
    log_rest: float
    rest: float

    @property
    def highest(self) -> float:
        """The lattice's last point."""
        return self.single.step * (self.low + self.log_survival.size - 1)

    @property
    def log_left_out(self) -> float:
        """Log of the mass that the lattice does not hold; at H = k it is charged with its largest effect."""
        return float(np.logaddexp(np.logaddexp(self.log_beyond, self.log_cut), self.log_rest))

    def support(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lattice points H, increasing, and their masses, each of shape (N,)."""
        survival = np.exp(self.log_survival)
        masses = np.maximum(survival - np.append(survival[1:], 0.0), 0.0)
        points = self.single.step * (self.low + np.arange(masses.size))
        return np.minimum(points, float(self.directions)), masses


def slice_law(feature_dimension: int, directions: int, *, scale: float, log_tail: float) -> SliceLaw:
    """The law of H, valid in every profile of S = scale H + constant, constant >= 0.

    Args:
        feature_dimension: d >= 2.
        directions: k >= 1.
        scale: the largest scale that the law will be used with.
        log_tail: down to which log-probability the upper tail is resolved (negative).

    Returns:
        The law, from a cache that rounds ``scale`` and ``log_tail`` to the safe side.
    """
    return _slice_law(feature_dimension, directions, _scale_power(feature_dimension, scale), _whole_tail(log_tail))


def _scale_power(d: int, scale: float) -> int:
    return max(-20, math.ceil(math.log(max(scale, 1e-300) / d, 4.0)))


def _whole_tail(log_tail: float) -> int:
    return 40 * math.floor(log_tail / 40.0)


def round_up_scale(feature_dimension: int, scale: float) -> float:
    """The scale for which a law is cached: d times a power of 4, at least ``scale``."""
    return float(4.0 ** _scale_power(feature_dimension, scale) * feature_dimension)


@dataclass(frozen=True)
class CompactLaw:
    """The law of H on a few hundred points instead of the lattice's many thousands.

    Attributes:
        points: values of H, increasing, shape (m,).
        masses: their masses, shape (m,).
        slices: the lattice, and what it leaves out.
    """

    points: NDArray[np.float64]
    masses: NDArray[np.float64]
    slices: SliceLaw


def compact_law(feature_dimension: int, directions: int, *, scale: float, log_tail: float) -> CompactLaw:
    """``slice_law`` split onto points equally spaced in sqrt(H), valid for the same scales."""
    return _compact_law(feature_dimension, directions, _scale_power(feature_dimension, scale), _whole_tail(log_tail))


@functools.lru_cache(maxsize=32)
def _compact_law(d: int, k: int, scale_power: int, log_tail: int) -> CompactLaw:
    slices = _slice_law(d, k, scale_power, log_tail)
    h, masses = slices.support()
    spacing = max(0.2 * _NODE_SPACING / math.sqrt(d), math.sqrt(h[-1]) / 2000.0)
    # t at the largest scale is the most concave one, so that the split is convex for every smaller scale.
    chosen, weights = _onto_nodes(h, masses, erfc(np.sqrt(4.0**scale_power * d * h / 8.0)), spacing)
    return CompactLaw(h[chosen], weights, slices)


@functools.lru_cache(maxsize=32)
def _slice_law(d: int, k: int, scale_power: int, log_tail: int) -> SliceLaw:
    scale = 4.0**scale_power * d
    tilts, end_tilt, high = _tilts(d, k, float(-log_tail))
    deviation = math.sqrt(2.0 * k * (d - 1.0) / (d + 2.0)) / d
    lowest = max(0.0, k / d - 10.0 * deviation)
    single, rest, split = _single_law(d, k, width=high - lowest, scale=scale, log_tail=float(log_tail))
    step = single.step
    low = math.floor(lowest / step)
    log_beyond = -math.inf
    if k == 1:
        with np.errstate(divide="ignore"):
            bound = np.log(np.cumsum(np.exp(single.log_masses[::-1]))[::-1])
        low = 0
    else:
        size = 1 << max(8, math.ceil(math.log2((high - lowest) / step + 3.0)))
        if step * (low + size) <= k:
            end_tilts = np.append(tilts[1:], end_tilt)
            log_beyond = single.log_chernoff(k, step * (low + size), end_tilts) + k * _RELATIVE_ROUNDING
        bound = np.zeros(size)
        for tilt in tilts:
            patch = tilted_power(single, count=k, tilt=float(tilt), low=low, size=size)
            bound = np.minimum(bound, patch.log_survival())
        bound = bound[: math.ceil(k / step) - low + 1]
    # What leaves the lattice may have been at any of its points.
    bound = np.minimum.accumulate(np.minimum(np.logaddexp(bound + k * _RELATIVE_ROUNDING, log_beyond), 0.0))
    bound[0] = 0.0  # everything below the first point is rounded up to it
    return SliceLaw(
        directions=k,
        single=single,
        low=low,
        log_survival=bound,
        log_beyond=log_beyond,
        log_cut=split.log_cut + math.log(k),
        cut=step * split.log_mass.size,
        log_rest=float(log_tail) if rest > 0.0 else -math.inf,
        rest=rest,
    )


def _single_law(d: int, k: int, *, width: float, scale: float, log_tail: float) -> tuple[LatticeMeasure, float, Cells]:
    """One Beta variable, split so that every profile of the sum of k grows; r0 or 0; and its cells.

    With the others' sum at least r0, the split that keeps E x needs the factor exp(step (1/(2 r0) + scale/8)) only,
    and a much coarser lattice does; P(the others' sum < r0) is at most exp(log_tail) over all k splits. Without a
    useful r0 the split keeps E sqrt(x).
    """
    cut = -math.expm1(2.0 * (log_tail - math.log(k)) / (d - 1))
    finest = max(width, cut) / (MAX_LATTICE - 2)
    target = min(_COARSE_STEP * math.sqrt(k), 1.0, math.sqrt(_SCALE_STEP * d / scale)) / d
    log_cut = log_tail - math.log(k)
    if k >= _MANY_DIRECTIONS:
        coarse = cells(d, step=max(target, finest), log_tail=log_cut)
        rest = lowest_rest(coarse.split(coarse.mean_share, 0.0), k, log_tail=log_tail)
        if rest * d >= _USEFUL_REST:
            factor = coarse.step * (0.5 / rest + scale / 8.0)
            return coarse.split(coarse.mean_share, factor), rest, coarse
    fine = cells(d, step=max(_FINE_STEP / d, finest), log_tail=log_cut)
    return fine.split(fine.sqrt_share, fine.step * scale / 8.0), 0.0, fine


def _tilts(d: int, k: int, nats: float) -> tuple[NDArray[np.float64], float, float]:
    """Tilts whose patches cover the upper tail down to exp(-nats), and tilt and point of its end.

    Only a choice: every tilt gives a valid bound. The rate function is I = theta m - K(theta) at m = K'(theta).
    """
    u = np.geomspace(1e-6, 1e4, 500)  # dense below d/2, where K of a Gamma law of the same mean has its pole
    theta = 0.5 * d * np.concatenate((u / (1.0 + u), np.geomspace(1.0, 2e6, 200)))
    mgf = k * log_kummer(d / 2.0, theta)
    mean = np.gradient(mgf, theta)
    rate = np.maximum.accumulate(np.maximum(theta * mean - mgf, 0.0))
    covers = rate >= nats + 3.0
    high = min(float(k), float(mean[int(np.argmax(covers))])) if np.any(covers) else float(k)
    used = _PATCH_LEVELS[: int(np.searchsorted(_PATCH_LEVELS, nats)) + 1]
    chosen = [float(theta[int(np.searchsorted(rate, level))]) for level in used if level < rate[-1]]
    end_tilt = float(theta[int(np.argmax(covers))] if np.any(covers) else theta[-1])
    return np.array([0.0, *chosen]), end_tilt, high


@dataclass(frozen=True)
class ShiftNodes:
    """A few values of S whose mixture of profiles bounds the law's at every epsilon.

    Attributes:
        shifts: s = sqrt(S), positive, increasing, shape (m,); m may be 0.
        weights: their weights, shape (m,); what is missing to 1 has S = 0.
        slices: the law of H behind them; None where S is one number.
    """

    shifts: NDArray[np.float64]
    weights: NDArray[np.float64]
    slices: SliceLaw | None


def shift_nodes(law: ShiftLaw, *, log_tail: float) -> ShiftNodes:
    """Connects the dots of S: from the lattice of H to nodes equally spaced in sqrt(H).

    Args:
        law: the law of S.
        log_tail: down to which log-probability the upper tail of H is resolved.

    Returns:
        Nodes on the lattice of H; the mass that the lattice leaves out is not among them.
    """
    if law.is_constant:
        shift = np.array([math.sqrt(law.largest)])
        return ShiftNodes(shift[shift > 0.0], np.ones(1)[shift > 0.0], None)
    slices = slice_law(law.feature_dimension, law.directions, scale=law.scale, log_tail=log_tail)
    h, masses = slices.support()
    squares = law.scale * h + law.constant
    # Also close in s, where the variables are few and large; but not more nodes than are useful.
    spacing = min(_NODE_SPACING / math.sqrt(law.feature_dimension), _SHIFT_SPACING / math.sqrt(law.scale))
    spacing = min(max(spacing, math.sqrt(h[-1]) / _MAX_NODES), math.sqrt(h[-1]) / _MIN_NODES)
    chosen, weights = _onto_nodes(h, masses, erfc(np.sqrt(squares / 8.0)), spacing)
    keep = (weights > 0.0) & (squares[chosen] > 0.0)
    return ShiftNodes(np.sqrt(squares[chosen])[keep], weights[keep], slices)


def _onto_nodes(
    h: NDArray[np.float64], masses: NDArray[np.float64], complement: NDArray[np.float64], spacing: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Connects the dots from points h to a few of them, in the function 1 - complement.

    Args:
        h: points, increasing, shape (N,).
        masses: their masses, shape (N,).
        complement: 1 - t at the points, which is exact where t is close to 1, shape (N,).
        spacing: distance of neighbouring nodes in sqrt(h).

    Returns:
        Indices of the chosen points and their weights, each of shape (m,).
    """
    bins = np.floor((np.sqrt(h) - math.sqrt(h[0])) / spacing).astype(np.int64)
    chosen = np.unique(np.append(np.flatnonzero(np.diff(bins, prepend=-1)), h.size - 1))
    cell = np.clip(np.searchsorted(chosen, np.arange(h.size), side="right") - 1, 0, chosen.size - 2)
    left, right = complement[chosen[cell]], complement[chosen[cell + 1]]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(left > right, (left - complement) / (left - right), 1.0)
    share = np.clip(share * (1.0 + 1e-12), 0.0, 1.0)
    share[chosen[:-1]] = 0.0
    share[-1] = 1.0
    weights = np.zeros(chosen.size)
    np.add.at(weights, cell + 1, masses * share)
    np.add.at(weights, cell, masses * (1.0 - share))
    return chosen, weights


def with_largest(nodes: ShiftNodes, law: ShiftLaw) -> ShiftNodes:
    """The nodes and, for what the lattice leaves out, the largest S there is."""
    if nodes.slices is None:
        return nodes
    left_out = math.exp(nodes.slices.log_left_out)
    shifts = np.append(nodes.shifts, math.sqrt(law.largest))
    return ShiftNodes(shifts, np.append(nodes.weights, left_out), nodes.slices)
