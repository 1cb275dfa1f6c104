"""The curator's only sources of noise: ChaCha20, keyed by the operating system, a fresh key for each release.

Where steps run on a CUDA device the same integers are drawn there (`dpswd.private_curator.steps.device_noise`).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.core.noise.keystream import KEY_BYTES, Keystream
from dpswd.shared.core.noise.noise import gaussian_on_grid


class SystemNoise:
    """A `NoiseSource` that keeps no state: no seed to leak, nothing to share between threads or forked processes.

    Args:
        entropy: returns that many unpredictable bytes; the operating system's generator unless a test counts calls.
    """

    def __init__(self, *, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._entropy = entropy

    def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> NDArray[np.int64]:
        """One release's noise under a key that exists for this call alone; see `NoiseSource.grid_gaussian`."""
        return gaussian_on_grid(Keystream(self._entropy(KEY_BYTES)), shape, sigma=sigma, step=step)


def fresh_seed() -> bytes:
    """A new public seed for directions, drawn after the step's weights are fixed.

    Returns:
        32 bytes from the operating system.
    """
    return os.urandom(KEY_BYTES)
