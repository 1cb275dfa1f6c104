"""The exact Renyi curve of the sliced Gaussian mechanism.

Symbols: d feature dimension, k directions, H = ||z U||^2 the squared length of a unit record change z after
projection on k iid uniform unit directions, S the squared shift of one release in units of its noise variance.

H is a sum of k iid Beta(1/2, (d-1)/2) variables (d = 1: H = k). Because U is public and independent of the data,
the Renyi moment of the pair (U, release) is the average of the inner Gaussian moment over U:

    log M(alpha) = log E exp(alpha (alpha-1) S / 2)
                 = k log 1F1(1/2; d/2; alpha (alpha-1) scale / 2) + alpha (alpha-1) constant / 2,
    S = scale * H + constant.

1F1(1/2; b; x) is evaluated by its positive power series where that is short, and elsewhere by the trapezoidal
rule on an integral that is analytic in a strip, so that the error falls exponentially with the number of nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from dpswd.shared.core.errors import InvalidValue

MAX_FEATURE_DIMENSION = 10_000_000
"""Largest d: the special function is checked against mpmath up to 1e6; one decade is left as headroom."""

MAX_DIRECTIONS = 1_000_000
"""Largest k: an extractor's projections beyond that would not fit a message."""

_SERIES_TERMS = 160
"""Enough for x <= 30 (any b) and for x <= b/2 (ratio of terms below 1/2) to reach 1e-17."""

_SERIES_ARGUMENT = 30.0
_TRAPEZOID_DROP = 46.0
"""Nodes cover the integrand down to exp(-46) = 1e-20 of its peak."""

_FEWEST_NODES, _WIDEST_STEP = 64, 0.15
"""The rule's error is about exp(-pi^2 / (2 step)) from the strip |Im s| < pi/4 outside which the integrand grows where
x is large, and exp(-2 pi^2 / 0.3^2) from a Gaussian peak."""

_BRACKETING = 4
"""Bisections for each end of the peak: the nodes' range is then 3 per cent too wide."""


def log_kummer(b: float, x: ArrayLike) -> NDArray[np.float64]:
    """Logarithm of Kummer's function 1F1(1/2; b; x), to about 12 significant digits.

    Args:
        b: second parameter, d/2 with d >= 1.
        x: arguments, finite and >= 0, any shape.

    Returns:
        log 1F1(1/2; b; x), the shape of ``x``; exactly 0 where x = 0.

    Raises:
        InvalidValue: b < 1/2, or an argument is negative or not finite.
    """
    arguments = np.asarray(x, dtype=np.float64)
    if not b >= 0.5 or not math.isfinite(b):
        raise InvalidValue(f"b of 1F1(1/2; b; x) is {b}; it must be finite and at least 0.5 (d/2 with d >= 1)")
    if not np.all(np.isfinite(arguments)) or np.any(arguments < 0.0):
        raise InvalidValue("the argument of 1F1(1/2; b; x) must be finite and not negative")
    if b == 0.5:  # 1F1(1/2; 1/2; x) = exp(x): one dimension, every direction is +1 or -1
        return arguments.copy()
    flat = arguments.ravel()
    out = np.empty_like(flat)
    short = flat <= max(_SERIES_ARGUMENT, b / 2.0)
    if np.any(short):
        out[short] = _log_kummer_series(b, flat[short])
    if not np.all(short):
        out[~short] = _log_kummer_trapezoid(b, flat[~short])
    return out.reshape(arguments.shape)


def _log_kummer_series(b: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The positive power series sum_n (1/2)_n / (b)_n x^n / n!; log1p keeps tiny arguments exact."""
    decay = float(x.max()) / b  # bounds the ratio of neighbouring terms
    needed = _SERIES_TERMS if decay >= 0.5 else math.ceil(41.0 / -math.log(max(decay, 1e-40))) + 2  # exp(-41) = 1e-18
    n = np.arange(1.0, min(needed, _SERIES_TERMS) + 1.0)
    ratio = (n - 0.5) / ((b + n - 1.0) * n)  # (terms,)
    terms = np.cumprod(x[:, None] * ratio[None, :], axis=1)  # (arguments, terms)
    # Summed from the smallest term, so that no digit of the small ones is lost.
    result: NDArray[np.float64] = np.log1p(np.sum(terms[:, ::-1], axis=1))
    return result


def _log_kummer_trapezoid(b: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Trapezoidal rule for 1F1 = 1 / B(1/2, b-1/2) * int exp(x tanh^2 s) sech^(2b-1) s ds over the real line.

    This is 1F1(1/2; b; x) = E exp(x h), h ~ Beta(1/2, b-1/2), with h = tanh^2 s. The integrand is even and
    analytic for |Im s| < pi/2; it has one peak at s* >= 0 with cosh^2 s* = max(1, 2x/(2b-1)).
    """
    power = 2.0 * b - 1.0  # d - 1 >= 1

    def exponent(s: NDArray[np.float64], argument: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(over="ignore", divide="ignore"):
            square = np.sinh(s) ** 2  # cosh^2 - 1, which keeps the digits of small s
            value: NDArray[np.float64] = argument / (1.0 + 1.0 / square) - 0.5 * power * np.log1p(square)
        return value

    peak = np.arccosh(np.sqrt(np.maximum(1.0, 2.0 * x / power)))
    floor = exponent(peak, x) - _TRAPEZOID_DROP

    def half_width(side: float) -> NDArray[np.float64]:
        """How far from the peak the integrand falls below the floor, or s = 0 is reached, rounded up."""
        inner, outer = np.zeros_like(peak), np.full_like(peak, 4.0 / math.sqrt(power))

        def high(distance: NDArray[np.float64]) -> NDArray[np.bool_]:
            return exponent(np.maximum(peak + side * distance, 0.0), x) > floor

        while np.any(further := high(outer) & (peak + side * outer > 0.0)):
            inner, outer = np.where(further, outer, inner), np.where(further, 2.0 * outer, outer)
        for _ in range(_BRACKETING):
            middle = 0.5 * (inner + outer)
            above = high(middle)
            inner, outer = np.where(above, middle, inner), np.where(above, outer, middle)
        return outer

    start, outer = np.maximum(peak - half_width(-1.0), 0.0), peak + half_width(1.0)
    nodes = max(_FEWEST_NODES, math.ceil(float((outer - start).max()) / _WIDEST_STEP))
    step = (outer - start) / nodes
    s = start[:, None] + step[:, None] * np.arange(nodes + 1.0)[None, :]
    values = exponent(s, x[:, None])
    top = values.max(axis=1)
    heights = np.exp(values - top[:, None])
    heights[:, 0] *= 0.5  # half a cell at s = 0 by symmetry; anywhere else the end is negligible
    integral = 2.0 * step * heights.sum(axis=1)  # the even integrand's two halves
    result: NDArray[np.float64] = top + np.log(integral) - _log_beta_half(b - 0.5)
    return result


def _log_beta_half(a: float) -> float:
    """The logarithm of B(1/2, a) for a >= 1/2; the difference of two large log gammas would lose eight digits."""
    if a < 40.0:
        return 0.5 * math.log(math.pi) + float(gammaln(a)) - float(gammaln(a + 0.5))
    # log Gamma(a + 1/2) - log Gamma(a), an asymptotic series in 1/a; the next term is below 1e-16 for a >= 40.
    step = 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)
    return 0.5 * math.log(math.pi) - step


@dataclass(frozen=True)
class ShiftLaw:
    """The law of S = scale * H + constant, the squared shift of a release in units of the noise variance.

    H is the sum of ``directions`` iid Beta(1/2, (feature_dimension - 1)/2) variables. A record replaced by another
    one shifts the noisy values by at most sqrt(S); every price of a step is a function of this law.

    Attributes:
        feature_dimension: d, at least 1 (d = 1 means H = k exactly).
        directions: k, at least 1.
        scale: squared sensitivity of the sliced part over its noise variance, at least 0.
        constant: squared sensitivity of the other parts over theirs, at least 0.
    """

    feature_dimension: int
    directions: int
    scale: float
    constant: float = 0.0

    def __post_init__(self) -> None:
        for name, value, largest in (
            ("feature_dimension", self.feature_dimension, MAX_FEATURE_DIMENSION),
            ("directions", self.directions, MAX_DIRECTIONS),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
                raise InvalidValue(f"{name} is {value!r}; it must be a whole number from 1 to {largest}")
        for name, number in (("scale", self.scale), ("constant", self.constant)):
            if not (math.isfinite(number) and number >= 0.0):
                raise InvalidValue(f"{name} is {number!r}; it must be finite and not negative")

    def log_mgf(self, theta: ArrayLike) -> NDArray[np.float64]:
        """The logarithm of E exp(theta S) for theta >= 0, the shape of ``theta``."""
        values = np.asarray(theta, dtype=np.float64)
        sliced = self.directions * log_kummer(self.feature_dimension / 2.0, values * self.scale)
        return sliced + values * self.constant

    def log_moment(self, orders: ArrayLike) -> NDArray[np.float64]:
        """The logarithm of M(alpha): (alpha-1) eps(alpha) of one release on the full batch, for orders alpha >= 1.

        Args:
            orders: real orders alpha >= 1, any shape.

        Returns:
            log E exp(alpha (alpha-1) S / 2), the shape of ``orders``.
        """
        alpha = np.asarray(orders, dtype=np.float64)
        return self.log_mgf(alpha * (alpha - 1.0) / 2.0)

    def renyi(self, orders: ArrayLike) -> NDArray[np.float64]:
        """Renyi divergence eps(alpha) of one release on the full batch, for real orders alpha > 1."""
        alpha = np.asarray(orders, dtype=np.float64)
        return self.log_moment(alpha) / (alpha - 1.0)

    @property
    def mean(self) -> float:
        """E S = scale k/d + constant."""
        return self.scale * self.directions / self.feature_dimension + self.constant

    @property
    def largest(self) -> float:
        """The largest value of S: scale k + constant."""
        return self.scale * self.directions + self.constant

    @property
    def is_constant(self) -> bool:
        """Whether S is one number: d = 1, or no sliced part."""
        return self.feature_dimension == 1 or self.scale == 0.0
