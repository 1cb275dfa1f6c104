"""The curator's only sources of noise: ChaCha20, keyed by the operating system, a fresh key for each release.

On a CPU OpenSSL makes the keystream. Where steps run on a CUDA device the same integers are drawn there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd.shared.core.noise.keystream import KEY_BYTES, Keystream
from dpswd.shared.core.noise.noise import NoiseSource, check_step, gaussian_on_grid
from dpswd.shared.device_noise.noise import device_sampler


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


class DeviceNoise:
    """`SystemNoise` that draws on a device: the same integers from the same key, and they stay there.

    Args:
        device: where.
        entropy: returns that many unpredictable bytes; the operating system's generator unless a test counts calls.

    Raises:
        SettingsError: the device draws other noise than the CPU from the same key.
    """

    def __init__(self, device: torch.device, *, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._sampler = device_sampler(device)
        self._entropy = entropy

    def grid_gaussian(self, shape: tuple[int, ...], *, sigma: float, step: float) -> Tensor:
        """One release's noise under a key that exists for this call alone; see `NoiseSource.grid_gaussian`."""
        check_step(step, sigma=sigma)
        return self._sampler.sample(self._entropy(KEY_BYTES), math.prod(shape)).reshape(shape)


def noise_for(device: torch.device) -> NoiseSource:
    """The source for steps on this device.

    Raises:
        SettingsError: the device draws other noise than the CPU from the same key.
    """
    return SystemNoise() if device.type == "cpu" else DeviceNoise(device)


def fresh_seed() -> bytes:
    """A new public seed for directions, drawn after the step's weights are fixed.

    Returns:
        32 bytes from the operating system.
    """
    return os.urandom(KEY_BYTES)
