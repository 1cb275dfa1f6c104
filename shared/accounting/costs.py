"""What one event costs at given Renyi orders: the smaller of all valid bounds, order by order, rounded up."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.accounting import c_gamma
from dpswd.shared.accounting.amplification import LARGEST_ORDER, full_batch_curve, log_moments, renyi_curve
from dpswd.shared.accounting.bounds import Bound, integer_moments
from dpswd.shared.accounting.conversion import convex_envelope, headroom
from dpswd.shared.accounting.one_sided import COMPUTED_ORDERS, table_size
from dpswd.shared.accounting.one_sided_table import one_sided_moment, precise_moment
from dpswd.shared.accounting.ternary import log_second_moment
from dpswd.shared.core.privacy.curves import ShiftLaw
from dpswd.shared.core.privacy.events import RunEvent, StepEvent

_ROUNDING = 1e-9
"""Relative margin, far above float64's error and far below anything that matters."""

WORTHLESS_COST = 1000.0
"""A step that costs more at every order is priced by HYB alone: C_gamma of such shifts takes seconds."""


@lru_cache(maxsize=1024)
def step_costs(step: StepEvent, orders: tuple[float, ...], *, committed: bool) -> tuple[float, ...]:
    """Renyi divergence of one step at increasing real orders > 1: min(HYB, C_gamma, full batch).

    Args:
        step: what is released.
        orders: the orders, increasing.
        committed: whether the step is repeated in a committed run. HYB then integrates the step's own law; a single
            step takes its one-sided moments from the table that a session's many different steps share, up to the
            table's last order, which is many times faster and costs little more (C_gamma is close above). Both are
            valid.

    Returns:
        Upper bounds on eps(alpha), one for each order; ``inf`` where the curve leaves float64's range.
    """
    law = step.shift()
    alpha = np.array(orders)
    if step.batch == step.records or law.largest == 0.0:
        return _rounded(full_batch_curve(law, alpha))
    integers, grid = _grids(orders, LARGEST_ORDER if committed else int(COMPUTED_ORDERS[-1]))
    gamma = step.sampling_ratio
    hyb = log_moments(
        law,
        gamma,
        Bound.HYB,
        integers.astype(np.int64),
        log_t2=log_second_moment(step),
        one_sided=precise_moment if committed else one_sided_moment,
    )
    full = _log_moment(law, grid, int(integers[-1]))
    moments = full.copy()
    where = np.searchsorted(grid, integers)
    moments[where] = np.minimum(moments[where], hyb)
    if float(np.min(moments / (grid - 1.0))) <= WORTHLESS_COST:
        where = np.searchsorted(grid, alpha)
        with np.errstate(over="ignore"):
            moments[where] = np.minimum(moments[where], c_gamma.log_moment(law, gamma, alpha, full=full[where]))
    envelope = convex_envelope(grid, moments)[np.searchsorted(grid, alpha)]
    return _rounded(envelope / (alpha - 1.0) * (1.0 + _ROUNDING))


@lru_cache(maxsize=8)
def _grids(orders: tuple[float, ...], largest: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """HYB lives on integers; one more order, 2, anchors what lies between 1 and 2. These, and all orders with them."""
    alpha = np.array(orders)
    integers = np.unique(np.concatenate([[2.0], np.floor(alpha), np.ceil(alpha)]))
    integers = integers[(integers >= 2.0) & (integers <= largest)]
    return integers, np.union1d(alpha, integers)


def _log_moment(law: ShiftLaw, orders: NDArray[np.float64], largest: int) -> NDArray[np.float64]:
    """``law.log_moment``; most orders are integers that HYB looked up already."""
    tabulated = (orders == np.floor(orders)) & (orders <= largest)
    result = np.empty_like(orders)
    result[tabulated] = integer_moments(law, table_size(largest))[orders[tabulated].astype(np.int64)]
    result[~tabulated] = law.log_moment(orders[~tabulated])
    return result


def _rounded(costs: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(cost) if math.isfinite(cost) else math.inf for cost in costs)


def best_order(run: RunEvent, delta: float) -> float:
    """The order at which HYB converts exactly this run to the smallest epsilon at ``delta``."""
    orders, curve = renyi_curve(run.step, Bound.HYB)
    return float(orders[np.argmin(run.steps * curve + headroom(orders, math.log(delta)))])
