"""What was understood of a file of records, for the operator's own terminal."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpswd.private_curator.records.opening import ContentDigest, digested
from dpswd.shared.records.batches import Array, Layout, Source
from dpswd.shared.records.problems import RecordsRefused

MAX_CLASSES = 1000
"""Distinct labels; more of them are no classes but, say, names of persons."""
_EXACT_INTEGER = float(1 << 24)  # float32 holds every whole number up to here


@dataclass(frozen=True)
class Column:
    """One value of a record, over all records. Private: for the operator's terminal only.

    Attributes:
        name: the column's, or its place in the record.
        kind: "truth values" (0 and 1 only), "whole numbers" or "numbers".
        low: the smallest.
        high: the largest.
    """

    name: str
    kind: str
    low: float
    high: float


@dataclass(frozen=True)
class Schema:
    """What a file was understood to hold.

    Attributes:
        path: the file or folder.
        format: its format.
        records: n.
        shape: of one stored record.
        type: of the stored values.
        bytes: that the records take as plain values.
        mapped: whether samples are read from the file; else all records are in memory while the curator serves.
        digest: SHA-256 of the values in order; the same in every format.
        notes: what the operator should know about how the file was understood.
        labels: the labels' name, or "".
        classes: how many records have each label; private.
        columns: ranges by column, or one of all values where a record is no table's row; private.
    """

    path: str
    format: str
    records: int
    shape: tuple[int, ...]
    type: str
    bytes: int
    mapped: bool
    digest: str
    notes: tuple[str, ...]
    labels: str
    classes: dict[str, int]
    columns: tuple[Column, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything, private values included."""
        return asdict(self)

    def public(self) -> dict[str, Any]:
        """What does not depend on the records' values."""
        hidden = ("classes", "columns", "digest")
        return {name: value for name, value in self.to_json().items() if name not in hidden}


def inspect(path: Path, source: Source) -> Schema:
    """Reads every record once, in batches.

    Raises:
        RecordsRefused: values that are not finite, of another shape, or cannot be read; with their place.
    """
    layout = source.layout
    digest, ranges, classes = ContentDigest(layout), _Ranges(layout), Counter[str]()
    for batch in digested(source, digest):
        ranges.add(batch.records)
        if batch.labels is not None:
            classes.update(batch.labels.tolist())
            if len(classes) > MAX_CLASSES:
                raise RecordsRefused(
                    f"{path}: the labels {layout.labels!r} have more than {MAX_CLASSES} different values; name another "
                    "column or array, or none"
                )
    return Schema(
        path=str(path),
        format=layout.format.value,
        records=digest.count,
        shape=layout.shape,
        type=layout.dtype.name,
        bytes=digest.count * layout.record_bytes,
        mapped=layout.mapped,
        digest=digest.hexdigest(),
        notes=layout.notes + ranges.notes(),
        labels=layout.labels,
        classes={str(name): classes[name] for name in sorted(classes)},
        columns=ranges.columns(),
    )


class _Ranges:
    """Smallest and largest values, by column for a table, of all values for anything else."""

    def __init__(self, layout: Layout) -> None:
        self._names = layout.columns or ("all values",)
        self._by_column = bool(layout.columns)
        width = len(self._names)
        self._low, self._high = np.full(width, np.inf), np.full(width, -np.inf)
        self._whole = np.ones(width, dtype=bool)

    def add(self, records: Array) -> None:
        flat = records if self._by_column else records.reshape(-1, 1)
        self._low = np.minimum(self._low, flat.min(axis=0))
        self._high = np.maximum(self._high, flat.max(axis=0))
        open_places = np.flatnonzero(self._whole)
        for place in open_places.tolist():
            column = flat[:, place]
            self._whole[place] = flat.dtype == np.uint8 or bool((column == np.floor(column)).all())

    def columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(name=name, kind=self._kind(place), low=float(self._low[place]), high=float(self._high[place]))
            for place, name in enumerate(self._names)
        )

    def notes(self) -> tuple[str, ...]:
        largest = np.maximum(np.abs(self._low), np.abs(self._high))
        inexact = [self._names[place] for place in np.flatnonzero(self._whole & (largest > _EXACT_INTEGER)).tolist()]
        if not inexact:
            return ()
        text = (
            f"whole numbers beyond 2^24 are rounded to float32 in {inexact[:10]}; is one of them an identifier that "
            "does not belong into a record?"
        )
        return (text,)

    def _kind(self, place: int) -> str:
        if not self._whole[place]:
            return "numbers"
        return "truth values" if self._low[place] >= 0 and self._high[place] <= 1 else "whole numbers"
