"""What every format gives: records in batches of bounded size, checked, in the file's order."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpswd.shared.records.problems import RecordsRefused

Array = npt.NDArray[np.generic]

BATCH_BYTES = 8 << 20
"""Bytes of records that are in memory at a time while a file is checked or converted."""
SERVED_TYPES = (np.dtype(np.float32), np.dtype(np.uint8))
"""Types of stored records: the bytes of a step's sample are turned into float32 as they are."""


class Format(enum.StrEnum):
    """The formats that are read."""

    NPY = "npy"
    NPZ = "npz"
    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    IMAGES = "images"


SUFFIXES: dict[str, Format] = {
    ".npy": Format.NPY,
    ".npz": Format.NPZ,
    **dict.fromkeys((".parquet", ".pq"), Format.PARQUET),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), Format.ARROW),
    **dict.fromkeys((".csv", ".tsv"), Format.CSV),
}
TABLES = (Format.PARQUET, Format.ARROW, Format.CSV)


@dataclass(frozen=True)
class Reading:
    """How a table is read.

    Attributes:
        columns: that make a record, in order; None for all but the labels'.
        labels: the labels' column, or None.
        unlabelled: the label of records that have none; None where each must have one.
        delimiter: between the cells of CSV; None as the file's name tells.
        header: whether the first line of CSV names the columns: yes, no or auto.
        called: what the reader who is told of a refusal knows one of these as.
    """

    columns: tuple[str, ...] | None = None
    labels: str | None = None
    unlabelled: str | None = None
    delimiter: str | None = None
    header: str = "auto"
    called: Callable[[str], str] = str


@dataclass(frozen=True)
class Batch:
    """Records that follow one another in the file.

    Attributes:
        records: (m, ...) float32 or uint8, finite.
        labels: (m,) integers or texts, or None where no labels are named.
    """

    records: Array
    labels: npt.NDArray[np.generic] | None = None


@dataclass(frozen=True)
class Layout:
    """What a source says of its records before it has read them.

    Attributes:
        format: the file's.
        dtype: of the stored records, float32 or uint8.
        shape: of one stored record.
        count: n, or None where only reading tells.
        columns: the names of the values of one record, for tables.
        labels: the name of the labels, or "" where there are none.
        mapped: whether a sample can be read from its place in the file without reading the rest.
        notes: what the operator should know about how the file was understood.
    """

    format: Format
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    count: int | None = None
    columns: tuple[str, ...] = ()
    labels: str = ""
    mapped: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def record_bytes(self) -> int:
        """Bytes of one stored record."""
        return self.dtype.itemsize * math.prod(self.shape)


class Source(Protocol):
    """A file of records that was opened and understood."""

    @property
    def layout(self) -> Layout:
        """What is known before reading."""
        ...

    def batches(self) -> Iterator[Batch]:
        """The records in order; every call begins anew.

        Raises:
            RecordsRefused: values that are not finite, of another shape, or cannot be read; with their place.
        """
        ...


def rows_per_batch(record_bytes: int) -> int:
    """How many records of this size make one batch."""
    return max(1, BATCH_BYTES // max(1, record_bytes))


def check_finite(records: Array, *, start: int, name: str, columns: tuple[str, ...] = ()) -> None:
    """Refuses NaN and infinities.

    Args:
        records: (m, ...), the records `start`, `start` + 1, ...
        start: the number of the first one, counted from 0.
        name: of the file, for the text.
        columns: names of a record's values, for tables.

    Raises:
        RecordsRefused: with the place of the first such value.
    """
    if records.dtype == np.uint8:
        return
    # One sum tells for most batches: it is finite unless a value is not, or the sum itself overflows.
    with np.errstate(all="ignore"):
        if np.isfinite(np.sum(records)):
            return
    finite = np.isfinite(records)
    if finite.all():
        return
    first = np.argwhere(~finite)[0]
    location = f"record {start + int(first[0])}, counted from 0"
    if columns:
        location += f", column {columns[int(first[-1])]!r}"
    elif len(first) > 1:
        location += f", value {[int(index) for index in first[1:]]} of its array"
    raise RecordsRefused(
        f"{name}: records hold NaN or infinite values; replace or drop those records first", location=location
    )
