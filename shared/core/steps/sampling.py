"""The secret sample of a step: uniform, of fixed size, without replacement, in random order.

The order is part of the privacy proof: it swaps one row, and whoever saw rows sorted by index or label could tell
them apart. Never sort a sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.core.errors import InvalidValue

_WORDS = 1 << 64


def sample_without_replacement(
    records: int, batch: int, *, entropy: Callable[[int], bytes] = os.urandom
) -> NDArray[np.int64]:
    """A uniformly random ordered tuple of distinct record numbers.

    The first b steps of the Fisher-Yates shuffle (Knuth, TAOCP 2, Algorithm 3.4.2P) on an array that is never written
    out: only the entries that were swapped are kept, so time and memory are O(b) for any n.

    Args:
        records: n, the number of records.
        batch: b, between 1 and n.
        entropy: returns that many unpredictable bytes; the operating system's generator unless a test replays it.

    Returns:
        (b,), each of the n (n - 1) ... (n - b + 1) tuples with the same probability.

    Raises:
        InvalidValue: b is outside 1..n.
    """
    if not 1 <= batch <= records:
        raise InvalidValue(f"asked for {batch} of {records} records; the batch must lie between 1 and {records}")
    swapped: dict[int, int] = {}
    chosen = np.empty(batch, dtype=np.int64)
    for i, offset in enumerate(_uniform_below(records, batch, entropy).tolist()):
        j = i + offset
        chosen[i] = swapped.get(j, j)
        # Position j takes what position i held; i itself is never looked at again.
        swapped[j] = swapped.pop(i, i)
    return chosen


def _uniform_below(records: int, batch: int, entropy: Callable[[int], bytes]) -> NDArray[np.uint64]:
    """(b,): entry i uniform on 0 .. n - i - 1, without modulo bias (words above the last full multiple are redrawn)."""
    ranges = np.arange(records, records - batch, -1, dtype=np.uint64)
    # The largest accepted word is 2^64 - (2^64 mod range) - 1; 2^64 itself does not fit in the type.
    last = np.uint64(_WORDS - 1) - (np.uint64(_WORDS - 1) % ranges + np.uint64(1)) % ranges
    words = np.empty(batch, dtype=np.uint64)
    open_places = np.arange(batch)
    while open_places.size:
        words[open_places] = np.frombuffer(entropy(8 * open_places.size), dtype="<u8")
        open_places = open_places[words[open_places] > last[open_places]]
    return words % ranges
