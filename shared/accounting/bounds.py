"""The bounds on the cost of a run, by name."""

from __future__ import annotations

import enum


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
