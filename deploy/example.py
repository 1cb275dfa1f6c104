"""Writes the curator's example (`dpswd-curator records convert --example`) from scikit-learn's digits."""

from __future__ import annotations

import numpy as np

from dpswd.private_curator.records.example import PACKED
from dpswd.public_client.data.datasets import load_task


def arrays() -> dict[str, np.ndarray]:
    """The target of the digits in steps of 1 / 127.5, and its labels."""
    target = load_task("digits").target
    grey = np.rint((target.images.numpy() + 1.0) * 127.5).astype(np.uint8)
    return {"records": grey, "labels": target.labels.numpy().astype(np.uint8)}


if __name__ == "__main__":
    np.savez_compressed(PACKED, allow_pickle=False, **arrays())
    print(f"{PACKED}: {PACKED.stat().st_size} bytes")
