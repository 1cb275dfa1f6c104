"""npy and npz: plain arrays, never unpickled.

An npy file, or an uncompressed member of an npz file, is read from its place; a compressed member is streamed.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from dpswd.private_curator.records.mapped import MappedRecords, RecordsChanged
from dpswd.shared.records.batches import SERVED_TYPES, Array, Batch, Format, Layout, check_finite, rows_per_batch
from dpswd.shared.records.problems import RecordsRefused, no_such, refusing

_LOCAL_HEADER_BYTES = 30  # APPNOTE.TXT 4.3.7: fixed part of a zip member's local header
_MAX_LABEL_BYTES = 64  # of one label in an array of texts
_FOREIGN = (
    ValueError, OSError, EOFError, SyntaxError, KeyError, struct.error, RuntimeError, NotImplementedError, MemoryError,
    zipfile.BadZipFile, zlib.error, RecordsChanged,
)  # fmt: skip
"""What numpy, zipfile and the file itself raise for a damaged file."""


_IN_MEMORY = "it is read into memory as a whole when the curator starts"


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[np.generic]
    length: int  # bytes from the array file's beginning to its first value


class ArraySource:
    """Records in an npy file or in one array of an npz file.

    Args:
        path: the file.
        array: the member of an npz file; may be None if it has one.
        labels: the member of an npz file with the labels, or None.
        labels_file: an npy file with the labels, or None.

    Raises:
        RecordsRefused: no such array, a type or shape that cannot be served, or a file that was cut short.
    """

    def __init__(
        self, path: Path, *, array: str | None = None, labels: str | None = None, labels_file: Path | None = None
    ) -> None:
        self._path = path
        self._format = Format.NPZ if path.suffix.lower() == ".npz" else Format.NPY
        with _readable(path):
            self._member = self._choose(array)
            self._header = self._read_header(self._member)
            offset = self._offset(self._member)
        _check(self._header, path)
        self.mapped: MappedRecords | None = None
        """The records in their place, or None where they are compressed or not in C order."""
        if offset is not None and not self._header.fortran:
            with _readable(path):
                self.mapped = MappedRecords(
                    path, offset=offset + self._header.length, dtype=self._header.dtype, shape=self._header.shape
                )
            _check_length(path, self.mapped)
        label_name = labels or ("" if labels_file is None else labels_file.name)
        self.labels: Array | None = None
        """All labels (n,), without reading the records; None where none are named."""
        if labels is not None:
            self.labels = _whole(path, labels)
        elif labels_file is not None:
            self.labels = _labels_in(labels_file)
        if self.labels is not None:
            _check_labels(self.labels, label_name, records=self._header.shape[0], path=path)
        why = "in Fortran order" if self._header.fortran else "compressed"
        self.layout = Layout(
            format=self._format,
            dtype=self._header.dtype,
            shape=tuple(self._header.shape[1:]),
            count=self._header.shape[0],
            labels=label_name,
            mapped=self.mapped is not None,
            notes=() if self.mapped is not None else (f"the array is {why}: {_IN_MEMORY}",),
        )

    def batches(self) -> Iterator[Batch]:
        """See `Source`."""
        start = 0
        with _readable(self._path):
            for part in self._parts(rows_per_batch(self.layout.record_bytes)):
                check_finite(part, start=start, name=str(self._path))
                end = start + len(part)
                yield Batch(part, None if self.labels is None else self.labels[start:end])
                start = end

    def _parts(self, rows: int) -> Iterator[Array]:
        header = self._header
        if self.mapped is not None:
            yield from self.mapped.slices(rows)
        elif header.fortran:
            whole = _whole(self._path, self._member)
            for start in range(0, len(whole), rows):
                yield np.ascontiguousarray(whole[start : start + rows])
        else:
            with zipfile.ZipFile(self._path) as archive, archive.open(f"{self._member}.npy") as stream:
                stream.read(header.length)
                width = self.layout.record_bytes
                for start in range(0, header.shape[0], rows):
                    count = min(rows, header.shape[0] - start)
                    data = stream.read(count * width)
                    if len(data) != count * width:
                        raise EOFError
                    yield np.frombuffer(data, dtype=header.dtype).reshape(count, *header.shape[1:])

    def _choose(self, name: str | None) -> str | None:
        if self._format is Format.NPY:
            if name is not None:
                raise RecordsRefused(f"{self._path} is an npy file and holds one array; leave records.array out")
            return None
        with zipfile.ZipFile(self._path) as archive:
            members = [entry.removesuffix(".npy") for entry in archive.namelist() if entry.endswith(".npy")]
        return _member(members, name, self._path)

    def _read_header(self, member: str | None) -> _Header:
        if member is None:
            with self._path.open("rb") as file:
                return _header(file)
        with zipfile.ZipFile(self._path) as archive, archive.open(f"{member}.npy") as stream:
            return _header(stream)

    def _offset(self, member: str | None) -> int | None:
        """Where the array's file begins; None when it is compressed."""
        if member is None:
            return 0
        with zipfile.ZipFile(self._path) as archive:
            info = archive.getinfo(f"{member}.npy")
        if info.compress_type != zipfile.ZIP_STORED:
            return None
        with self._path.open("rb") as file:
            file.seek(info.header_offset)
            name_length, extra_length = struct.unpack("<HH", file.read(_LOCAL_HEADER_BYTES)[26:30])
        return int(info.header_offset + _LOCAL_HEADER_BYTES + name_length + extra_length)


def _whole(path: Path, member: str | None) -> Array:
    """A whole array, memory-mapped where it is a file of its own."""
    with _readable(path):
        if member is None:
            loaded: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            with np.load(path, allow_pickle=False) as archive:
                loaded = archive[_member(archive.files, member, path)]
    if loaded.dtype.hasobject:
        raise RecordsRefused(f"{path} holds Python objects; save plain numeric arrays")
    return loaded


def _labels_in(path: Path) -> Array:
    if not path.is_file() or path.suffix.lower() != ".npy":
        raise RecordsRefused(f"{path} is no npy file; set records.labels_file to one")
    return _whole(path, None)


def _header(stream: IO[bytes]) -> _Header:
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):  # 3.0 exists for structured types alone
        raise ValueError("a newer npy format")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return _Header(shape=shape, fortran=fortran and len(shape) > 1, dtype=dtype, length=stream.tell())


def _check(header: _Header, path: Path) -> None:
    if header.dtype.hasobject:
        raise RecordsRefused(f"{path} holds Python objects; save plain numeric arrays without pickle")
    if header.dtype not in SERVED_TYPES:
        raise RecordsRefused(
            f"{path}: records have type {header.dtype}; save float32 or uint8, for example with array.astype('float32')"
        )
    if not header.shape or header.shape[0] < 2 or math.prod(header.shape[1:]) < 1:
        raise RecordsRefused(
            f"{path}: records have shape {header.shape}; needed are at least two records, none of them empty"
        )


def _check_length(path: Path, mapped: MappedRecords) -> None:
    missing = mapped.offset + mapped.size - path.stat().st_size
    if missing > 0:
        raise RecordsRefused(
            f"{path} is cut short: {missing} bytes are missing for the shape that it names; copy it anew"
        )


def _check_labels(labels: Array, name: str, *, records: int, path: Path) -> None:
    if labels.ndim != 1 or labels.shape[0] != records:
        raise RecordsRefused(
            f"{path}: labels {name!r} have shape {labels.shape}; needed is one label for each of {records} records"
        )
    if labels.dtype.kind not in "biuUS" or labels.dtype.itemsize > 4 * _MAX_LABEL_BYTES:
        raise RecordsRefused(
            f"{path}: labels {name!r} have type {labels.dtype}; needed are whole numbers or short texts"
        )


def _member(members: Sequence[str], name: str | None, path: Path) -> str:
    if name is None:
        if len(members) == 1:
            return members[0]
        raise RecordsRefused(
            f"{path} holds the arrays {', '.join(map(repr, sorted(members)))}; name one in records.array"
        )
    if name not in members:
        raise RecordsRefused(f"{path} has no array {name!r}; {no_such(name, sorted(members))}")
    return name


def _readable(path: Path) -> AbstractContextManager[None]:
    return refusing(
        *_FOREIGN,
        text=f"{path} cannot be read as numpy arrays without pickle",
        remedy="it is damaged or no such file: save plain arrays with numpy.save or numpy.savez",
    )
