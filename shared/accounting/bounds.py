"""The bounds on the cost of a run, by name, and the full-batch moments that those of one step share."""

from __future__ import annotations

import enum
import functools

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.core.privacy.curves import ShiftLaw


class Bound(enum.Enum):
    """A bound that prices a run. ``auto`` is the smallest of them and what a curator charges."""

    AUTO = "auto"
    """The smallest of HYB, C_gamma and PLD."""

    WBK9 = "wbk9"
    """Exact curve, Wang, Balle, Kasiviswanathan 2019, Theorem 9."""

    WBK27 = "wbk27"
    """Exact curve, the same paper's Theorem 27 (autodp's improved_bound_flag)."""

    HYB = "hyb"
    """Exact curve, one-sided moments and the proved T2 (docs/privacy/amplification.md)."""

    C_GAMMA = "c-gamma"
    """Renyi curve of C_gamma (Balle, Barthe, Gaboardi 2018) with the exact law of the shift."""

    PLD = "pld"
    """Privacy loss distribution of C_gamma, composed by FFT."""


@functools.lru_cache(maxsize=8)
def integer_moments(law: ShiftLaw, largest: int) -> NDArray[np.float64]:
    """``log_moment`` at j = 0 .. ``largest`` (0 at j = 0), read-only: the bounds of one step share them."""
    result = law.log_moment(np.maximum(np.arange(largest + 1), 1))
    result.setflags(write=False)
    return result
