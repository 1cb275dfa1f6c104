"""A run's Renyi price derived again through autodp (Wang, Balle, Kasiviswanathan 2019, Theorem 27).

dpswd's own accountant decides, and `bracket` holds its charge; this is an independent check of its sums, binomials and
forward differences, made when a run is opened. Both start from the exact full-batch curve (``curves``, checked against
mpmath by the tests). autodp is imported by `figures` alone, which a curator runs in a process without its secrets
(`dpswd.private_curator.serving.second_accountant`).

The known order of the figures at integer orders alpha, on which the check insists:

    charged cost (HYB, C_gamma)  <=  Theorem 27 here;    Theorem 27 here  =  Theorem 27 by autodp, to 1e-6,

the equality at order 2, where Theorem 27 takes no forward differences. At higher orders the check is one-sided: never
cheaper than autodp's Theorem 27, never dearer than its Theorem 9. docs/privacy/accountant-crosscheck.md maps where the
two lose digits, which is why the orders end at 24.

autodp 0.2.3.1 has traps (docs/privacy, 9): a curve must accept infinity, orders between 1 and 2 are wrong, so they are
not compared, and its transformer for sampling computes all orders to 100, which takes ten times as long; so its
accountant is asked, whose `compose_subsampled_mechanism` is for samples without replacement and replaced records.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.accounting.amplification import log_moments
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.accounting.costs import step_costs
from dpswd.shared.core.errors import AccountantsDisagree
from dpswd.shared.core.privacy.events import RunEvent, StepEvent

ORDERS = tuple(float(order) for order in (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24))
"""Integer orders; beyond them autodp's differences lose too many digits to either side."""

TOLERANCE = 1e-6
"""Largest relative difference of the two Theorem 27 curves; both carry rounding margins below 1e-7."""

_FLOOR = 1e-13
"""autodp computes log(1 + x) without log1p: costs below this are rounding to it."""

_LARGEST = 25
"""Orders that autodp prepares: the last one, and one more for its forward differences."""

_TABLE = 128


@dataclass(frozen=True)
class CrossCheck:
    """What the two accountants said, per step. All of shape (orders,).

    Attributes:
        orders: the integer orders compared.
        charged: what dpswd charges at them.
        theorem_27: Theorem 27 by dpswd.
        autodp: Theorem 27 by autodp.
        theorem_9: Theorem 9 by autodp.
    """

    orders: NDArray[np.float64]
    charged: NDArray[np.float64]
    theorem_27: NDArray[np.float64]
    autodp: NDArray[np.float64]
    theorem_9: NDArray[np.float64]

    @property
    def largest_difference(self) -> float:
        """Largest relative difference of the two Theorem 27 curves at order 2, or by which ours is lower at any."""
        counts = (self.theorem_27 < self.autodp) | (self.orders == 2.0)
        apart = np.maximum(0.0, np.abs(self.theorem_27 - self.autodp) - _FLOOR) / np.maximum(self.autodp, _FLOOR)
        return float(np.max(apart[counts], initial=0.0))


@dataclass(frozen=True)
class Figures:
    """What autodp says of one step at `ORDERS`: Theorem 27 and Theorem 9."""

    theorem_27: tuple[float, ...]
    theorem_9: tuple[float, ...]


def figures(step: StepEvent) -> Figures:
    """Asks autodp. Takes about half a second for a step of its own, and imports the library."""
    return Figures(tuple(_autodp(step, improved=True)), tuple(_autodp(step, improved=False)))


def check_with_autodp(event: RunEvent, ask: Callable[[StepEvent], Figures] = figures) -> CrossCheck:
    """Derive a run's per-step Renyi price again through autodp.

    Args:
        event: the run; every step costs the same, so one step is compared.
        ask: gives autodp's figures, in this process or by another one.

    Returns:
        The figures, for the operator's log.

    Raises:
        AccountantsDisagree: the figures are not in their known order, or autodp gave no finite figure.
    """
    step = event.step
    theirs = ask(step)
    said = np.array(
        [ORDERS, step_costs(step, ORDERS, committed=True), _theorem_27(step), theirs.theorem_27, theirs.theorem_9]
    )
    said = said[:, np.isfinite(said[3:]).all(axis=0)]
    if not said.size:
        raise AccountantsDisagree("autodp gives no finite price for this run; the run is refused, tell the operator")
    result = CrossCheck(*said)
    difference = result.largest_difference
    if not difference <= TOLERANCE:
        raise AccountantsDisagree(
            f"autodp and dpswd differ by {difference:.2g} (relative) in Theorem 27, allowed is {TOLERANCE:g}; "
            "the run is refused, tell the operator"
        )
    for order, cost, bound, _, most in said.T:
        if not 0.0 <= cost <= bound * (1.0 + TOLERANCE) + _FLOOR or not bound <= most * (1.0 + TOLERANCE) + _FLOOR:
            raise AccountantsDisagree(
                f"at order {order:g} dpswd charges {cost:.9g} a step, its Theorem 27 is {bound:.9g} and autodp's "
                f"Theorem 9 {most:.9g}, which must not decrease in this order; the run is refused, tell the operator"
            )
    return result


def _theorem_27(step: StepEvent) -> tuple[float, ...]:
    law, alpha = step.shift(), np.array(ORDERS)
    if step.batch == step.records:
        return tuple(float(value) for value in law.renyi(alpha))
    moments = log_moments(law, step.sampling_ratio, Bound.WBK27, alpha.astype(np.int64), log_t2=None)
    return tuple(float(value) for value in moments / (alpha - 1.0))


def _autodp(step: StepEvent, *, improved: bool) -> list[float]:
    full = _curve(step)
    if step.batch == step.records:
        return [full(order) for order in ORDERS]
    from autodp.rdp_acct import anaRDPacct  # here alone: the curator's own process never loads it

    accountant = anaRDPacct(m=_LARGEST)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # autodp takes logarithms of zero on its way
        accountant.compose_subsampled_mechanism(full, step.sampling_ratio, improved_bound_flag=improved)
        accountant.build_zeroth_oracle()
        # Sampling never costs more than the full batch; autodp leaves that out of its improved bound.
        return [min(float(accountant.evalRDP(order)), full(order)) for order in ORDERS]


def _curve(step: StepEvent) -> Callable[[float], float]:
    """The exact full-batch curve as autodp wants it: any order, infinity included; whole orders from a table."""
    law = step.shift()
    table = law.renyi(np.arange(2.0, _TABLE + 1.0))

    def rdp(order: float) -> float:
        if math.isinf(order):
            return math.inf
        if order <= 1.0:
            return law.mean / 2.0  # the Kullback-Leibler divergence
        if float(order).is_integer() and order <= _TABLE:
            return float(table[int(order) - 2])
        return float(law.renyi(order))

    return rdp
