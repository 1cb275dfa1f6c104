"""Renyi moments of a subsampled step from the C_gamma pair, at every real order alpha > 1.

The symmetric pair of discretisation.py has, with L = 1 + gamma (e^{s y - s^2/2} - 1), y ~ N(0,1), s = sqrt(S),

    e^{(alpha-1) eps(alpha)} = 1 + E_S E_y[ (L^alpha + L^{1-alpha} - 1 - L) 1{L >= 1} ]           (docs/privacy, 3)

(Balle, Barthe, Gaboardi 2018; Dong, Roth, Su 2019). The bracket is convex in L, so the moment is a positive mixture
of the profile's values at eps >= 0, and every rounding that raises the profile raises it: the split of S onto a grid
(slice_law.py, moment_table.py) and connect-the-dots in the loss. Nothing may be cut off, however: an order alpha
weighs the tails by e^{c S}, c = alpha (alpha-1)/2. What the lattice of H leaves out is bounded in closed form with
E L^alpha <= 1 - gamma + gamma e^{cS} (shift_mixture.py), and the whole by the full batch's exact curve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shared.errors import InvalidValue
from shared.privacy import moment_table, shift_mixture

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from shared.privacy.curves import ShiftLaw


def log_moment(
    law: ShiftLaw, gamma: float, orders: ArrayLike, *, full: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Upper bound of (alpha - 1) eps(alpha) of one subsampled step.

    The first step of a (d, k) and sampling ratio takes some 0.2 s, later ones with other noise a millisecond.

    Args:
        law: the law of the squared shift.
        gamma: sampling ratio b/n in (0, 1].
        orders: real orders alpha > 1, one axis.
        full: ``law.log_moment(orders)`` where the caller has it.

    Returns:
        The bounds, shape of ``orders``; never more than the full batch's exact curve.

    Raises:
        InvalidValue: gamma or an order is out of range.
    """
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not 0.0 < gamma <= 1.0:
        raise InvalidValue(f"gamma is {gamma!r}; it must be above 0 and at most 1 (batch / records)")
    if alpha.ndim != 1 or not np.all(np.isfinite(alpha)) or np.any(alpha <= 1.0):
        raise InvalidValue("orders must be finite and above 1, along one axis")
    full = law.log_moment(alpha) if full is None else full
    if gamma == 1.0 or law.largest == 0.0:
        return full
    mixture, keys = shift_mixture.of(law), tuple(alpha.tolist())
    excess = mixture.average([moment_table.row(index, gamma, keys) for index in mixture.indices])
    if not law.is_constant:
        excess = np.logaddexp(excess, shift_mixture.log_left_out(law, gamma, alpha, full))
    bound = np.log1p(np.exp(np.minimum(excess, 30.0))) + np.maximum(excess - 30.0, 0.0)  # log(1 + e^x) or more
    result: NDArray[np.float64] = np.minimum(bound * (1.0 + 1e-12), full)
    return result
