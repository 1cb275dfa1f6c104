"""Public noise, and noise for tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpswd.shared.core.noise.keystream import Keystream, derived_key
from dpswd.shared.core.noise.noise import gaussian_on_grid


class SeededNoise:
    """Noise from a known seed, the same bits on every machine: for public noise and for tests.

    Whoever knows the seed can subtract the noise, so this is never the noise of a private release.

    Args:
        seed: 32 bytes.
        purpose: constant text that separates this use of the seed from every other.
    """

    def __init__(self, seed: bytes, *, purpose: str = "seeded noise") -> None:
        self._stream = Keystream(derived_key(seed, purpose))

    def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> NDArray[np.int64]:
        """The next values of the seed's stream; see `NoiseSource.grid_gaussian`."""
        return gaussian_on_grid(self._stream, shape, sigma=sigma, step=step)
