"""The privacy loss of one subsampled step on a lattice, rounded so that every profile can only grow.

For a shift s = sqrt(S) and a sampling ratio gamma = b/n the step is dominated by the symmetric pair whose profile at
x >= 0 is, with P, Q and their loss X as follows (docs/privacy/pld.md, 1 and 2),

    delta(x) = P(X > x) - e^x Q(X > x),   Q = N(0,1),  P = (1-gamma) N(0,1) + gamma N(s,1),
    X = log L(y),   L(y) = 1 + gamma (e^{s y - s^2/2} - 1),

and whose loss below 0 mirrors the one above. The step's profile is the average over S. **Connect the dots** (Doroshenko
et al. 2022): on each cell (x_j, x_{j+1}) the loss moves to the cell's ends such that the masses under P and under Q
both stay, which bounds the profile from above. The mass under P that moves to the right end is

    b_j = int_cell (1 - e^{-(x - x_j)}) dP / (1 - e^{-(x_{j+1} - x_j)})
        = gamma int_cell (1 - e^{-s (y - y_j)}) phi(y - s) dy / (1 - e^{-(x_{j+1} - x_j)}).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from dpswd.shared.accounting.convolution import UNIT_ROUNDOFF

_RELATIVE_ROUNDING = 1e-12
"""Relative error of a normal tail evaluated at a rounded argument y <= 40: (10 + 4 y^2) u < 8e-13."""

_SLACK = 1e-11
"""Mass added at 0 for all rounding on the negative side; T of them change log delta by 1e-4 at T = 1e7."""

_NARROW = 0.5
"""Widest cell, in y, for the Gauss-Legendre rule; there its relative error is below 1e-11."""

_LARGEST_EXPONENT = 700.0
"""e^700 is still a floating-point number."""

_RULE_NODES, _RULE_WEIGHTS = np.polynomial.legendre.leggauss(6)


@dataclass(frozen=True)
class StepLoss:
    """The rounded loss of one step.

    Attributes:
        x: the grid 0 < x_1 < ... < x_n, in nats, shape (n,).
        masses: masses under P at x_1 .. x_n, shape (n,).
        mirrored: masses under P at -x_1 .. -x_n, shape (n,).
        at_zero: mass at 0.
        at_infinity: mass at infinity; it adds to delta.
    """

    x: NDArray[np.float64]
    masses: NDArray[np.float64]
    mirrored: NDArray[np.float64]
    at_zero: float
    at_infinity: float

    def log_mgf(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log E_P[exp(theta X); X finite] for theta >= 0, the shape of ``theta`` (one axis)."""
        with np.errstate(divide="ignore"):
            up, down = np.log(self.masses), np.log(self.mirrored)
        result = np.empty(theta.size)
        for i, t in enumerate(theta):
            above, below = up + t * self.x, down - t * self.x
            top = max(float(above.max()), 0.0)
            total = np.exp(above - top).sum() + np.exp(below - top).sum() + self.at_zero * math.exp(-top)
            result[i] = top + math.log(total)
        return result


def inner_epsilon(x: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """log(1 + (e^x - 1)/gamma), the base mechanism's epsilon that amplifies to x >= 0."""
    small = x < 1.0
    low = np.log1p(np.expm1(np.where(small, x, 0.0)) / gamma)
    high = x - math.log(gamma) + np.log1p(-(1.0 - gamma) * np.exp(-np.where(small, 1.0, x)))
    return np.where(small, low, high)


@dataclass(frozen=True)
class StepPair:
    """The dominating pair of one subsampled step: a mixture over the shift.

    Attributes:
        shifts: s of the mixture's parts, positive, shape (m,).
        weights: their weights, shape (m,).
        gamma: sampling ratio b/n in (0, 1].
    """

    shifts: NDArray[np.float64]
    weights: NDArray[np.float64]
    gamma: float

    def survival(self, x: float) -> float:
        """P(X > x) at one x >= 0."""
        y = float(inner_epsilon(np.array([x]), self.gamma)[0]) / self.shifts + self.shifts / 2.0
        return float(self.weights @ ((1.0 - self.gamma) * ndtr(-y) + self.gamma * ndtr(self.shifts - y)))

    def profile(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The exact profile delta(x) at x >= 0, rounded up, shape of ``x`` (one axis)."""
        inner = inner_epsilon(x, self.gamma)
        result = np.empty(x.size)
        for i, inside in enumerate(inner):
            y = inside / self.shifts + self.shifts / 2.0
            first = ndtr(self.shifts - y)
            second = math.exp(inside) * ndtr(-y) if inside < 30.0 else np.exp(inside + log_ndtr(-y))
            error = (_RELATIVE_ROUNDING + 8.0 * UNIT_ROUNDOFF * inside) * first
            result[i] = self.gamma * float(self.weights @ np.clip(first - second + error, 0.0, first))
        return np.minimum(result * (1.0 + _RELATIVE_ROUNDING), 1.0)

    def cells(self, x: NDArray[np.float64]) -> LossCells:
        """The loss on the cells of the grid 0 < x_1 < ... < x_n, in nats, shape (n,)."""
        gamma, shifts = self.gamma, self.shifts
        edges = np.concatenate(([0.0], x))
        y = inner_epsilon(edges, gamma)[:, None] / shifts + shifts / 2.0  # (n + 1, m)
        upper = (1.0 - gamma) * ndtr(-y) + gamma * ndtr(shifts - y)
        masses = upper[:-1] - upper[1:]
        width = -np.expm1(-np.diff(edges))  # 1 - e^{-(x_{j+1} - x_j)}
        moved = _moved(y, shifts, gamma) / width[:, None] * (1.0 + 1e-9)
        rows, columns = np.nonzero(_is_wide(y, shifts))
        if rows.size:
            # (P - e^{x_j} Q) / width of the cell, and what its rounding may hide
            q_cell = ndtr(-y[rows, columns]) - ndtr(-y[rows + 1, columns])
            factor = np.exp(np.minimum(edges[rows], _LARGEST_EXPONENT))
            exact = masses[rows, columns] - np.where(edges[rows] < _LARGEST_EXPONENT, factor * q_cell, 0.0)
            error = (16.0 + 4.0 * edges[rows]) * UNIT_ROUNDOFF * upper[rows, columns]
            moved[rows, columns] = np.clip((exact + error) / width[rows], 0.0, masses[rows, columns])
        return LossCells(y, upper, masses, np.minimum(moved, masses))

    def loss(self, x: NDArray[np.float64]) -> StepLoss:
        """Rounds the loss to the grid 0 < x_1 < ... < x_n, in nats, shape (n,).

        Everything above the grid is put at infinity, everything below -x_n at -x_n.
        """
        cells = self.cells(x)
        rounding = 1.0 + _RELATIVE_ROUNDING * (1.0 + float(self.shifts.max()))
        tails = ((cells.upper[1:] + cells.moved) @ self.weights) * rounding  # P(X rounded >= x_j)
        survivals = np.minimum.accumulate(np.minimum(tails, 1.0))
        at_infinity = float(cells.upper[-1] @ self.weights) * (1.0 + 1e-9)
        masses = np.maximum(survivals - np.append(survivals[1:], at_infinity), 0.0)
        mirrored = masses * np.exp(-x)
        mirrored[-1] += float(ndtr(-cells.y[-1]) @ self.weights)
        rest = 1.0 - float(survivals[0]) - float(mirrored.sum())
        return StepLoss(x, masses, mirrored, max(rest, 0.0) + _SLACK, at_infinity)


@dataclass(frozen=True)
class LossCells:
    """The loss above 0 on cells (x_j, x_{j+1}), x_0 = 0, for each part of the mixture.

    Attributes:
        y: the thresholds of the observation at x_0 .. x_n, shape (n + 1, m).
        upper: P(X > x_j), shape (n + 1, m).
        masses: P of each cell, shape (n, m).
        moved: what of it goes to the cell's right end, at most all, shape (n, m).
    """

    y: NDArray[np.float64]
    upper: NDArray[np.float64]
    masses: NDArray[np.float64]
    moved: NDArray[np.float64]


def _is_wide(y: NDArray[np.float64], shifts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where a cell is too wide, in y, for the six-point rule. Shape (n, m)."""
    width = np.diff(y, axis=0)
    slope = np.maximum(np.maximum(np.abs(y[:-1] - shifts), np.abs(y[1:] - shifts)), shifts)
    wide = (width > _NARROW) | (width * slope > 2.0)
    result: NDArray[np.bool_] = np.logical_and(wide, ndtr(shifts - y[:-1]) > 0.0)
    return result


def _moved(y: NDArray[np.float64], shifts: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """Gamma int_cell (1 - e^{-s (y - y_j)}) phi(y - s) dy for each cell and part, shape (n, m)."""
    half = 0.5 * np.diff(y, axis=0)
    start = y[:-1] - shifts
    total = np.zeros_like(half)
    for node, weight in zip(_RULE_NODES, _RULE_WEIGHTS, strict=True):
        offset = half * (1.0 + node)
        total += weight * -np.expm1(-shifts * offset) * np.exp(-0.5 * (start + offset) ** 2)
    return total * half * (gamma / math.sqrt(2.0 * math.pi))
