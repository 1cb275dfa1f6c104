"""One variable of the sum H, Beta(1/2, (d-1)/2), on the cells of a lattice.

A cell's mass moves to its two ends; slice_law.py says which shares bound every profile from above. Masses and
shares are Gauss-Legendre sums of positive terms in v = sqrt(x), whose density is smooth at 0, and keep all their
digits far out in the tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaln

from dpswd.shared.accounting.convolution import LatticeMeasure


def lowest_rest(single: LatticeMeasure, k: int, *, log_tail: float) -> float:
    """r0 such that the sum of k - 1 variables is below r0 with probability at most exp(log_tail) / k, or 0.

    Chernoff: P(rest < r0) <= exp(theta r0 + (k - 1) K(-theta)). A split on a cell's ends that keeps the mean only
    raises E exp(-theta x), so the bound holds for any mixture of split and original variables.
    """
    theta = np.geomspace(1e-2, 1e2, 40) / (single.step * float(np.exp(single.log_masses) @ single.positions))
    bounds = [(log_tail - math.log(k) - (k - 1) * single.log_mgf(-float(t))) / float(t) for t in theta]
    return max(0.0, *bounds)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True)
class Cells:
    """One Beta variable on the cells of a lattice.

    Attributes:
        step: lattice step; 1 is a lattice point.
        log_mass: log of the cells' masses, shape (cells,).
        sqrt_share, mean_share: how much of it a split that keeps E sqrt(x), or E x, gives to the right end.
        log_cut: log of the mass beyond the last cell.
    """

    step: float
    log_mass: NDArray[np.float64]
    sqrt_share: NDArray[np.float64]
    mean_share: NDArray[np.float64]
    log_cut: float

    def split(self, share: NDArray[np.float64], log_factor: float) -> LatticeMeasure:
        """The lattice measure that gives share * exp(log_factor), at most 1, of each cell to its right end."""
        right = np.minimum(1.0, share * math.exp(min(log_factor, 700.0)) * (1.0 + 1e-11))
        with np.errstate(divide="ignore"):
            right_mass = self.log_mass + np.log(right)
            left_mass = self.log_mass + np.log1p(-right)
        masses = np.logaddexp(np.append(left_mass, -np.inf), np.append(-np.inf, right_mass))
        return LatticeMeasure(np.arange(masses.size), masses, self.step)


def cells(d: int, *, step: float, log_tail: float) -> Cells:
    """Masses and shares of Beta(1/2, (d-1)/2) on cells of about ``step``, down to exp(log_tail) of its tail."""
    count = math.ceil(1.0 / step)
    step = 1.0 / count
    b = (d - 1) / 2.0
    # P(x > t) <= (1 - t)^b: both are 1 at 0 and 0 at 1, and the densities cross once.
    used = min(count, math.ceil(-math.expm1(log_tail / b) / step))
    x = step * np.arange(used + 1.0)
    edges = np.sqrt(x)  # in v = sqrt(x), whose density 2 (1 - v^2)^(b-1) / B(1/2, b) is smooth at 0
    half = 0.5 * np.diff(edges)
    v = 0.5 * (edges[1:] + edges[:-1])[:, None] + half[:, None] * _NODES[None, :]  # (cells, 8)
    log_density = math.log(2.0) - betaln(0.5, b) + (b - 1.0) * np.log1p(-v * v)
    peak = log_density.max(axis=1)
    density = np.exp(log_density - peak[:, None]) * _WEIGHTS[None, :]
    total = density.sum(axis=1)
    sqrt_share = (density * (v - edges[:-1, None])).sum(axis=1) / (total * np.diff(edges))
    mean_share = (density * (v * v - x[:-1, None])).sum(axis=1) / (total * step)
    log_mass = peak + np.log(half * total)
    if used == count:
        # (1 - x)^(b-1) is not smooth at 1: the last cells in closed form, from the complement 1 - x.
        last = slice(max(0, used - 16), used)
        y = 1.0 - x[last.start :]
        y[-1] = 0.0
        mass = -np.diff(betainc(b, 0.5, y))
        root = -np.diff(y**b) / (b * math.exp(betaln(0.5, b)))  # E[sqrt(x); cell]
        mean = -np.diff(betainc(b, 1.5, y)) / d  # E[x; cell]
        with np.errstate(divide="ignore", invalid="ignore"):
            log_mass[last] = np.log(mass)
            sqrt_share[last] = np.where(mass > 0.0, (root / mass - edges[last]) / np.diff(edges)[last], 1.0)
            mean_share[last] = np.where(mass > 0.0, (mean / mass - x[last]) / step, 1.0)
        log_cut = -math.inf
    else:
        # The logarithm of a Beta function of large b is good to 1e-10 only; the masses add up to 1.
        log_mass -= math.log(float(np.exp(log_mass).sum()))
        log_cut = b * math.log1p(-used * step)
    return Cells(step, log_mass, np.clip(sqrt_share, 0.0, 1.0), np.clip(mean_share, 0.0, 1.0), log_cut)
