"""Memory that the curator and one worker both see, so that records and gradients are written once and never sent.

The memory belongs to no file system and is gone with the processes. It is sealed against shrinking: a worker that was
taken over could otherwise make the curator die on a page that is no longer there.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_ALIGNMENT = 64  # bytes; vector instructions and torch expect no more
_GRAIN = 1 << 20  # bytes; sizes are rounded up, so that steps of slightly other sizes use the same memory


class Slot(NamedTuple):
    """A float32 array's place; as JSON a list of the two.

    Attributes:
        offset: in bytes.
        shape: of the array.
    """

    offset: int
    shape: tuple[int, ...]


def lay_out(shapes: Iterable[tuple[int, ...]]) -> tuple[list[Slot], int]:
    """Places for arrays of these shapes, one behind the other, and the bytes that they take together."""
    slots, end = [], 0
    for shape in shapes:
        slots.append(Slot(end, shape))
        end += -(-4 * prod(shape) // _ALIGNMENT) * _ALIGNMENT
    return slots, end


class Arena:
    """One piece of shared memory. `create` makes it, `attach` maps what the other side has made."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self._map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, size: int) -> Arena:
        """New memory of at least this many bytes.

        Raises:
            OSError: the machine has none left.
        """
        rounded = max(_GRAIN, -(-size // _GRAIN) * _GRAIN)
        descriptor = os.memfd_create("dpswd-step", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, rounded)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(descriptor, rounded)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, descriptor: int) -> Arena:
        """Maps memory by its file, which the arena then owns."""
        return cls(descriptor, os.fstat(descriptor).st_size)

    def array(self, slot: Slot) -> FloatArray:
        """The array at this place; writing to it writes to the memory.

        Raises:
            ValueError: the place is outside.
        """
        flat = np.frombuffer(self._map, dtype=np.float32, count=prod(slot.shape), offset=slot.offset)
        return flat.reshape(slot.shape)

    def close(self) -> None:
        """Lets go of the file; the memory goes with the last array that lies in it."""
        os.close(self.descriptor)


def blob(*parts: bytes) -> int:
    """A read-once file in memory with these bytes one behind the other; the caller closes it."""
    descriptor = os.memfd_create("dpswd-extractor", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.writelines(parts)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def contents(files: list[int]) -> bytes:
    """All bytes of the first of these files, b"" where there is none; all are closed."""
    for descriptor in files[1:]:
        os.close(descriptor)
    if not files:
        return b""
    with os.fdopen(files[0], "rb") as file:
        file.seek(0)
        return file.read()
