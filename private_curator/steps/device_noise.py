"""Noise drawn where steps are computed: on a CUDA device the same integers from the same key, bit for bit."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import torch
from torch import Tensor

from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.shared.core.noise.keystream import KEY_BYTES
from dpswd.shared.core.noise.noise import NoiseSource, check_step
from dpswd.shared.device_noise.noise import device_sampler


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
