"""Parquet, Arrow and CSV: a row is a record, its columns in order are the record's values, as float32."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpswd.shared.records.batches import Array, Batch, Format, Layout, Reading, check_finite, rows_per_batch
from dpswd.shared.records.problems import RecordsRefused, no_such, refusing
from dpswd.shared.records.text import CsvTable

_READ_BYTES = 1 << 16  # of each column at a time: a row group may be as large as the file
_BATCH_ROWS = 4096


class TableSource:
    """Records in a table.

    A column is numbers, truth values or, if it is the only one, lists of numbers of one length.

    Args:
        path: the file.
        kind: Parquet, Arrow or CSV.
        reading: which columns are a record's, and how a CSV file is written.
        without: a column that is no value of a record, besides the labels'.
        missing: what is said where a label is missing, by default how to name one for none.

    Raises:
        RecordsRefused: no such column, a column that is no number, or a file that cannot be read.
    """

    def __init__(
        self, path: Path, kind: Format, reading: Reading, *, without: str | None = None, missing: str = ""
    ) -> None:
        self._path = path
        self._called = reading.called
        self._missing = missing or (
            f"a label is missing; add it or, if records may have none, name one for them in "
            f"{self._called('unlabelled')} (a whole number, such as -1, where labels are numbers)"
        )
        self._format = kind
        self._text = CsvTable(path, reading) if kind is Format.CSV else None
        with self._readable():
            names, count = self._names_and_count()
        self._labels = reading.labels
        self._unlabelled = reading.unlabelled
        self.columns = self._choose(names, reading.columns, without)
        """The columns of a record, in order."""
        self._width = 0
        self._width = self._measure()
        self.layout = Layout(
            format=self._format,
            dtype=np.dtype(np.float32),
            shape=(self._width,),
            count=count,
            columns=self.columns if self._width == len(self.columns) else (),
            labels=self._labels or "",
            notes=self._text.notes if self._text is not None else (),
        )

    def batches(self) -> Iterator[Batch]:
        """See `Source`."""
        start = 0
        names = [*self.columns, *([self._labels] if self._labels is not None else [])]
        for table in self._tables(names):
            if not len(table):
                continue
            columns = [self._values(table.column(i), name, start) for i, name in enumerate(self.columns)]
            records = np.column_stack(columns) if columns[0].ndim == 1 else columns[0]
            # From 64 to 32 bits a large number becomes infinite; that is found here as well.
            with np.errstate(over="ignore"):
                narrow = np.ascontiguousarray(records, dtype=np.float32)
            check_finite(narrow, start=start, name=str(self._path), columns=self.columns)
            labels = None if self._labels is None else self._label_values(table.column(len(columns)), start)
            yield Batch(narrow, labels)
            start += len(table)

    def _names_and_count(self) -> tuple[list[str], int | None]:
        if self._text is not None:
            return self._text.names, None
        if self._format is Format.PARQUET:
            with pq.ParquetFile(self._path) as file:
                return list(file.schema_arrow.names), int(file.metadata.num_rows)
        with pa.memory_map(str(self._path)) as source, _reader(source) as reader:
            return list(reader.schema.names), None

    def _choose(self, names: Sequence[str], columns: tuple[str, ...] | None, without: str | None) -> tuple[str, ...]:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise RecordsRefused(f"{self._path} names the columns {twice} more than once; rename them")
        chosen = columns or tuple(name for name in names if name != self._labels)
        values = tuple(name for name in chosen if name != without)
        missing = [name for name in (*values, *filter(None, (self._labels, without))) if name not in names]
        if missing:
            raise RecordsRefused(f"{self._path} has no column {missing[0]!r}; {no_such(missing[0], names)}")
        if not values or (self._labels in values) or len(set(values)) != len(values):
            raise RecordsRefused(
                f"{self._path}: a record needs at least one column, each once, and the labels' is none of them; name "
                f"them in {self._called('columns')}"
            )
        return values

    def _readable(self) -> AbstractContextManager[None]:
        foreign = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError)
        remedy = "it is damaged, cut short, or of another format"
        return refusing(*foreign, text=f"{self._path} cannot be read as a table", remedy=remedy)

    def _measure(self) -> int:
        """Values of one record: the number of columns, or the length of the lists in the only one."""
        first = next((table for table in self._tables(list(self.columns)) if len(table)), None)
        if first is None:
            raise RecordsRefused(f"{self._path} has no rows; needed are at least two records")
        arrays = [self._values(first.column(i), name, 0) for i, name in enumerate(self.columns)]
        if len(arrays) > 1 and any(column.ndim > 1 for column in arrays):
            raise RecordsRefused(
                f"{self._path}: a column of lists stands for the whole record; name it alone in "
                f"{self._called('columns')}"
            )
        return len(arrays) if arrays[0].ndim == 1 else arrays[0].shape[1]

    def _tables(self, columns: list[str]) -> Iterator[Any]:
        """Record batches with these columns in this order."""
        with self._readable():
            if self._text is not None:
                yield from self._text.batches(columns, labels=self._labels)
            elif self._format is Format.PARQUET:
                with pq.ParquetFile(self._path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
                    for batch in file.iter_batches(batch_size=_batch_rows(file.metadata), columns=columns):
                        yield batch.select(columns)
            else:
                with pa.memory_map(str(self._path)) as source, _reader(source) as reader:
                    for batch in _batches(reader):
                        for start in range(0, len(batch), _BATCH_ROWS):
                            yield batch.slice(start, _BATCH_ROWS).select(columns)

    def _values(self, column: Any, name: str, start: int) -> Array:
        """Numbers of one column, (m,), or of lists, (m, width)."""
        kind = column.type
        if column.null_count:
            raise RecordsRefused(
                f"{self._path}: a cell is empty; fill or drop those records first",
                location=_location(start + _first(column.is_null()), name),
            )
        if pa.types.is_boolean(kind):
            return _numpy(column).astype(np.float32)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return _numpy(column)
        if pa.types.is_decimal(kind):
            return _numpy(column.cast(pa.float64()))
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            return self._list_values(column, name, start)
        raise RecordsRefused(
            f"{self._path}: column {name!r} holds {kind} and no numbers; name the columns that make a record in "
            f"{self._called('columns')}, or the labels' in {self._called('labels')}"
        )

    def _list_values(self, column: Any, name: str, start: int) -> Array:
        lengths = column.value_lengths()
        width = self._width or lengths[0].as_py()
        other = _first(pc.not_equal(lengths, width))
        if other >= 0 or width < 1:
            raise RecordsRefused(
                f"{self._path}: the lists of column {name!r} are not all of one length (the first has {width} values)",
                location=_location(start + other, name) if other >= 0 else "",
            )
        flat = column.flatten()
        if flat.null_count or not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)):
            raise RecordsRefused(
                f"{self._path}: the lists of column {name!r} hold {flat.type} with {flat.null_count} empty places; "
                "needed are numbers only",
                location=_location(start + _first(flat.is_null()) // width, name) if flat.null_count else "",
            )
        return _numpy(flat).reshape(len(column), width)

    def _label_values(self, column: Any, start: int) -> Array:
        name = self._labels or ""
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_float16(column.type):
            column = pc.cast(column, pa.float32())
        if pa.types.is_floating(column.type):  # what pandas makes of whole numbers some of which are missing
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
            whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**53))
            if pc.all(whole).as_py() is not False:  # None where all are missing
                column = pc.cast(column, pa.int64())
        numbers = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
        if column.null_count and (self._unlabelled is None or (numbers and not _is_whole(self._unlabelled))):
            location = _location(start + _first(column.is_null()), name)
            raise RecordsRefused(f"{self._path}: {self._missing}", location=location)
        if numbers:
            if self._unlabelled is not None and _is_whole(self._unlabelled):
                with self._readable():  # one type for all batches, whether a label is missing in them or not
                    column = pc.fill_null(pc.cast(column, pa.int64()), int(self._unlabelled))
            return _numpy(column)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return np.array([self._unlabelled if text is None else text for text in column.to_pylist()])
        raise RecordsRefused(
            f"{self._path}: the labels' column {name!r} holds {column.type}; needed are whole numbers or texts"
        )


def _reader(source: Any) -> Any:
    """Arrow's file format (Feather 2) or its stream format."""
    magic = source.read(6)
    source.seek(0)
    return pa.ipc.open_file(source) if magic == b"ARROW1" else pa.ipc.open_stream(source)


def _batch_rows(metadata: Any) -> int:
    """Rows of a Parquet file that make a batch of bounded size, by what its row groups say of themselves."""
    size = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    return min(_BATCH_ROWS, rows_per_batch(size // max(1, metadata.num_rows)))


def _batches(reader: Any) -> Iterator[Any]:
    if hasattr(reader, "num_record_batches"):
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
    else:
        yield from reader


def _numpy(column: Any) -> Array:
    values: Array = column.to_numpy(zero_copy_only=False)
    return values


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text) is not None


def _first(mask: Any) -> int:
    """The first place where a mask is true; -1 where it never is."""
    return int(pc.index(mask, True).as_py())


def _location(row: int, name: str) -> str:
    return f"record {row}, counted from 0, column {name!r}"
