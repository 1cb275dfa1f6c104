"""Gaussian noise on an integer grid, sampled exactly to 2^-110.

The law: N = round(R Z) for Z ~ N(0, 1) and R grid steps for each standard deviation, that is
P(N = n) = Phi((n + 1/2) / R) - Phi((n - 1/2) / R). The privacy proof is the continuous Gaussian's: rounding is
post-processing (docs/privacy, section 7).

Floating-point samplers only approximate this law, and their error is hard to state. Here it is sampled from a table
(Walker's alias method, Vose 1991) whose entries are integers in units of 2^-128, computed with integer arithmetic:

* total variation distance between the table's law and the ideal one: at most 2^-110 for each value (65,536
  roundings of 2^-129 each, their sum returned to the centre, and the tail beyond 16 standard deviations, 2^-188);
* no transcendental function of the machine is used, so both parties get the same bits from the same key;
* one 64-bit word makes one value. Its upper 16 bits choose a column, all of it is compared with the column's
  threshold. The threshold has 64 more bits, which count only if the first 48 are equal (probability 2^-48); they are
  compared with the word at the same place of the key's second stream.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.core.noise.keystream import Keystream

GRID_EXPONENT = 11  # 2048 steps for each sigma: rounding costs 2^-11 sigma, and 16 sigma fit in 16 bits
COLUMN_BITS = 16
_COLUMNS = 1 << COLUMN_BITS
CENTRE = _COLUMNS >> 1  # column c stands for the value c - CENTRE
_TOTAL_BITS = 128  # probabilities are integers in units of 2^-128
_CAPACITY = 1 << (_TOTAL_BITS - COLUMN_BITS)  # each column's share of the mass, 2^112
_FRACTION_BITS = 224  # of the fixed-point arithmetic; 96 guard bits beyond the table's own
_CUT_SIGMAS = 16  # standard deviations kept; Phi(-16) = 2^-188.6
_BLOCK = 1 << 14  # values at a time: words, thresholds and results stay in a core's own cache


@dataclass(frozen=True, eq=False)
class AliasTable:
    """Walker's alias table of one law.

    Attributes:
        thresholds: (65536,) uint64; the column's number in the upper 16 bits, below it the upper 48 bits of the
            column's threshold. A word below it means the column's own value, a word above it the alias.
        tie_breaks: (65536,) uint64, the threshold's lower 64 bits.
        aliases: (65536,) int64, the other value of each column.
    """

    thresholds: NDArray[np.uint64]
    tie_breaks: NDArray[np.uint64]
    aliases: NDArray[np.int64]

    def sample(self, stream: Keystream, count: int) -> NDArray[np.int64]:
        """Independent draws.

        Args:
            stream: where the random words come from.
            count: how many values.

        Returns:
            (count,) integers.
        """
        out = np.empty(count, dtype=np.int64)
        size = min(count, _BLOCK)
        column, threshold = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.uint64)
        for start in range(0, count, _BLOCK):
            values, first = out[start : start + _BLOCK], stream.position
            words = stream.words(values.size)
            c, t = column[: values.size], threshold[: values.size]
            np.right_shift(words, np.uint64(64 - COLUMN_BITS), out=c.view(np.uint64))
            # mode="clip" lets numpy write into `out` without a second buffer; no index is ever out of range.
            np.take(self.thresholds, c, out=t, mode="clip")
            np.take(self.aliases, c, out=values, mode="clip")
            own = words < t
            tied = words == t
            if tied.any():  # probability 2^-48 for each value
                for place in np.flatnonzero(tied).tolist():
                    own[place] = stream.tie_word(first + place) < int(self.tie_breaks[c[place]])
            c -= CENTRE
            np.copyto(values, c, where=own)
        return out


@functools.cache
def grid_gaussian_table() -> AliasTable:
    """The table of round(2^11 Z), Z ~ N(0, 1). Built once in a process (about a third of a second)."""
    masses = [0] * _COLUMNS
    for n, weight in enumerate(gaussian_weights(GRID_EXPONENT)):
        masses[CENTRE + n] = masses[CENTRE - n] = weight
    return _alias_table(masses)


def gaussian_weights(exponent: int) -> list[int]:
    """P(N = n) for n = 0, 1, ..., in units of 2^-128, rounded; two-sided they sum to 2^128 exactly.

    With c = n / R and half a cell delta = 1 / (2 R), Taylor's series around the cell's centre gives
    P(N = n) = phi(c) 2 delta * sum over even i of He_i(c) delta^i / (i + 1)!  (He_i: Hermite polynomials).
    phi(c) follows by recurrence from exp(-1 / R^2). The constant is fixed by the sum being 1.

    Args:
        exponent: base-2 logarithm of R.

    Returns:
        Integer weights, largest first.
    """
    steps = 1 << exponent
    one = 1 << _FRACTION_BITS
    cells = min(_CUT_SIGMAS * steps, CENTRE - 1)
    delta_squared = one // (4 * steps * steps)
    density = one  # exp(-n^2 / (2 R^2)), in fixed point
    ratio = _exponential(one // (2 * steps * steps))  # exp(-(2 n + 1) / (2 R^2)), the next density over this one
    shrink = _exponential(one // (steps * steps))
    raw = []
    for n in range(cells + 1):
        raw.append(density * _cell_series(n * one // (2 * steps * steps), delta_squared) >> _FRACTION_BITS)
        density = density * ratio >> _FRACTION_BITS
        ratio = ratio * shrink >> _FRACTION_BITS
    total = raw[0] + 2 * sum(raw[1:])
    weights = [((weight << (_TOTAL_BITS + 1)) // total + 1) >> 1 for weight in raw]
    weights[0] += (1 << _TOTAL_BITS) - (weights[0] + 2 * sum(weights[1:]))
    return weights


def _cell_series(c_delta: int, delta_squared: int) -> int:
    """Sum over even i of He_i(c) delta^i / (i + 1)!, all in fixed point, until the terms vanish."""
    previous, current = 0, 1 << _FRACTION_BITS  # He_i(c) delta^i for i - 1 and i
    total, factorial, i = current, 1, 0
    while True:
        previous, current = current, (c_delta * current - i * delta_squared * previous) >> _FRACTION_BITS
        i += 1
        factorial *= i + 1
        if i % 2 == 0:
            term = current // factorial
            total += term
            # Two small terms in a row: one alone may be near a root of its polynomial.
            if abs(term) <= 1 and abs(previous) // factorial <= 1:
                return total


def _exponential(x: int) -> int:
    """exp(-x) for 0 <= x <= 1 in fixed point, by its series."""
    term = total = 1 << _FRACTION_BITS
    i = 0
    while term:
        i += 1
        term = term * x // (i << _FRACTION_BITS)
        total += -term if i % 2 else term
    return total


def _alias_table(masses: list[int]) -> AliasTable:
    """Vose's construction in exact integers: every column ends with mass 2^112 shared by at most two values."""
    left = list(masses)
    thresholds, tie_breaks = [0] * _COLUMNS, [0] * _COLUMNS
    aliases = list(range(_COLUMNS))
    small = [c for c, mass in enumerate(left) if mass < _CAPACITY]
    large = [c for c, mass in enumerate(left) if mass >= _CAPACITY]
    while small:
        c, donor = small.pop(), large[-1]
        thresholds[c], tie_breaks[c] = left[c] >> 64, left[c] & ((1 << 64) - 1)
        aliases[c] = donor
        left[donor] -= _CAPACITY - left[c]
        if left[donor] < _CAPACITY:
            small.append(large.pop())
    # What is still in `large` is full to the brim and is its own alias: its threshold does not matter.
    columns = [(c << (64 - COLUMN_BITS)) | threshold for c, threshold in enumerate(thresholds)]
    return AliasTable(
        thresholds=np.array(columns, dtype=np.uint64),
        tie_breaks=np.array(tie_breaks, dtype=np.uint64),
        aliases=np.array(aliases, dtype=np.int64) - CENTRE,
    )
