"""The bounds on the cost of a run, by name."""

from __future__ import annotations

import enum


class Bound(enum.Enum):
    """A bound that prices a run. ``auto`` is the smallest of the valid ones and what a curator charges.

    The last three reproduce published recipes for comparison; they are no guarantees and admit nothing.
    """

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

    CLT = "clt"
    """DP-SWD's central-limit bound on the sensitivity, with Theorem 9: not rigorous."""

    BERNSTEIN = "bernstein"
    """DP-SWD's Lemma 2 as printed, with Theorem 9."""

    BERNSTEIN_PUBLISHED = "bernstein-published"
    """DP-SWD's Lemma 2 as in the published code, which counts k twice under the root."""

    @property
    def is_guarantee(self) -> bool:
        """Whether a price under this bound holds for what the curator releases."""
        return self not in (Bound.CLT, Bound.BERNSTEIN, Bound.BERNSTEIN_PUBLISHED)
