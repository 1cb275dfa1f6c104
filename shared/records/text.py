"""CSV: read as text first, so that a cell that is no number is found by its place and never quoted."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dpswd.shared.records.batches import Reading
from dpswd.shared.records.problems import RecordsRefused, refusing

_BLOCK_BYTES = 4 << 20
_MAX_FIRST_LINE = 8 << 20  # characters; a longer first line is no line of a table
_EMPTY = ("", "NA", "N/A", "null", "NULL")


class CsvTable:
    """A CSV file whose columns are numbers, but for the labels'.

    Args:
        path: the file, UTF-8.
        reading: between its cells stands its delimiter, by default the semicolon, tab or comma that two lines show.

    Raises:
        RecordsRefused: no text, or a first line that may be names or values.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        self._called = reading.called
        lines = self._first_lines()
        self._delimiter = reading.delimiter or _delimiter_of(lines)
        self._decimal_commas = self._delimiter == ";"
        first = _cells(lines[0], self._delimiter)
        numbers_only = all(_is_number(cell.replace(",", ".") if self._decimal_commas else cell) for cell in first)
        if reading.header == "auto" and numbers_only:
            raise RecordsRefused(
                f"{path}: the first line holds numbers only and may be names or values; set "
                f"{self._called('header')} to yes or no"
            )
        self._has_header = reading.header != "no"
        self.names = first if self._has_header else [f"column_{i}" for i in range(len(first))]
        if "" in self.names:
            raise RecordsRefused(f"{path}: a column has no name in the first line; name every column")
        self.notes = (
            "the first line names the columns" if self._has_header else "no line of names: columns are counted from 0",
            *["cells end at ';', and a comma in a number is a decimal comma"] * self._decimal_commas,
        )

    def batches(self, columns: list[str], *, labels: str | None) -> Iterator[Any]:
        """Record batches with these columns: numbers, but for the labels', which are texts.

        Raises:
            RecordsRefused: a line of another number of cells, or a cell that is no number; with its place.
        """
        offences: list[str] = []

        def ragged(row: Any) -> str:
            where = "" if row.number is None else f"line {row.number}, counted from 1, "
            offences.append(f"{where}with {row.actual_columns} cells")
            return "error"

        try:
            reader = pyarrow.csv.open_csv(
                self._path,
                # One thread: only then Arrow knows the number of a bad line.
                read_options=pyarrow.csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK_BYTES, column_names=self.names, skip_rows=int(self._has_header)
                ),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=self._delimiter, invalid_row_handler=ragged, newlines_in_values=True
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=columns,
                    column_types=dict.fromkeys(columns, pa.string()),
                    null_values=list(_EMPTY),
                    strings_can_be_null=True,
                ),
            )
            start = 0
            for batch in reader:
                arrays = [
                    batch.column(i) if name == labels else self._numbers(batch.column(i), name, start)
                    for i, name in enumerate(columns)
                ]
                yield pa.record_batch(arrays, names=columns)
                start += len(batch)
        except pa.ArrowInvalid:
            if not offences:
                raise
            location = offences[0]
        else:
            return
        raise RecordsRefused(
            f"{self._path}: a line has not as many cells as the first one, which has {len(self.names)}",
            location=location,
        )

    def _numbers(self, column: Any, name: str, start: int) -> Any:
        trimmed = pc.utf8_trim_whitespace(column)
        # With points beside them, commas may divide thousands: then they are no numbers.
        if self._decimal_commas and not pc.any(pc.match_substring(trimmed, ".")).as_py():
            trimmed = pc.replace_substring(trimmed, ",", ".")
        try:
            return pc.cast(trimmed, pa.float64())
        except pa.ArrowInvalid:
            first = next(i for i in range(len(trimmed)) if not _castable(trimmed[i]))
        raise RecordsRefused(
            f"{self._path}: column {name!r} holds text that is no number; correct it, name the columns that make a "
            f"record in {self._called('columns')}, or the labels' in {self._called('labels')}",
            location=f"record {start + first}, counted from 0, column {name!r}",
        )

    def _first_lines(self) -> list[str]:
        foreign = (UnicodeDecodeError, csv.Error, OSError)
        with (
            refusing(*foreign, text=f"{self._path} is no CSV text in UTF-8", remedy="save it as such"),
            self._path.open(encoding="utf-8-sig", newline="") as file,
        ):
            lines = [file.readline(_MAX_FIRST_LINE) for _ in range(2)]
            first = _cells(lines[0], ",")
        if not first:
            raise RecordsRefused(f"{self._path} is empty or begins with an empty line; needed are names and values")
        return lines


def _cells(line: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]


def _delimiter_of(lines: list[str]) -> str:
    """What divides the first line, and the second alike; commas come last, since they may be in numbers."""
    for each in ";\t":
        first, second = (len(_cells(line, each)) for line in lines)
        if first > 1 and (first == second or len(_cells(lines[0], ",")) == 1):
            return each
    return ","


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _castable(scalar: Any) -> bool:
    try:
        scalar.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True
