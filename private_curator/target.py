"""The private records: loaded, checked, and read by index.

Files are ``.npz`` or ``.npy``; nothing is unpickled. Records that lie uncompressed on disk are memory-mapped, so a
data set may be larger than memory. Errors name the file and the property that is wrong, never a value.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from private_curator.settings import RecordsSettings
from shared.errors import DataInvalid

Array = npt.NDArray[np.generic]

_UINT8_RANGE = (0.0, 255.0)
_LOCAL_HEADER_BYTES = 30  # APPNOTE.TXT 4.3.7: fixed part of a zip member's local header
_CHECK_VALUES = 1 << 22  # values that are checked for being finite at a time


@dataclass(frozen=True)
class Target:
    """The records that the curator protects.

    Attributes:
        records: (n, ...) float32 or uint8 as stored; private.
        record_shape: the shape of one record as the extractor sees it; public.
        scale: factor from stored to served values; public.
        offset: added after the factor; public.
    """

    records: Array
    record_shape: tuple[int, ...]
    scale: float = 1.0
    offset: float = 0.0

    @property
    def count(self) -> int:
        """n, public under replace-one neighbours."""
        return int(self.records.shape[0])

    def take(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Records in the order of `indices`, (b, *record_shape).

        Args:
            indices: (b,) distinct record numbers, secret.
        """
        chosen = np.asarray(self.records[indices], dtype=np.float32)
        if (self.scale, self.offset) != (1.0, 0.0):
            chosen = chosen * np.float32(self.scale) + np.float32(self.offset)
        return np.ascontiguousarray(chosen).reshape(-1, *self.record_shape)


def load(settings: RecordsSettings, *, home: Path) -> Target:
    """Opens and checks the records that the settings name.

    Raises:
        DataInvalid: no such file or array, a wrong type, fewer than two records, values that are not finite, a
            shape that does not fit, or labels of another length.
    """
    path = home / settings.file
    records = _array(path, settings.array)
    _check(records, path)
    stored_shape = tuple(int(extent) for extent in records.shape[1:])
    shape = settings.record_shape or stored_shape or (1,)
    if math.prod(shape) != math.prod(stored_shape):
        raise DataInvalid(
            f"{path}: one record has shape {stored_shape}, which does not fit records.record_shape {list(shape)}; "
            f"the product must be {math.prod(stored_shape)}"
        )
    if settings.labels_array is not None:
        labels = _array(path, settings.labels_array)
        if labels.ndim != 1 or labels.shape[0] != records.shape[0]:
            raise DataInvalid(
                f"{path}: labels {settings.labels_array!r} have shape {labels.shape}; needed is one label for each of "
                f"{records.shape[0]} records"
            )
    scale, offset = _scaling(settings, records.dtype)
    return Target(records=records, record_shape=shape, scale=scale, offset=offset)


def _scaling(settings: RecordsSettings, dtype: np.dtype[np.generic]) -> tuple[float, float]:
    """Factor and offset that map the declared public range onto scale_to."""
    declared = settings.scale_from or (_UINT8_RANGE if dtype == np.uint8 else None)
    if declared is None:
        return 1.0, 0.0
    (low, high), (to_low, to_high) = declared, settings.scale_to
    scale = (to_high - to_low) / (high - low)
    return scale, to_low - low * scale


def _check(records: Array, path: Path) -> None:
    if records.dtype not in (np.dtype(np.float32), np.dtype(np.uint8)):
        raise DataInvalid(
            f"{path}: records have type {records.dtype}; save float32 or uint8, for example with "
            "array.astype('float32')"
        )
    if records.ndim < 1 or records.shape[0] < 2 or math.prod(records.shape[1:]) < 1:
        raise DataInvalid(
            f"{path}: records have shape {records.shape}; needed are at least two records, none of them empty"
        )
    if records.dtype == np.float32:
        rows = max(1, _CHECK_VALUES // math.prod(records.shape[1:]))
        for start in range(0, records.shape[0], rows):
            if not np.isfinite(records[start : start + rows]).all():
                raise DataInvalid(f"{path}: records hold NaN or infinite values; replace or drop those records first")


def _array(path: Path, name: str | None) -> Array:
    if not path.is_file():
        raise DataInvalid(f"{path} does not exist or is no file; set records.file to an npz or npy file")
    try:
        if path.suffix == ".npy":
            return _plain_array(np.load(path, mmap_mode="r", allow_pickle=False), path)
        if path.suffix != ".npz":
            raise DataInvalid(f"{path}: only .npz and .npy files are read; convert with numpy.savez")
        with np.load(path, allow_pickle=False) as archive:
            member = _member(archive.files, name, path)
            mapped = _map_member(path, f"{member}.npy")
            return mapped if mapped is not None else _plain_array(archive[member], path)
    except (ValueError, OSError, zipfile.BadZipFile, KeyError) as error:
        if isinstance(error, DataInvalid):
            raise
        # The cause's text may quote the file's content: only its type is told.
        raise DataInvalid(
            f"{path} cannot be read as numpy arrays without pickle ({type(error).__name__}); "
            "save plain arrays with numpy.savez"
        ) from None


def _plain_array(value: Array, path: Path) -> Array:
    if value.dtype.hasobject:
        raise DataInvalid(f"{path} holds Python objects; save plain numeric arrays")
    return value


def _member(members: Sequence[str], name: str | None, path: Path) -> str:
    if name is None:
        if len(members) == 1:
            return members[0]
        raise DataInvalid(f"{path} holds the arrays {sorted(members)}; name one in records.array")
    if name not in members:
        raise DataInvalid(f"{path} holds no array {name!r}; it holds {sorted(members)}")
    return name


def _map_member(path: Path, member: str) -> Array | None:
    """Maps an uncompressed npz member into memory; None when it is compressed and must be read whole."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    if info.compress_type != zipfile.ZIP_STORED:
        return None
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER_BYTES)
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        file.seek(info.header_offset + _LOCAL_HEADER_BYTES + name_length + extra_length)
        version = np.lib.format.read_magic(file)
        if version != (1, 0):  # longer headers exist for huge structured types only
            return None
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject or fortran:
            return None
        return np.memmap(path, dtype=dtype, mode="r", offset=file.tell(), shape=shape)
