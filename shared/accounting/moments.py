"""Full-batch moments at whole orders, which the bounds of one step share."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.core.privacy.curves import ShiftLaw


@functools.lru_cache(maxsize=8)
def integer_moments(law: ShiftLaw, largest: int) -> NDArray[np.float64]:
    """``log_moment`` at j = 0 .. ``largest`` (0 at j = 0), read-only: the bounds of one step share them."""
    result = law.log_moment(np.maximum(np.arange(largest + 1), 1))
    result.setflags(write=False)
    return result
