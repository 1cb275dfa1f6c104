"""Orders and weights of a Renyi filter: fixed before the first charge, from the budget and the declared plan.

A filter certifies a session by any one of its *lanes*. A lane of order alpha may use the share w_alpha of delta for
its conversion; the lane of order infinity adds up the epsilons of runs priced by their PLD and may use its share for
their deltas. The shares add up to at most 1 (docs/privacy/filter-and-composition.md).

Layouts are tried on the first declared charge until it fits: balanced, one order, one run, and the last two with all
but a ten-thousandth of delta, for a run that was sized to the whole budget (the same document has their table).
The choice depends on public values only, and is made before anything was released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpswd.shared.accounting.calibration import WHOLE_SHARE
from dpswd.shared.core.privacy.filter import MAX_ORDER

_BALANCED_CENTRE = 0.62

CAUTIOUS, ALL = 0.97, WHOLE_SHARE
"""Shares of delta that the one-order and one-run layouts give to their lane."""

_GAUSSIAN = 0.25  # to the lane of Gaussian runs, where the first is one: 8% more noise than all of delta; for others 1%

_WEIGHT_SUM = 1.0 - 1e-12
"""The shares' sum stays this much below 1, so that rounding cannot lift it above."""


@dataclass(frozen=True)
class Layout:
    """Shares of delta.

    Attributes:
        shares: w_alpha, one for each order of the filter; 0 closes a lane.
        infinity_share: at which the lane of infinity prices a committed run; 0: it does not admit runs.
        gaussian_share: of the lane of Gaussian releases.
    """

    shares: tuple[float, ...]
    infinity_share: float
    gaussian_share: float = 0.0


def orders_for(epsilon: float, delta: float, also: float) -> tuple[float, ...]:
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
    return tuple(sorted({*orders, also}))


def balanced(count: int, centre: int, *, gaussian: bool = False) -> Layout:
    """Most of delta on one order, the rest on the others, halved with every two orders of distance."""
    rest = 1.0 - _BALANCED_CENTRE
    raw = [0.5 ** (abs(index - centre) / 2.0) + 1e-3 if index != centre else 0.0 for index in range(count)]
    shares = [rest * value / math.fsum(raw) for value in raw]
    shares[centre] = _BALANCED_CENTRE
    lane = _GAUSSIAN * gaussian
    return replace(_layout([(1.0 - lane) * share for share in shares], 0.0), gaussian_share=lane)


def one_order(count: int, centre: int, share: float) -> Layout:
    """``share`` of delta on one order, what is left on the others."""
    rest = (1.0 - share) / (count - 1)
    shares = [rest] * count
    shares[centre] = share
    return _layout(shares, 0.0)


def one_run(count: int, centre: int, share: float) -> Layout:
    """``share`` of delta on the lane of infinity, the rest on the orders, half of it on one."""
    rest = (1.0 - share) / 2.0
    shares = [rest / (count - 1)] * count
    shares[centre] = rest
    return _layout(shares, share)


def _layout(shares: list[float], infinity: float) -> Layout:
    return Layout(shares=tuple(share * _WEIGHT_SUM for share in shares), infinity_share=infinity * _WEIGHT_SUM)
