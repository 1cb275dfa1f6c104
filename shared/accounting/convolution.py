"""The T-fold convolution of a measure on a lattice, with every error bounded and charged (docs/privacy/pld.md, 4).

Both laws of this accountant are sums of many independent terms: H, the energy of a record change after projection
(k Beta variables), and the privacy loss of a run (T steps). The measure is tilted first, which puts the tail of
interest into the bulk, where the FFT is accurate relative to it (Wilson and Keich 2016):

    a_j = p_j exp(theta x_j - K(theta)),    p^{*T}(x) = a^{*T}(x) exp(T K(theta) - theta x).

Mass below the window reappears above its place: more tail, never less. Mass above the window is lost, and the caller
adds a Chernoff bound of it. The FFT's rounding (Higham 2002, Theorem 24.2) is charged by Cauchy-Schwarz.

Units: positions are integers, the lattice step converts them to values of x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

UNIT_ROUNDOFF = 2.0**-53

_FFT_ROUNDING = 8.0 * UNIT_ROUNDOFF
"""eta of Higham 2002, Theorem 24.2, for accurately tabulated twiddle factors: mu + gamma_4 (sqrt 2 + mu) < 8 u."""

_POWER_ROUNDING = 16.0 * UNIT_ROUNDOFF
"""Relative error of exp(T log z) for each unit of T: the logarithm, the product and the exponential."""


@dataclass(frozen=True)
class LatticeMeasure:
    """A finite positive measure on the lattice step * Z.

    Attributes:
        positions: integers, increasing, shape (m,).
        log_masses: natural logarithms of the masses, shape (m,); -inf for an empty point.
        step: distance between neighbouring lattice points, in units of x.
    """

    positions: NDArray[np.int64]
    log_masses: NDArray[np.float64]
    step: float

    def log_mgf(self, theta: float) -> float:
        """Log sum_j p_j exp(theta x_j)."""
        exponents = self.log_masses + theta * self.step * self.positions
        top = float(np.max(exponents))
        return top + math.log(float(np.sum(np.exp(exponents - top))))

    def log_chernoff(self, count: int, x: float, thetas: NDArray[np.float64]) -> float:
        """Log of min over thetas > 0 of exp(count K(theta) - theta x) >= p^{*count}([x, inf))."""
        return min(count * self.log_mgf(float(theta)) - float(theta) * x for theta in thetas)


@dataclass(frozen=True)
class TiltedPower:
    """The tilted T-fold convolution a^{*T} on a window, with the bound of its error.

    Attributes:
        low: position of the window's first point.
        step: lattice step, in units of x.
        tilt: theta.
        log_scale: T K(theta), rounded up: p^{*T}(x) = weights * exp(log_scale - tilt x).
        weights: a^{*T} at positions low .. low + N - 1, shape (N,), never negative.
        norm_error: bound of the Euclidean norm of the weights' error.
    """

    low: int
    step: float
    tilt: float
    log_scale: float
    weights: NDArray[np.float64]
    norm_error: float

    @property
    def _rounding(self) -> float:
        """Relative error of a positive recursion as long as the window: two roundings a term, and its ratio."""
        return 4.0 * UNIT_ROUNDOFF * self.weights.size

    def log_survival(self) -> NDArray[np.float64]:
        """Log of an upper bound of p^{*T}([x_i, window's end]) at every point x_i of the window, shape (N,)."""
        ratio = math.exp(-self.tilt * self.step)
        sums = _recursion([1.0], [1.0, -ratio], self.weights[::-1])[::-1]  # A_i = sum_j>=i a_j e^{-theta (x_j - x_i)}
        squares = -math.expm1(-2.0 * self.tilt * self.step)
        norm = math.sqrt(min(self.weights.size, 1.0 / squares if squares > 0.0 else math.inf))
        bound = sums * (1.0 + self._rounding) + norm * self.norm_error
        x = self.step * (self.low + np.arange(self.weights.size))
        result: NDArray[np.float64] = self.log_scale - self.tilt * x + np.log(bound)
        return result

    def log_hockey_stick(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Upper bounds of the two sums that give the hockey-stick divergence at every real point of the window.

        For eps = x_i - tau, 0 <= tau < step, and the T-fold convolution q of the measure inside the window,

            delta(eps) = sum_{x_j > eps} q_j (1 - e^{eps - x_j}) = D_i + (1 - e^{-tau}) B_i,
            D_i = sum_{j >= i} q_j (1 - e^{x_i - x_j}),    B_i = sum_{j >= i} q_j e^{x_i - x_j}.

        Both recursions add positive terms only, so no digit is lost however close eps is to the loss.

        Returns:
            log D_i and log B_i, each of shape (N,), errors charged.
        """
        h = self.step
        outer, inner = math.exp(-self.tilt * h), math.exp(-(self.tilt + 1.0) * h)
        reverse = self.weights[::-1]
        b = _recursion([1.0], [1.0, -inner], reverse)  # B_i, tilt's scale taken out
        d = _recursion([0.0, -math.expm1(-h) * outer], [1.0, -outer], b)  # D_i = outer (D_{i+1} + (1 - e^{-h}) B_{i+1})
        n = float(self.weights.size)
        q = -math.expm1(-2.0 * self.tilt * h)  # 1 - ratio^2
        plain = min(n, 1.0 / q if q > 0.0 else math.inf)  # sum of squared weights, each at most 1
        slope = 2.0 * h * h / q**3 if q > 1e-90 else math.inf  # sum (h m)^2 r^{2m} <= h^2 (1 + r^2) / (1 - r^2)^3
        d_bound = d[::-1] * (1.0 + self._rounding) + math.sqrt(min(plain, slope)) * self.norm_error
        b_bound = b[::-1] * (1.0 + self._rounding) + math.sqrt(plain) * self.norm_error
        base = self.log_scale - self.tilt * h * (self.low + np.arange(self.weights.size))
        return base + np.log(d_bound), base + np.log(b_bound)


def tilted_power(measure: LatticeMeasure, *, count: int, tilt: float, low: int, size: int) -> TiltedPower:
    """Convolves a measure with itself ``count`` times, tilted, on a circular window.

    Args:
        measure: the measure of one term.
        count: T, at least 1.
        tilt: theta >= 0.
        low: position of the window's first point.
        size: N, number of points of the window, a power of two.

    Returns:
        The convolution on the window. What the true convolution puts above the window is missing and must be
        charged by the caller; what it puts below is folded in, which only adds.
    """
    exponents = measure.log_masses + tilt * measure.step * measure.positions
    log_mgf = measure.log_mgf(tilt)
    masses = np.exp(exponents - log_mgf)
    present = masses > 0.0
    largest = float(np.max(np.abs(exponents[present]))) + abs(log_mgf) + 4.0
    folded = np.bincount(measure.positions[present] % size, weights=masses[present], minlength=size)

    spectrum = fft.rfft(folded)
    norm = float(np.linalg.norm(folded))
    fft_error = _FFT_ROUNDING * math.log2(size)
    tiny = np.abs(spectrum) < 1e-300
    spectrum[tiny] = 1e-300
    power = np.exp(count * np.log(spectrum))
    del spectrum
    power_norm = _full_norm(power) / math.sqrt(size)

    # Mean value theorem: |F^T - G^T| <= T max(|F|, |G|)^{T-1} |F - G|, and |F| <= sum of the masses = 1.
    pointwise = fft_error * math.sqrt(size) * norm
    amplification = count * math.exp(min(700.0, count * (pointwise + 4.0 * UNIT_ROUNDOFF * size**0.5)))
    norm_error = (
        amplification * fft_error * norm + (count * _POWER_ROUNDING + 1e-12) * power_norm + fft_error * power_norm
    ) * (1.0 + 1e-9)

    window = fft.irfft(power, n=size)
    weights = np.maximum(np.roll(window, -(low % size)), 0.0)  # position p sits at p mod N
    # The tilted masses are rounded; seen as exact, they belong to masses that differ by this relative error.
    log_scale = count * (log_mgf + largest * UNIT_ROUNDOFF * 2.0)
    return TiltedPower(
        low=low, step=measure.step, tilt=tilt, log_scale=log_scale, weights=weights, norm_error=norm_error
    )


def _full_norm(half: NDArray[np.complex128]) -> float:
    """Euclidean norm of a whole Hermitian spectrum of even length from its non-redundant half."""
    squares = half.real**2 + half.imag**2
    return math.sqrt(2.0 * float(squares.sum()) - float(squares[0]) - float(squares[-1]))


def _recursion(b: Sequence[float], a: Sequence[float], x: NDArray[np.float64]) -> Any:
    """scipy.signal's ``lfilter``: half a second to load, and most commands price nothing."""
    from scipy.signal import lfilter

    return lfilter(b, a, x)
