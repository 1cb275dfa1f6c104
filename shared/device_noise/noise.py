"""The grid Gaussian drawn where a tensor lives: the same integers from the same key as on the CPU, bit for bit.

The keystream is `dpswd.shared.device_noise.keystream`, the law `dpswd.shared.core.noise.grid_gaussian`'s table. Each
value's tie word is drawn whether it is needed or not, and both outcomes are computed: nothing branches on what was
drawn, and the host learns nothing before the release. What does depend on it is which entries of the tables are read.

Where Triton works, one kernel does all of it and no word of the keystream is ever in memory. Elsewhere the same
arithmetic runs as integer tensor operations, whose intermediate values are overwritten.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.noise.directions import Draw, drawn_here
from dpswd.shared.core.noise.grid_gaussian import CENTRE, COLUMN_BITS, grid_gaussian_table
from dpswd.shared.core.noise.keystream import Keystream, check_place
from dpswd.shared.device_noise.keystream import key_words, words

_LOW_BITS = 64 - COLUMN_BITS
_LOW_MASK = (1 << _LOW_BITS) - 1
_SIGN = -(1 << 63)  # signed integers compare as unsigned ones do once the sign bit of both is turned
_CHUNK = 1 << 22  # values at a time
_TRIED = 5_003  # values of the self-test: several programs of a kernel, and a part of one

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """`AliasTable` on a device.

    Attributes:
        thresholds: (65536,) int64, the upper 48 bits of each column's threshold.
        tie_breaks: (65536,) int64, the lower 64 bits with the sign bit turned.
        aliases: (65536,) int32.
    """

    thresholds: Tensor
    tie_breaks: Tensor
    aliases: Tensor

    @classmethod
    def on(cls, device: torch.device) -> DeviceTable:
        """The table of `grid_gaussian_table`, 1.25 MiB."""
        table = grid_gaussian_table()
        low, ties = table.thresholds & np.uint64(_LOW_MASK), table.tie_breaks ^ np.uint64(1 << 63)
        return cls(
            thresholds=torch.from_numpy(low.astype(np.int64)).to(device),
            tie_breaks=torch.from_numpy(ties.view(np.int64)).to(device),
            aliases=torch.from_numpy(table.aliases.astype(np.int32)).to(device),
        )

    def look_up(self, drawn: Tensor, ties: Tensor, *, out: Tensor) -> None:
        """Turns words into values, as `AliasTable.sample` does, and overwrites the words with zeros.

        Args:
            drawn: (n,) int64, words of the first stream.
            ties: (n,) int64, the second stream's words at the same places.
            out: (n,) int64, receives the values.
        """
        # An arithmetic shift to the right brings the sign bits along; the mask takes them away.
        column = (drawn >> _LOW_BITS) & ((1 << COLUMN_BITS) - 1)
        drawn &= _LOW_MASK
        ties ^= _SIGN
        threshold = self.thresholds[column]
        own = (drawn < threshold) | ((drawn == threshold) & (ties < self.tie_breaks[column]))
        alias = self.aliases[column].to(torch.int64)
        torch.where(own, column - CENTRE, alias, out=out)
        for secret in (drawn, ties, column, threshold, own, alias):
            secret.zero_()


class DeviceSampler:
    """Draws grid noise on one device.

    Args:
        device: where the integers are made and stay.
        fused: whether to use the Triton kernel; None: where the device is CUDA's and the kernel compiles.

    Raises:
        SettingsError: what the device draws is not what the CPU draws.
    """

    def __init__(self, device: torch.device, *, fused: bool | None = None) -> None:
        self._device = device
        self._table = DeviceTable.on(device)
        self.fused = _kernel_works(device) if fused is None else fused
        """Whether one kernel does it all."""
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
        secret = key_words(key, self._device)
        out = torch.empty(count, dtype=torch.int64, device=self._device)
        if self.fused:
            from dpswd.shared.device_noise.fused import draw  # needs Triton

            with torch.cuda.device(self._device):  # where Triton launches
                draw(secret, self._table.thresholds, self._table.tie_breaks, self._table.aliases, out, first=first)
        else:
            for start in range(0, count, _CHUNK):
                values = out[start : start + _CHUNK]
                drawn, ties = (words(secret, first=first + start, count=len(values), nonce=n) for n in (0, 1))
                self._table.look_up(drawn, ties, out=values)
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
    """Draws directions' Gaussians on a CUDA device, and on a CPU for every other."""
    if device.type != "cuda":
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


def _kernel_works(device: torch.device) -> bool:
    """Whether Triton is there and compiles for this device; it needs a C compiler and a folder to write to."""
    if device.type != "cuda":
        return False
    try:
        from dpswd.shared.device_noise.fused import warm_up

        warm_up(device)
    except Exception as error:  # noqa: BLE001 - whatever Triton lacks here, tensor operations draw the same integers
        _log.warning(
            "noise is drawn by tensor operations and not by one kernel (%s): Triton needs a C compiler and a folder "
            "to write to (TRITON_CACHE_DIR)",
            type(error).__name__,
        )
        return False
    return True
