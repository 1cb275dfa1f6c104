"""A charge is held from below and from above, by code that shares nothing with the code that made it.

From below stands one explicit pair of neighbours; no valid price is below its divergence. docs/privacy/bracket.md has
the proofs. The replaced record stands at one end of the ball and moves to the other, all others stay at the first end,
so that a sample shows the change exactly where it holds the record (gamma = b/n):

    P = (1 - gamma) Q + gamma N(s u, I)   against   Q = N(0, I),          S = s^2, random where directions are,
    (alpha-1) eps(alpha) = log sum_j C(alpha, j) (1-gamma)^(alpha-j) gamma^j E exp(j (j-1) S / 2)     at whole orders.

Every summand of "... = 1 + sum_j binomial (M_j - 1)" is positive, so that any of them may be left out; M_j of random
directions is the power series of Kummer's function, whose terms are positive too, cut off. From above stands Theorem 9
of Wang, Balle and Kasiviswanathan 2019 on the same moments, and the full batch. The lane of infinity, whose price is
an epsilon at a delta, is held from below by the composed profile of C_gamma's pair, derived anew (`composed_delta`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaln, logsumexp

from dpswd.shared.core.errors import AccountantsDisagree, InvalidEvent
from dpswd.shared.core.privacy.budget import Price
from dpswd.shared.core.privacy.events import (
    BoundedSum,
    ClippedVector,
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
)

Floats = NDArray[np.float64]

TOLERANCE = 1e-6
"""Relative room on either side, for the rounding of two computations in float64."""

SHARP = (6.0, 30.0, 150.0)
"""(alpha-1) eps(alpha) of a step at which bounds on sampling come near the pair: C_gamma at the first, HYB at odd
orders further up (bracket.md)."""

LARGEST_PROBE = 4096
"""Largest order at which the pricing is tried besides the filter's own."""

_TERMS = 20_000
"""Of Kummer's series; larger arguments are bounded by the tangent at the last that it reaches."""

_ENDS = 12
"""Summands kept at either end of the sum over j: they grow from the first ones to the last faster than a parabola."""


LARGEST_COMPOSED = 100.0
"""Epsilon above which the lane of infinity is not held: the Renyi lanes say as little there, and they are."""

_DELTA_ROOM = 0.0025
"""Relative room of an epsilon in the lane of infinity: the strips of `composed_delta` cost 0.2% of delta."""


def hold(
    event: RunEvent, orders: Sequence[float], price: Price, probe: Callable[[tuple[float, ...]], Sequence[float]]
) -> None:
    """Refuses a price that is below what the explicit pair of neighbours loses, or above Theorem 9.

    Args:
        event: what is charged.
        orders: of the filter's lanes.
        price: of the whole run.
        probe: prices the same run at other orders. Asked at `sharp_orders`, where some bound is near the pair: a fault
            of one part in a hundred shows there whatever orders the filter has.

    Raises:
        AccountantsDisagree: the charge is outside. Nothing was spent.
    """
    sharp = sharp_orders(event.step)
    everything = [*zip(orders, price.renyi, strict=True), *zip(sharp, probe(sharp), strict=True)]
    alpha, cost = np.array([order for order, _ in everything]), np.array([cost for _, cost in everything])
    lower, upper = (event.steps * bound(event.step, alpha) for bound in (lower_costs, upper_costs))
    for order, low, value, high in zip(alpha, lower, cost, upper, strict=True):
        if not low * (1.0 - TOLERANCE) <= value <= high * (1.0 + TOLERANCE) and not low == value == math.inf:
            raise AccountantsDisagree(
                f"at order {order:g} the run would be charged {value:.9g}; two neighbours lose {low:.9g} by it and "
                f"Theorem 9 allows {high:.9g}, so the charge must lie between; the run is refused, tell the operator"
            )
    pair, step = pair_shift(event.step), event.step  # without directions or a sample it lies one distance apart
    needed = event.steps * pair.constant if step.batch == step.records and pair.weight == 0.0 else math.inf
    if price.gaussian != needed and not abs(price.gaussian - needed) <= TOLERANCE * needed < math.inf:
        raise AccountantsDisagree(
            f"the run would be charged a squared shift of {price.gaussian:.9g}, two neighbours lie {needed:.9g} apart, "
            "and these must be the same; the run is refused, tell the operator"
        )
    if price.infinity <= LARGEST_COMPOSED:
        delta = composed_delta(event.step, event.steps, price.infinity * (1.0 + _DELTA_ROOM))
        if not delta <= price.run_delta:
            raise AccountantsDisagree(
                f"the run would be charged epsilon {price.infinity:.9g} at delta {price.run_delta:.3g}; composed anew "
                f"it has delta {delta:.3g} there, which must not be larger; the run is refused, tell the operator"
            )


def sharp_orders(step: StepEvent) -> tuple[float, ...]:
    """2, 3, and the least odd orders at which (order-1) eps of the pair reaches each of `SHARP`."""
    return tuple(sorted({2.0, 3.0, *(float(_least_odd_order(step, exponent)) for exponent in SHARP)}))


def _least_odd_order(step: StepEvent, exponent: float) -> int:
    low, high = 1, LARGEST_PROBE // 2
    while low < high:
        middle = (low + high) // 2
        reached = float(lower_costs(step, np.array([2.0 * middle + 1.0]))[0]) * 2.0 * middle >= exponent
        low, high = (low, middle) if reached else (middle + 1, high)
    return 2 * low + 1


@dataclass(frozen=True)
class PairShift:
    """Squared shift of the explicit pair: weight * H + constant, H the sum of k Beta(1/2, (d-1)/2) variables.

    Attributes:
        dimension: d.
        directions: k.
        weight: of H over the noise's variance; 0 without random directions.
        constant: of the parts of fixed sensitivity, over their variances.
    """

    dimension: int
    directions: int
    weight: float
    constant: float

    def log_moment(self, order: float) -> float:
        """A lower bound of log E exp(order (order-1) S / 2), tight but for a large order's remainder."""
        theta = order * (order - 1.0) / 2.0
        return self.directions * _log_kummer(self.dimension, theta * self.weight) + theta * self.constant


def pair_shift(step: StepEvent) -> PairShift:
    """How far the explicit pair of a step's neighbours lies apart, from the meaning of its parts alone.

    The rounding to the noise's grid is counted as the page on events states it.
    """
    dimension, directions, weight, constant = 1, 1, 0.0, 0.0
    for part in step.parts:
        if isinstance(part, (RowProjections, QuantileCoefficients)):
            dimension, directions, share, values = part.feature_dimension, part.directions, 1.0, part.directions
            if isinstance(part, QuantileCoefficients):
                # All others stand where the record stood: in each direction it becomes the largest or the smallest, and
                # the difference of the sorted projections is |z u| at one end of the sample.
                angles = np.pi * np.arange(1, part.coefficients) / (2.0 * step.batch)
                share = min(1.0, (1.0 + 2.0 * float(np.square(np.cos(angles)).sum())) / step.batch)
                values *= part.coefficients
            rounding = part.grid_step * math.sqrt(values)
            mean = math.sqrt(share * directions / dimension)  # (mean + rounding)^2 at the mean of H
            weight = share * (1.0 + rounding / mean) / part.sigma**2
            constant += rounding * (rounding + mean) / part.sigma**2
        elif isinstance(part, BoundedSum):
            constant += ((part.sensitivity + part.grid_step * math.sqrt(part.changed)) / part.sigma) ** 2
        elif isinstance(part, SanitizedGradient):
            constant += ((2.0 * part.clip_norm + part.grid_step * math.sqrt(part.parameters)) / part.sigma) ** 2
        elif isinstance(part, ClippedVector):
            constant += ((2.0 * part.clip_norm + part.grid_step * math.sqrt(part.values)) / part.sigma) ** 2
        else:  # counted as nothing, it would be held from below by nothing
            raise InvalidEvent(f"no pair of neighbours is written down for {type(part).__name__}")
    return PairShift(dimension, directions, weight, constant)


def _log_kummer(dimension: int, x: float) -> float:
    """A lower bound of log 1F1(1/2; d/2; x), x >= 0: its first terms, or its tangent beyond them (it is convex)."""
    if dimension == 1 or x == 0.0:
        return x
    b, reach = 0.5 * dimension, min(x, _TERMS / 4.0)
    n = np.arange(1.0, math.ceil(min(_TERMS, reach + 12.0 * math.sqrt(reach) + 60.0)) + 1.0)
    log_terms = np.cumsum(np.log((n - 0.5) * reach / ((b + n - 1.0) * n)))
    largest = max(0.0, float(log_terms.max()))
    terms = np.exp(log_terms - largest)
    rest = float(terms.sum())
    value = math.log1p(rest) if largest == 0.0 else largest + math.log(math.exp(-largest) + rest)
    slope = float(n @ terms) / reach / (math.exp(-largest) + rest)
    return value + (x - reach) * slope


def lower_costs(step: StepEvent, orders: Floats) -> Floats:
    """Renyi divergences of the explicit pair at orders > 1, or less. Shape (orders,)."""
    shift, ratio = pair_shift(step), step.batch / step.records
    if step.batch == step.records:
        return np.array([shift.log_moment(order) / (order - 1.0) for order in orders])
    moments: dict[int, float] = {}

    def cumulant(order: int) -> float:
        """(order-1) eps(order); the sum's two ends."""
        own = sorted({*range(2, min(order, _ENDS) + 1), *range(max(2, order - _ENDS), order + 1)})
        for j in own:
            if j not in moments:
                moments[j] = shift.log_moment(float(j))
        j, log_m = np.array(own, dtype=np.float64), np.array([moments[j] for j in own])
        binomial = gammaln(order + 1.0) - gammaln(j + 1.0) - gammaln(order - j + 1.0)
        with np.errstate(divide="ignore"):
            excess = log_m + np.log(-np.expm1(-log_m))  # log(M - 1)
        return _log1p_exp(float(logsumexp(binomial + (order - j) * math.log1p(-ratio) + j * math.log(ratio) + excess)))

    costs = np.empty(len(orders))
    for index, order in enumerate(orders):
        whole = math.floor(order)
        costs[index] = cumulant(whole) / (whole - 1.0) if whole >= 2 else max(0.0, _between(cumulant, order))
    return costs


def _between(cumulant: Callable[[int], float], order: float) -> float:
    """A divergence at an order from 1 to 2: the cumulant is convex, so it lies above the chord's extension."""
    second, third = cumulant(2), cumulant(3)
    return (second - (2.0 - order) * (third - second)) / (order - 1.0)


def upper_costs(step: StepEvent, orders: Floats) -> Floats:
    """Wang, Balle and Kasiviswanathan 2019, Theorem 9, and the full batch, at orders > 1. Shape (orders,)."""
    law, ratio = step.shift(), step.batch / step.records
    shift = PairShift(law.feature_dimension, law.directions, law.scale, law.constant)
    full = law.renyi(orders)  # of the charged law; its series of the pair is checked against it from below
    if ratio == 1.0:
        return full
    ceilings = np.maximum(np.ceil(orders), 2.0).astype(np.int64)
    # Theorem 9 matters at low orders alone; beyond this one the series of its moments would be cut off.
    exact = 0.5 + math.sqrt(0.25 + 0.5 * _TERMS / max(shift.weight, 1e-12))
    largest = max(2, int(min(ceilings.max(), 64, exact)))
    j = np.arange(2.0, largest + 1.0)
    log_m = np.array([shift.log_moment(order) for order in j])
    log_z = math.log(2.0) + log_m
    log_z[0] = min(log_z[0], math.log(4.0) + log_m[0] + math.log(-math.expm1(-log_m[0])) if log_m[0] else -math.inf)
    for index, order in enumerate(ceilings):
        if order <= largest:
            use = j <= order
            binomial = gammaln(order + 1.0) - gammaln(j[use] + 1.0) - gammaln(order - j[use] + 1.0)
            cumulant = _log1p_exp(float(logsumexp(binomial + j[use] * math.log(ratio) + log_z[use])))
            full[index] = min(full[index], cumulant / (order - 1.0))
    return full


def _log1p_exp(value: float) -> float:
    return float(np.logaddexp(0.0, value)) if value > -30.0 else math.exp(value)


def composed_delta(step: StepEvent, steps: int, epsilon: float) -> float:
    """Delta at ``epsilon`` of the T-fold composition of the symmetric pair of C_gamma, derived anew; less at most.

    The pair's likelihood ratio is L >= 1 with mass L dN, 1/L with mass dN, else 1 (Balle, Barthe, Gaboardi 2018; Dong,
    Roth, Su 2019): L = 1 + gamma (exp(s y - s^2/2) - 1) for y >= s/2. Its loss is spread over a lattice with its mean
    kept, tilted so that the answer lies in the middle, and raised to the T-th power by one Fourier transform.
    """
    loss, log_mass = _step_loss(pair_shift(step), step.batch / step.records)
    tilts = np.geomspace(1e-3, 1e5, 60)
    tilts = tilts[: 1 + int(np.searchsorted(tilts, 600.0 / float(loss.max())))]
    cumulants = np.array([logsumexp(log_mass + tilt * loss) for tilt in tilts])
    best = int(np.argmin(steps * cumulants - tilts * epsilon))
    tilt, cumulant = float(tilts[best]), float(cumulants[best])
    weight = np.exp(log_mass + tilt * loss - cumulant)
    deviation = math.sqrt(steps * max(float(weight @ loss**2) - float(weight @ loss) ** 2, 1e-300))
    width = max(30.0 * deviation, 4.0 * float(np.abs(loss[weight > _NEGLIGIBLE]).max()))
    spacing = width / _POINTS
    place = loss / spacing
    below = np.floor(place)
    lattice = np.zeros(_POINTS)
    for index, part in ((below, 1.0 - (place - below)), (below + 1.0, place - below)):
        np.add.at(lattice, index.astype(np.int64) % _POINTS, weight * part)
    power = np.fft.irfft(np.fft.rfft(lattice) ** steps, _POINTS)
    first = math.floor((epsilon - 0.5 * width) / spacing)
    places = first + np.arange(_POINTS)  # losses that the window stands for, epsilon in its middle
    total = places * spacing
    over = total > epsilon
    gain = np.exp(steps * cumulant - tilt * total[over]) * -np.expm1(epsilon - total[over])
    return float(np.maximum(power[places[over] % _POINTS], 0.0) @ gain)


_POINTS = 2**16
"""Of the lattice: T spacing^2 / 4 is what it adds to the variance of the loss."""

_NEGLIGIBLE = 1e-18
"""Of a tilted mass, in float64 beside 1."""

_FARTHEST = 45.0
"""Standard deviations of a step's noise that are looked at: beyond them lies less than 1e-400."""


_STRIPS = 900
"""Of the noise, each counted at its middle: 1e-4 of a mass at most."""


def _step_loss(shift: PairShift, ratio: float) -> tuple[Floats, Floats]:
    """Losses of one step under the symmetric pair, and the logarithms of their masses."""
    losses, log_masses = [], []
    for square, probability in zip(*_shift_nodes(shift), strict=True):
        s = math.sqrt(square)
        edges = np.linspace(0.5 * s, 0.5 * s + _FARTHEST, _STRIPS + 1)
        y = 0.5 * (edges[1:] + edges[:-1])
        log_weight = math.log(probability * (edges[1] - edges[0]) / math.sqrt(2.0 * math.pi)) - 0.5 * y * y
        grown = math.log(ratio) + s * y - 0.5 * square
        log_ratio = grown if ratio == 1.0 else np.logaddexp(math.log1p(-ratio), grown)
        losses += [log_ratio, -log_ratio]
        log_masses += [log_weight + log_ratio, log_weight]
    log_mass = np.concatenate(log_masses)
    rest = max(1.0 - float(np.exp(log_mass).sum()), 1e-300)
    return np.concatenate([*losses, [0.0]]), np.append(log_mass, math.log(rest))


def _shift_nodes(shift: PairShift) -> tuple[Floats, Floats]:
    """Values of S and probabilities, stochastically at most its law: every H is rounded down."""
    d, k = shift.dimension, shift.directions
    if d == 1 or shift.weight == 0.0:
        return np.array([shift.weight * k + shift.constant]), np.ones(1)
    # d H is the sum of k variables of mean 1, each rounded down to a lattice; the mass beyond its end wraps to less.
    cell = 1.0 / _CELLS
    size = 1 << math.ceil(math.log2(_CELLS * (k + 12.0 * math.sqrt(2.0 * k) + 80.0)))
    edges = np.minimum(np.arange(size + 1.0) * cell / d, 1.0)
    one = np.diff(betainc(0.5, 0.5 * (d - 1.0), edges))
    masses = np.maximum(np.fft.irfft(np.fft.rfft(one) ** k, size), 0.0)
    upper = np.cumsum(masses[::-1])[::-1]
    # Ends of bins: quantiles of both tails, since rare large shifts decide small deltas.
    tails = np.concatenate([np.linspace(0.995, 0.1, 12), np.geomspace(0.06, 1e-12, 16)])
    lower = np.unique(np.concatenate([[0], np.searchsorted(-upper, -tails, side="right") - 1]).clip(0))
    probabilities = -np.diff(np.append(upper[lower], 0.0))
    keep = probabilities > 0.0
    return shift.weight * lower[keep] * cell / d + shift.constant, probabilities[keep]


_CELLS = 256
"""Of the lattice for d H in a unit: rounding k variables down costs k / 512 of a mean of k."""
