"""Files whose rows become persons, as rows of OMOP's tables: an extract of OMOP CDM 5.4, or FHIR R4.

An extract is a file for each table, as CSV or Parquet. FHIR is ndjson: Patient, Observation and Condition, by
themselves or in bundles; a code is written `system|code`, and what is no resource that can be read is counted and left
out. No error quotes a value.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as pa_dataset

from dpswd.shared.core.errors import SettingsError
from dpswd.shared.records.problems import RecordsRefused, no_such, refusing

Rows = Iterator[tuple[str, list[dict[str, Any]]]]
"""A table's name and some of its rows."""
Taken = Mapping[str, Collection[Any]] | None
"""The codes that are read, by table; None for all."""
TABLES = {
    "person": ("person_id", "year_of_birth", "gender_concept_id"),
    "measurement": (
        "measurement_id", "person_id", "measurement_concept_id", "measurement_date", "value_as_number",
        "unit_concept_id",
    ),
    "condition_occurrence": ("person_id", "condition_concept_id"),
}  # fmt: skip
"""What is read of OMOP."""
CODES = {"measurement": "measurement_concept_id", "condition_occurrence": "condition_concept_id"}
"""The column of a table's codes."""
FEMALE, MALE = 8532, 8507  # OMOP's concepts
_ENDINGS = (".csv", ".tsv", ".csv.gz", ".parquet")
_TYPES = defaultdict(pa.int64, measurement_date=pa.string(), value_as_number=pa.float64())
_ROWS = 1 << 14
_HEAD = 1 << 16  # bytes in which the first line of CSV ends
_WITHDRAWN = {"entered-in-error", "cancelled", "registered", "refuted"}
_WRONG = (ValueError, KeyError, TypeError, AttributeError, IndexError)  # what reading something else raises


def read_omop(folder: Path, taken: Taken, mark: str | None) -> Rows:
    """The columns in `TABLES` of an extract.

    Args:
        folder: of the extract.
        taken: concepts.
        mark: between the cells of CSV; by default what its first line shows.

    Raises RecordsRefused where a table or column is missing, or cannot be read.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder} is a file; an OMOP extract is a folder that holds person.csv or person.parquet")
    for name, columns in TABLES.items():
        codes = None if taken is None or name not in CODES else sorted(taken[name])
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
            chosen = {column: pa_dataset.field(stored[column]).cast(_TYPES[column]) for column in columns}
            rows = None if codes is None else pa_dataset.field(stored[CODES[name]]).isin(codes)
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
        convert_options=pa_csv.ConvertOptions(column_types={stored[name]: _TYPES[name] for name in columns}),
    )
    return pa_dataset.dataset(path, format=form), stored


def _stored(names: Sequence[str], columns: Sequence[str], path: Path) -> dict[str, str]:
    by_name = {name.lower(): name for name in names}
    for name in columns:
        if name not in by_name:
            raise RecordsRefused(f"{path.name} has no column {name!r}; {no_such(name, sorted(by_name))}")
    return {name: by_name[name] for name in columns}


def read_fhir(path: Path, taken: Taken, lost: Counter[str]) -> Rows:
    """The resources of an ndjson file, or of a folder of them.

    Args:
        path: of it; raises RecordsRefused where a file cannot be read.
        taken: codes.
        lost: gets what was left out.
    """
    waiting: dict[str, list[dict[str, Any]]] = {}
    for number, resource in enumerate(_resources(path, lost)):
        kind = resource.get("resourceType")
        if kind not in _READ:
            continue
        table, read = _READ[kind]
        part = waiting.setdefault(table, [])
        try:
            codings = resource.get("verificationStatus", {}).get("coding", [])
            if _WITHDRAWN & {resource.get("status", ""), *(each.get("code") for each in codings)}:
                lost["resources that were withdrawn"] += 1
                continue
            asked, code = None if taken is None else {None, *taken[table]}, CODES.get(table, "")
            read_rows = [row for row in read(resource, number) if asked is None or row.get(code) in asked]
        except _WRONG:
            lost[f"resources that are no valid {kind}"] += 1
            continue
        part += read_rows
        if len(part) >= _ROWS:
            yield table, waiting.pop(table)
    yield from ((table, part) for table, part in waiting.items() if part)


def _codes(concept: dict[str, Any]) -> list[str]:
    return [f"{each.get('system', '')}|{each['code']}" for each in concept.get("coding", []) if "code" in each]


def _patient(resource: dict[str, Any], _: int) -> Iterator[dict[str, Any]]:
    year = int(resource["birthDate"][:4]) if "birthDate" in resource else None
    gender = {"female": FEMALE, "male": MALE}.get(resource.get("gender", ""))
    yield {"person_id": _text(resource["id"]), "year_of_birth": year, "gender_concept_id": gender}


def _observation(resource: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """One row for each code of the observation and of its parts."""
    row = {"measurement_id": number, "measurement_date": _text(resource.get("effectiveDateTime", ""))} | _of(resource)
    for part in (resource, *resource.get("component", [])):
        quantity = part.get("valueQuantity", {})
        value = float(quantity["value"]) if "value" in quantity else None
        unit = quantity.get("code", quantity.get("unit"))
        for code in _codes(part["code"]):
            yield row | {"value_as_number": value, "unit_concept_id": unit, "measurement_concept_id": code}


def _condition(resource: dict[str, Any], _: int) -> Iterator[dict[str, Any]]:
    for code in _codes(resource["code"]):
        yield _of(resource) | {"condition_concept_id": code}


_READ = {
    "Patient": ("person", _patient), "Observation": ("measurement", _observation),
    "Condition": ("condition_occurrence", _condition),
}  # fmt: skip


def _of(resource: dict[str, Any]) -> dict[str, Any]:
    """The person of Patient/7, Patient/7/_history/2, urn:uuid:7 or an address."""
    return {"person_id": re.split(r"[/:]", resource["subject"]["reference"].partition("/_history/")[0])[-1]}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _resources(path: Path, lost: Counter[str]) -> Iterator[dict[str, Any]]:
    """Every resource of every line, those in bundles by themselves."""
    files, remedy = sorted(path.rglob("*.ndjson")) if path.is_dir() else [path], "is it ndjson in UTF-8?"
    for file in files:
        text = f"{file.name} cannot be read"
        with refusing(OSError, UnicodeDecodeError, text=text, remedy=remedy), file.open(encoding="utf-8") as lines:
            for line in filter(str.strip, lines):
                try:
                    whole = json.loads(line)
                    parts = whole.get("entry", []) if whole["resourceType"] == "Bundle" else [{"resource": whole}]
                    yield from [each["resource"] for each in parts if isinstance(each.get("resource"), dict)]
                except _WRONG:
                    lost["lines that are no resource"] += 1
