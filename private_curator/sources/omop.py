"""The files of an OMOP CDM 5.4 extract: person, measurement and condition_occurrence, as CSV or Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as pa_dataset

from dpswd.shared.core.errors import SettingsError
from dpswd.shared.records.problems import RecordsRefused, no_such, refusing

_ENDINGS = (".csv", ".tsv", ".csv.gz", ".parquet")
_TYPES = {"measurement_date": pa.string(), "value_as_number": pa.float64()}  # others are whole numbers
_ROWS = 1 << 14
_HEAD = 1 << 16  # bytes in which the first line of CSV ends
_CODES = {"measurement": "measurement_concept_id", "condition_occurrence": "condition_concept_id"}


def read_omop(
    folder: Path, tables: Mapping[str, Sequence[str]], taken: Mapping[str, Collection[int]] | None, mark: str | None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A table's name and some of its rows, of the columns in `tables`.

    Args:
        folder: of the extract.
        tables: names and columns.
        taken: the concepts of each table that are read; None for all.
        mark: between the cells of CSV; by default what its first line shows.

    Raises RecordsRefused where a table or column is missing, or cannot be read.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder} is a file; an OMOP extract is a folder that holds person.csv or person.parquet")
    for name, columns in tables.items():
        codes = None if taken is None or name not in _CODES else sorted(taken[name])
        if codes == []:
            continue
        names = [f"{name}{ending}" for ending in _ENDINGS]
        path = next((each for each in sorted(folder.iterdir()) if each.name.lower() in names), None)
        if path is None:
            if name == "person" or taken is not None:
                raise RecordsRefused(f"{folder} has no table {name}; needed is a file {', '.join(names)}")
            continue
        text, remedy = f"{path.name} cannot be read", "it is damaged, or no such table of OMOP CDM 5.4"
        with refusing(pa.ArrowException, OSError, ValueError, KeyError, text=text, remedy=remedy):
            file, stored = _opened(path, columns, mark)
            chosen = {column: pa_dataset.field(stored[column]).cast(_type(column)) for column in columns}
            rows = None if codes is None else pa_dataset.field(stored[_CODES[name]]).isin(codes)
            for batch in file.to_batches(columns=chosen, filter=rows, batch_size=_ROWS, use_threads=False):
                if len(batch):
                    yield name, batch.to_pylist()


def _opened(path: Path, columns: Sequence[str], mark: str | None) -> tuple[pa_dataset.Dataset, dict[str, str]]:
    """A table, and what it calls each of these columns: the same but for their case."""
    if path.suffix == ".parquet":
        file = pa_dataset.dataset(path)
        return file, _stored(file.schema.names, columns, path)
    with pa.input_stream(str(path)) as packed:
        head = packed.read(_HEAD).decode("utf-8", "replace").partition("\n")[0].rstrip("\r")
    mark = mark or max("\t;,", key=head.count)
    stored = _stored([name.strip('"') for name in head.split(mark)], columns, path)
    form = pa_dataset.CsvFileFormat(
        parse_options=pa_csv.ParseOptions(delimiter=mark, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(column_types={stored[name]: _type(name) for name in columns}),
    )
    return pa_dataset.dataset(path, format=form), stored


def _stored(names: Sequence[str], columns: Sequence[str], path: Path) -> dict[str, str]:
    by_name = {name.lower(): name for name in names}
    for name in columns:
        if name not in by_name:
            raise RecordsRefused(f"{path.name} has no column {name!r}; {no_such(name, sorted(by_name))}")
    return {name: by_name[name] for name in columns}


def _type(column: str) -> pa.DataType:
    return _TYPES.get(column, pa.int64())
