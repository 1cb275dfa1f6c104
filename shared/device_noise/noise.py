"""The grid Gaussian drawn where a tensor lives: the same integers from the same key as on the CPU, bit for bit.

The keystream is ChaCha20's, the law `dpswd.shared.core.noise.grid_gaussian`'s table, in one Triton kernel
(`dpswd.shared.device_noise.fused`): no word of the keystream is ever in memory. Each value's tie word is drawn whether
it is needed or not, and both outcomes are computed: nothing branches on what was drawn, and the host learns nothing
before the release. What does depend on it is which entries of the tables are read. Where Triton does not work the CPU
draws and the values are copied, which is faster than the same arithmetic as tensor operations was.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.noise.directions import Draw, drawn_here
from dpswd.shared.core.noise.grid_gaussian import COLUMN_BITS, grid_gaussian_table
from dpswd.shared.core.noise.keystream import Keystream, check_key, check_place

_LOW_MASK = (1 << (64 - COLUMN_BITS)) - 1
_TRIED = 5_003  # values of the self-test: several programs of the kernel, and a part of one

_log = logging.getLogger(__name__)


class DeviceSampler:
    """Draws grid noise for one device.

    Args:
        device: where the integers end up.

    Raises:
        SettingsError: what the device draws is not what the CPU draws.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.fused = _kernel_works(device)
        """Whether the kernel draws, and not the CPU."""
        self._table = _table_on(device) if self.fused else None
        self._try()

    def sample(self, key: bytes, count: int, *, first: int = 0) -> Tensor:
        """Independent draws of round(2^11 Z), Z ~ N(0, 1), made from the key's words `first` on.

        Args:
            key: 32 bytes.
            count: how many.
            first: place of the first word in the key's stream.

        Returns:
            (count,) int64 on the device. The work may still be under way when the call returns.

        Raises:
            InvalidValue: the key has another length or no such words.
        """
        check_place(first, count)
        check_key(key)
        if self._table is None:
            stream = Keystream(key)
            stream.words(first)
            return torch.from_numpy(grid_gaussian_table().sample(stream, count)).to(self._device)
        from dpswd.shared.device_noise.fused import draw  # needs Triton

        secret = torch.frombuffer(bytearray(key), dtype=torch.int32).to(self._device, copy=True)  # as ChaCha20 reads it
        out = torch.empty(count, dtype=torch.int64, device=self._device)
        with torch.cuda.device(self._device):  # where Triton launches
            draw(secret, *self._table, out, first=first)
        secret.zero_()
        return out

    def _try(self) -> None:
        """Compares a public key's values with the CPU's: a device or a compiler that errs must not make noise."""
        key, first = bytes(range(32)), 5
        stream = Keystream(key)
        stream.words(first)
        expected = torch.from_numpy(grid_gaussian_table().sample(stream, _TRIED))
        if not torch.equal(self.sample(key, _TRIED, first=first).cpu(), expected):
            raise SettingsError(
                f"{self._device} draws other noise than the CPU from the same key; do not use it: set compute.device "
                "to cpu"
            )


@functools.cache
def device_sampler(device: torch.device) -> DeviceSampler:
    """The process's sampler for a device, made and tried at the first call."""
    return DeviceSampler(device)


def draw_on(device: torch.device) -> Draw:
    """Draws directions' Gaussians by the kernel where there is one, and on the CPU elsewhere."""
    if device.type != "cuda" or not device_sampler(device).fused:
        return drawn_here

    def draw(key: bytes) -> Callable[[int], Tensor]:
        first = 0

        def following(count: int) -> Tensor:
            nonlocal first
            values = device_sampler(device).sample(key, count, first=first)
            first += count
            return values

        return following

    return draw


def _table_on(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """`grid_gaussian_table` as the kernel reads it (`fused.draw`), 1.25 MiB."""
    table = grid_gaussian_table()
    # Signed integers compare as unsigned ones do once the sign bit of both is turned.
    low, ties = table.thresholds & np.uint64(_LOW_MASK), table.tie_breaks ^ np.uint64(1 << 63)
    first, second = (torch.from_numpy(each.astype(np.int64)).to(device) for each in (low, ties.view(np.int64)))
    return first, second, torch.from_numpy(table.aliases.astype(np.int32)).to(device)


def _kernel_works(device: torch.device) -> bool:
    """Whether Triton is there and compiles for this device; it needs a C compiler and a folder to write to."""
    if device.type != "cuda":
        return False
    try:
        from dpswd.shared.device_noise.fused import warm_up

        warm_up(device)
    except Exception as error:  # noqa: BLE001 - whatever Triton lacks here, the CPU draws the same integers
        _log.warning(
            "noise is drawn by the CPU and not by the device's kernel (%s): Triton needs a C compiler and a folder to "
            "write to (TRITON_CACHE_DIR)",
            type(error).__name__,
        )
        return False
    return True
