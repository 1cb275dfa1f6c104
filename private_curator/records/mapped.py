"""Records that lie as plain values in a file: a sample is read from its places, whatever the file's size.

The values are read by position (`pread`) and not through a memory map's pages: a page of a map that was touched stays
in the process's resident memory until the system is short of it, so that a long run would slowly hold the whole file,
and a file that is cut short while it is served would end the process by a signal. Read by position, memory stays at
the sample's size and a file cut short is an error of that one step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpswd.shared.core.errors import DpswdError
from dpswd.shared.records.batches import Array

_PASSED_BYTES = 1 << 30
"""A larger file is not kept in the system's cache by a pass over all of it: other programs need that memory more."""


class RecordsChanged(DpswdError):
    """The file was cut short or replaced while it was served."""


class MappedRecords:
    """The (n, ...) array of one type that begins at one place of a file.

    May be sent to another process, which opens the file for itself. Safe for threads.

    Args:
        path: the file.
        offset: of the first value, in bytes.
        dtype: of the values.
        shape: (n, ...).
    """

    def __init__(self, path: Path, *, offset: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
        self.path = path
        self.offset = offset
        self.dtype = dtype
        self.shape = shape
        self._record_bytes = dtype.itemsize * math.prod(shape[1:])
        self._descriptor = -1
        # Opened at once: a file that is replaced by another one later does not change under the running curator.
        self._open()

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.path, self.offset, self.dtype.str, self.shape)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """Bytes that the values take in the file."""
        return self._record_bytes * self.shape[0]

    def take(self, indices: npt.NDArray[np.int64]) -> Array:
        """Records in the order of `indices`, (b, ...), as stored; reads these and nothing else.

        Neighbours in the file are read at once. A secret sample has some in a row by chance alone.

        Raises:
            RecordsChanged: the file has become shorter.
        """
        taken = np.empty((len(indices), *self.shape[1:]), dtype=self.dtype)
        rows = taken.reshape(-1).view(np.uint8).data
        width = self._record_bytes
        if _in_a_row(indices) and indices[0] >= 0 and indices[-1] < self.shape[0]:
            place = self.offset + int(indices[0]) * width
            self._read(rows, place)
            if self.size > _PASSED_BYTES:
                os.posix_fadvise(self._descriptor, place, taken.nbytes, os.POSIX_FADV_DONTNEED)
            return taken
        for row, index in enumerate(indices.tolist()):
            if not 0 <= index < self.shape[0]:
                raise IndexError("a record's number is outside of the data set")
            self._read(rows[row * width : (row + 1) * width], self.offset + index * width)
        return taken

    def slices(self, rows: int) -> Iterator[Array]:
        """All records in order, `rows` at a time; what was read is dropped from the system's file cache.

        Raises:
            RecordsChanged: the file has become shorter.
        """
        for start in range(0, self.shape[0], rows):
            count = min(rows, self.shape[0] - start)
            part = np.empty((count, *self.shape[1:]), dtype=self.dtype)
            place = self.offset + start * self._record_bytes
            self._read(part.reshape(-1).view(np.uint8).data, place)
            # Reading a file once, from end to end, must not push what the machine needs out of its memory.
            os.posix_fadvise(self._descriptor, place, part.nbytes, os.POSIX_FADV_DONTNEED)
            yield part

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def _read(self, into: memoryview, place: int) -> None:
        done = 0
        while done < len(into):
            count = os.preadv(self._descriptor, [into[done:]], place + done)
            if count == 0:
                raise RecordsChanged(
                    f"{self.path} has become shorter than when it was opened; restore it and restart the curator"
                )
            done += count


def _in_a_row(indices: npt.NDArray[np.int64]) -> bool:
    """Whether these are the numbers from the first to the last, in order."""
    if len(indices) < 2 or indices[-1] - indices[0] != len(indices) - 1:
        return False
    return bool((np.diff(indices) == 1).all())


def _reopen(path: Path, offset: int, dtype: str, shape: tuple[int, ...]) -> MappedRecords:
    return MappedRecords(path, offset=offset, dtype=np.dtype(dtype), shape=shape)
