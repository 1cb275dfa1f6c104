"""A small data set to try with: 898 of scikit-learn's digits as a hospital might see them. Public.

They are the target of `dpswd-client train --data digits`, in 256 steps of grey: turned, smaller and paler. From the
Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI (CC BY 4.0). `python -m deploy.example` writes
the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpswd.shared.records.batches import Batch, Format, Layout

PACKED = Path(__file__).with_name("example.npz")


class Example:
    """See `Source`: (898, 1, 8, 8) float32 in [-1, 1], with labels 0 to 9."""

    def __init__(self) -> None:
        with np.load(PACKED, allow_pickle=False) as packed:
            self._records = packed["records"].astype(np.float32) / np.float32(127.5) - np.float32(1.0)
            self._labels = packed["labels"]
        count, *shape = self._records.shape
        self.layout = Layout(Format.NPZ, self._records.dtype, tuple(shape), count=count, labels="labels")

    def batches(self) -> Iterator[Batch]:
        """See `Source`."""
        yield Batch(self._records, self._labels)
