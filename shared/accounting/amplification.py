"""Renyi curves of a step on a sample drawn without replacement: WBK9, WBK27 and HYB.

gamma = b/n; L is the likelihood ratio of two neighbouring full-batch releases with squared shift S (``ShiftLaw``),
M_j = E L^j = exp((j-1) eps(j)). Each bound has the form (Wang, Balle, Kasiviswanathan 2019, proof of Theorem 9)

    exp((alpha-1) eps_sub(alpha)) <= 1 + sum_{j=2}^{alpha} C(alpha, j) gamma^j Z_j,         alpha = 2, 3, ...

    WBK9   Z_2 = min(4 (M_2 - 1), 2 M_2),  Z_j = 2 M_j
    WBK27  the same Z_2,                   Z_j = min(2 M_j, 4 sqrt(D_(2 floor(j/2)) D_(2 ceil(j/2)))),  D_j = E (L-1)^j
    HYB    Z_2 = (1-g) T2 + g (M_2 - 1),   Z_j = min(M_j, (2-g) B+(j)) for odd j,
                                           Z_j = min(2 M_j, (4-3g) B+(j) + g min(1, B+(j))) for even j,  g = gamma

and T2 is the second moment of three pairwise neighbours (``ternary.second_moment``). The proofs stand in
docs/privacy/amplification.md. (alpha-1) eps_sub(alpha) is convex, so the bounds' convex envelope is a bound too.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from dpswd.shared.accounting.bounds import Bound, integer_moments
from dpswd.shared.accounting.conversion import convex_envelope
from dpswd.shared.accounting.one_sided import OneSided, table_size
from dpswd.shared.accounting.one_sided_table import precise_moment
from dpswd.shared.accounting.ternary import log_second_moment
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.privacy.curves import ShiftLaw
from dpswd.shared.core.privacy.events import StepEvent

LARGEST_ORDER = 512
"""Largest order of the subsampled curve: enough for epsilon above about log(1/delta)/500."""

CHORDS = 16
"""Points between neighbouring integer orders at which the convex curve's chords are evaluated."""

FULL_BATCH_ORDERS = 1.0 + np.geomspace(1e-4, 1e10, 1401)
"""Real orders of the exact curve where nothing is sampled."""

_ROUNDING = 1e-9
"""Relative margin on every curve: far above float64's error in the sums, far below anything that matters."""


def integer_orders(largest: int) -> NDArray[np.int64]:
    """Orders 2, 3, ... 64, then ever sparser up to ``largest`` (itself included)."""
    sparse = [*range(2, 65), *range(66, 97, 2), *range(100, 129, 4), *range(136, 193, 8), *range(208, 257, 16)]
    sparse += range(288, LARGEST_ORDER + 1, 32)
    return np.array([order for order in sparse if order < largest] + [largest])


def renyi_curve(
    step: StepEvent, bound: Bound, largest: int = LARGEST_ORDER
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The Renyi curve of one step under WBK9, WBK27 or HYB; the exact curve on the full batch.

    Args:
        step: what is released.
        bound: WBK9, WBK27 or HYB.
        largest: largest order of a subsampled curve.

    Returns:
        Orders alpha > 1 and upper bounds on eps(alpha), both of shape (orders,).

    Raises:
        InvalidValue: ``bound`` is not one of the three.
    """
    if bound not in (Bound.WBK9, Bound.WBK27, Bound.HYB):
        raise InvalidValue(f"bound is {bound}; a subsampled Renyi curve exists for wbk9, wbk27 and hyb")
    law = step.shift()
    if step.batch == step.records:
        return FULL_BATCH_ORDERS, full_batch_curve(law, FULL_BATCH_ORDERS)
    log_t2 = log_second_moment(step) if bound is Bound.HYB else None
    return subsampled_curve(law, step.sampling_ratio, bound, log_t2=log_t2, largest=largest)


def full_batch_curve(law: ShiftLaw, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """The exact eps(alpha) of one release that uses every record, rounded up."""
    return law.renyi(orders) * (1.0 + _ROUNDING)


def subsampled_curve(
    law: ShiftLaw, gamma: float, bound: Bound, *, log_t2: float | None = None, largest: int = LARGEST_ORDER
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The curve of a law under sampling ratio ``gamma`` < 1; ``log_t2`` is needed for HYB.

    Returns:
        Orders (integers and points on the chords between) and eps at them, both of shape (orders,).
    """
    integers = integer_orders(largest)
    moments = log_moments(law, gamma, bound, integers, log_t2=log_t2)
    corners = integers.astype(np.float64)
    fractions = np.arange(CHORDS) / CHORDS
    orders = np.append((corners[:-1, None] + np.diff(corners)[:, None] * fractions).ravel(), corners[-1])
    values = np.interp(orders, corners, convex_envelope(corners, moments))
    return orders, values / (orders - 1.0) * (1.0 + _ROUNDING)


def log_moments(
    law: ShiftLaw,
    gamma: float,
    bound: Bound,
    orders: NDArray[np.int64],
    *,
    log_t2: float | None,
    one_sided: OneSided = precise_moment,
) -> NDArray[np.float64]:
    """(alpha-1) eps_sub(alpha) at increasing integer orders, at most the full batch's. Shape (orders,).

    ``one_sided``: the law's own integral, or the table that many laws share (one_sided_table.py).
    """
    if law.largest == 0.0:
        return np.zeros(orders.size)
    largest = int(orders[-1])
    j = np.arange(largest + 1)
    log_m = integer_moments(law, table_size(largest))[: largest + 1]
    if bound is Bound.HYB:
        assert log_t2 is not None
        log_z = _hyb(gamma, log_m, log_t2, one_sided(law, largest, upper=True))
    else:
        log_z = math.log(2.0) + log_m
        log_z[2] = min(math.log(4.0) + _log_expm1(log_m[2]), math.log(2.0) + log_m[2])
        if bound is Bound.WBK27:
            log_z[3:] = np.minimum(log_z[3:], _wbk27(law, largest, one_sided)[3:])
    log_terms = log_z[2:] + j[2:] * math.log(gamma)
    exponents = _log_binomials(tuple(orders.tolist()))[:, 2:] + log_terms[None, :]  # (orders, j); -inf where j > alpha
    top = exponents.max(axis=1)
    total = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
    tiny = total < -30.0  # log(1 + e^x) = e^x there, without the loss of digits
    amplified = np.where(tiny, np.exp(np.minimum(total, 0.0)), np.logaddexp(0.0, total))
    result: NDArray[np.float64] = np.minimum(amplified, log_m[orders])
    return result


def _hyb(gamma: float, log_m: NDArray[np.float64], log_t2: float, above: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log Z_j of HYB, j = 0 .. largest (entries 0 and 1 unused); ``above`` bounds log B+."""
    log_z = np.empty_like(log_m)
    odd, even = slice(3, None, 2), slice(4, None, 2)
    log_z[odd] = np.minimum(log_m[odd], math.log(2.0 - gamma) + above[odd])
    both = np.logaddexp(math.log(4.0 - 3.0 * gamma) + above[even], math.log(gamma) + np.minimum(0.0, above[even]))
    log_z[even] = np.minimum(math.log(2.0) + log_m[even], both)
    log_z[2] = np.logaddexp(math.log1p(-gamma) + log_t2, math.log(gamma) + _log_expm1(log_m[2]))
    log_z[:2] = -math.inf
    return log_z


def _wbk27(law: ShiftLaw, largest: int, one_sided: OneSided) -> NDArray[np.float64]:
    """Log 4 sqrt(D_(2 floor(j/2)) D_(2 ceil(j/2))), j = 0 .. largest, from D_j = B+(j) + B-(j) for even j."""
    log_d = np.logaddexp(one_sided(law, largest + 1, upper=True), one_sided(law, largest + 1, upper=False))
    j = np.arange(largest + 1)
    return math.log(4.0) + 0.5 * (log_d[2 * (j // 2)] + log_d[2 * ((j + 1) // 2)])


def _log_expm1(value: float) -> float:
    """The logarithm of exp(value) - 1 for value > 0, without overflow."""
    return float(value + np.log(-np.expm1(-value)))


@lru_cache(maxsize=8)
def _log_binomials(orders: tuple[int, ...]) -> NDArray[np.float64]:
    """Log C(alpha, j) for alpha in ``orders`` and j = 0 .. the largest; -inf where j > alpha."""
    alpha = np.array(orders, dtype=np.float64)[:, None]
    j = np.arange(orders[-1] + 1.0)[None, :]
    table = gammaln(alpha + 1.0) - gammaln(j + 1.0) - gammaln(np.maximum(alpha - j, 0.0) + 1.0)
    return np.where(j <= alpha, table, -np.inf)
