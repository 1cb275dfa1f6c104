"""One-sided moments of a release as a mixture over fixed shifts: the fast way to what one_sided.py integrates.

B+(j) = E_q (L - 1)_+^j and B-(j) = E_q (1 - L)_+^j are expectations of convex functions that vanish on one side of 1,
so the split of the shift's law onto the common grid (shift_mixture.py) can only raise them. Each shift's moments are
computed once, by the Mellin integral of a Gaussian release, and shared by all laws: a session of many different steps
costs two small matrix products for each. What the lattice of H leaves out is bounded by E[L^j; left out] and by its
probability.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.accounting import one_sided, shift_mixture
from dpswd.shared.accounting.bounds import integer_moments
from dpswd.shared.accounting.one_sided import COMPUTED_ORDERS, between_orders, integrated, table_size
from dpswd.shared.core.privacy.curves import ShiftLaw

_ENOUGH_DIRECTIONS, _RESOLVED_SHIFT = 8, 8.0
"""The integral of one law replaces the law of one direction by a few dozen nodes. With fewer directions its error on
the line, 1e-6 for one, is above the integral's margin; with a noise below 8 / sqrt(d) the nodes are too far apart."""

MAX_ROWS = 20_000
"""Rows kept; each takes half a kilobyte."""


@functools.lru_cache(maxsize=MAX_ROWS)
def row(index: int, upper: bool) -> NDArray[np.float64]:
    """Upper bounds on log B+(j) or log B-(j) at the grid's shift, j in COMPUTED_ORDERS, read-only."""
    square = math.exp(2.0 * index / shift_mixture.NODES_PER_NAT)
    result = integrated(ShiftLaw(1, 1, 0.0, square), COMPUTED_ORDERS, upper=upper)
    result.setflags(write=False)
    return result


def one_sided_moment(law: ShiftLaw, largest: int, *, upper: bool) -> NDArray[np.float64]:
    """Upper bounds on log B+(j) (``upper``) or log B-(j) for j = 0 .. ``largest``.

    Args:
        law: the squared shift of the release; not identically 0.
        largest: largest order, at least 2.
        upper: which side.

    Returns:
        Shape (largest + 1,); the entries of j = 0 and 1 are the trivial bounds.
    """
    mixture = shift_mixture.of(law)
    values = mixture.average([row(index, upper) for index in mixture.indices])
    if not law.is_constant:
        if upper:
            full = integer_moments(law, table_size(largest))[COMPUTED_ORDERS]
            outside = shift_mixture.log_left_out(law, 1.0, COMPUTED_ORDERS.astype(np.float64), full)
        else:
            outside = np.full(values.size, shift_mixture.log_probability_left_out(law))
        values = np.logaddexp(values, outside)
    return between_orders(law, largest, COMPUTED_ORDERS, values, upper=upper)


def precise_moment(law: ShiftLaw, largest: int, *, upper: bool) -> NDArray[np.float64]:
    """The law's own integral where its quadrature over one direction is exact, the table elsewhere; as above."""
    resolved = law.directions >= _ENOUGH_DIRECTIONS and law.scale * _RESOLVED_SHIFT**2 <= law.feature_dimension
    own = law.is_constant or resolved
    return (one_sided.one_sided_moment if own else one_sided_moment)(law, largest, upper=upper)
