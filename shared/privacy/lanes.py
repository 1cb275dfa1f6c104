"""Orders and weights of a Renyi filter: fixed before the first charge, from the budget and the declared plan.

A filter certifies a session by any one of its *lanes*. A lane of order alpha may use the share w_alpha of delta for
its conversion; the lane of order infinity adds up epsilons and may use the approximate share of delta for the deltas
of its charges. The shares add up to at most 1 (docs/privacy/filter-and-composition.md).

Layouts are tried on the first declared charge, in this order, until it fits:

* balanced: most of delta on the order at which the plan's step could be repeated most often, the rest spread around;
* one order: nearly all of delta on the best order for exactly this run;
* one run: nearly all of delta on the lane of infinity, where a committed run is priced by its PLD;
* the last two with all but a ten-thousandth of delta, for a run that was sized to the whole budget. The rest goes to
  the plan's order, so that an operator who extends epsilon later finds a lane that can use it.

The choice depends on public values only, and is made before anything was released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.privacy.calibration import WHOLE_SHARE

MAX_ORDER = 4096.0
"""Largest order of a filter: enough for epsilon down to about log(1/delta)/2000; the lane of infinity serves below."""

_BALANCED_CENTRE, _BALANCED_APPROXIMATE = 0.62, 0.05
_SINGLE_APPROXIMATE = 0.01

CAUTIOUS, ALL = 0.97, WHOLE_SHARE
"""Shares of delta that the one-order and one-run layouts give to their lane."""

_WEIGHT_SUM = 1.0 - 1e-12
"""The shares' sum stays this much below 1, so that rounding cannot lift it above."""


@dataclass(frozen=True)
class Layout:
    """Shares of delta.

    Attributes:
        shares: w_alpha, one for each order of the filter; 0 closes a lane.
        approximate_share: for the deltas of approximate charges and of runs priced by their PLD.
        run_delta_share: share at which the lane of infinity prices a committed run; 0: it does not admit runs.
    """

    shares: tuple[float, ...]
    approximate_share: float
    run_delta_share: float


def orders_for(epsilon: float, delta: float, also: float | None = None) -> tuple[float, ...]:
    """Candidate orders for a budget: dense where small, geometric up to three times a Gaussian session's best.

    A session of Gaussian releases with rho alpha = eps(alpha) that just fills (epsilon, delta) has its best order
    near 1 + sqrt(log(1/delta) / rho) with sqrt(rho) = sqrt(log(1/delta) + epsilon) - sqrt(log(1/delta)).

    Args:
        epsilon: the budget's.
        delta: the budget's.
        also: one more order, the plan's own best one.
    """
    log_inverse = math.log(1.0 / delta)
    root = epsilon / (math.sqrt(log_inverse + epsilon) + math.sqrt(log_inverse))
    top = min(MAX_ORDER, max(64.0, 3.0 * (1.0 + math.sqrt(log_inverse) / root)))
    orders = [1.1, 1.25, 1.5, 1.75, *(float(order) for order in range(2, 15)), 16.0]
    ratio = max(1.12, (top / 16.0) ** (1.0 / 30.0))
    while orders[-1] < top:
        orders.append(float(math.ceil(orders[-1] * ratio)))
    if also is not None:
        orders.append(also)
    return tuple(sorted(set(orders)))


def balanced(count: int, centre: int) -> Layout:
    """Most of delta on one order, the rest on the others, halved with every two orders of distance."""
    rest = 1.0 - _BALANCED_CENTRE - _BALANCED_APPROXIMATE
    raw = [0.5 ** (abs(index - centre) / 2.0) + 1e-3 if index != centre else 0.0 for index in range(count)]
    shares = [rest * value / math.fsum(raw) for value in raw]
    shares[centre] = _BALANCED_CENTRE
    return _layout(shares, _BALANCED_APPROXIMATE, 0.0)


def one_order(count: int, centre: int, share: float) -> Layout:
    """``share`` of delta on one order, what is left on the others and on approximate charges."""
    approximate = min(_SINGLE_APPROXIMATE, (1.0 - share) / 2.0)
    rest = max(0.0, 1.0 - share - approximate) / (count - 1)
    shares = [rest] * count
    shares[centre] = share
    return _layout(shares, approximate, 0.0)


def one_run(count: int, centre: int, share: float) -> Layout:
    """``share`` of delta on the lane of infinity, the rest on the orders, half of it on one."""
    rest = (1.0 - share) / 2.0
    shares = [rest / (count - 1)] * count
    shares[centre] = rest
    return _layout(shares, share, share)


def _layout(shares: list[float], approximate: float, run: float) -> Layout:
    return Layout(
        shares=tuple(share * _WEIGHT_SUM for share in shares),
        approximate_share=approximate * _WEIGHT_SUM,
        run_delta_share=run * _WEIGHT_SUM,
    )
