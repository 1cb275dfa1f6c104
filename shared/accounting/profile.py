"""The exact privacy profile of one full-batch release (gamma = 1).

U is public and independent of the data, so the profile of the pair (U, release) is the average over U of the
Gaussian mechanism's (docs/privacy, 2):

    delta(eps) = E_S[ Phi(s/2 - eps/s) - e^eps Phi(-s/2 - eps/s) ],   s = sqrt(S).

The law of S is discretised as slice_law.py describes, so that the answer is above the exact value by about one part
in 10,000 and never below. T full-batch releases are one release with k T directions.
"""

from __future__ import annotations

import math

import numpy as np

from dpswd.shared.accounting.conversion import affordable_end
from dpswd.shared.accounting.discretisation import StepPair
from dpswd.shared.accounting.slice_law import shift_nodes, with_largest
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.curves import ShiftLaw

MIN_DELTA = 1e-200
"""Smallest delta, see pld.MIN_DELTA."""


def epsilon(law: ShiftLaw, delta: float) -> float:
    """Smallest epsilon of one full-batch release at ``delta``, rounded up.

    Args:
        law: the law of the squared shift.
        delta: from MIN_DELTA to below 1.

    Raises:
        InvalidValue: delta is out of range.
    """
    if not MIN_DELTA <= delta < 1.0:
        raise InvalidValue(f"delta is {delta!r}; it must be from {MIN_DELTA:g} to below 1")
    pair = _pair(law, math.log(delta) - 16.0)
    if _at(pair, 0.0) <= delta:
        return 0.0
    # A Gaussian's loss is below S/2 + s sqrt(2 log(1/delta)) but for delta; S is rarely far from its mean.
    high = 0.5 * law.mean + math.sqrt(-2.0 * law.mean * math.log(delta))
    high_gap = _gap(pair, high, delta)
    low, low_gap = 0.0, math.inf
    while high_gap > 0.0:
        low, low_gap, high = high, high_gap, 2.0 * high
        high_gap = _gap(pair, high, delta)
    while low == 0.0 and high > 1e-12:
        if (middle_gap := _gap(pair, 0.5 * high, delta)) > 0.0:
            low, low_gap = 0.5 * high, middle_gap
        else:
            high, high_gap = 0.5 * high, middle_gap
    return affordable_end(lambda at: _gap(pair, at, delta), (low, low_gap), (high, high_gap), relative=1e-13)


def _gap(pair: StepPair, x: float, delta: float) -> float:
    value = _at(pair, x)
    return math.log(value / delta) if value > 0.0 else -math.inf


def _pair(law: ShiftLaw, log_tail: float) -> StepPair:
    nodes = with_largest(shift_nodes(law, log_tail=log_tail), law)
    return StepPair(nodes.shifts, nodes.weights, 1.0)


def _at(pair: StepPair, x: float) -> float:
    return float(pair.profile(np.array([x]))[0])
