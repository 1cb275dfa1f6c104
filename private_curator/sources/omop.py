"""The files of an OMOP CDM 5.4 extract: person, measurement and condition_occurrence, as CSV or Parquet."""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpswd.shared.core.errors import SettingsError
from dpswd.shared.records.problems import RecordsRefused, no_such, refusing

_ENDINGS = (".csv", ".tsv", ".csv.gz", ".parquet")
_TYPES = {"measurement_date": pa.string(), "value_as_number": pa.float64()}  # others are whole numbers
_ROWS = 1 << 14
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
        if taken is not None and name in _CODES and not taken[name]:
            continue
        names = [f"{name}{ending}" for ending in _ENDINGS]
        path = next((each for each in sorted(folder.iterdir()) if each.name.lower() in names), None)
        if path is None:
            if name == "person" or taken is not None:
                raise RecordsRefused(f"{folder} has no table {name}; needed is a file {', '.join(names)}")
            continue
        text, remedy = f"{path.name} cannot be read", "it is damaged, or no such table of OMOP CDM 5.4"
        with refusing(pa.ArrowException, OSError, ValueError, KeyError, text=text, remedy=remedy):
            for batch in _batches(path, columns, mark):
                part = batch
                if taken is not None and name in _CODES:
                    codes = pa.array(sorted(taken[name]), pa.int64())
                    part = batch.filter(pc.is_in(batch.column(_CODES[name]), value_set=codes))
                if len(part):
                    yield name, part.to_pylist()


def _batches(path: Path, columns: Sequence[str], mark: str | None) -> Iterator[pa.RecordBatch]:
    """`columns` under these names, whatever their case in the file."""
    schema = pa.schema([(name, _TYPES.get(name, pa.int64())) for name in columns])
    with pq.ParquetFile(path) if path.suffix == ".parquet" else _text(path, columns, mark, schema) as file:
        stored = _stored(file.schema_arrow.names if path.suffix == ".parquet" else file.schema.names, columns, path)
        for batch in file.iter_batches(_ROWS, columns=stored) if path.suffix == ".parquet" else file:
            arrays = [batch.column(name).cast(field.type) for name, field in zip(stored, schema, strict=True)]
            whole = pa.record_batch(arrays, schema=schema)
            yield from (whole.slice(start, _ROWS) for start in range(0, len(whole), _ROWS))


def _text(path: Path, columns: Sequence[str], mark: str | None, schema: pa.Schema) -> pa_csv.CSVStreamingReader:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as text:
        head = text.readline().rstrip("\r\n")
    mark = mark or max("\t;,", key=head.count)
    stored = _stored([name.strip('"') for name in head.split(mark)], columns, path)
    types = {name: field.type for name, field in zip(stored, schema, strict=True)}
    return pa_csv.open_csv(
        path,
        parse_options=pa_csv.ParseOptions(delimiter=mark, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(column_types=types, include_columns=stored),
    )


def _stored(names: Sequence[str], columns: Sequence[str], path: Path) -> list[str]:
    by_name = {name.lower(): name for name in names}
    missing = [name for name in columns if name not in by_name]
    if missing:
        raise RecordsRefused(f"{path.name} has no column {missing[0]!r}; {no_such(missing[0], sorted(by_name))}")
    return [by_name[name] for name in columns]
