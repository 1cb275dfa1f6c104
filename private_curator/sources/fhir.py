"""FHIR R4 as ndjson: Patient, Observation and Condition, by themselves or in bundles, as rows of OMOP's tables.

A code is written `system|code`. What is no resource that can be read is counted and left out; no error quotes it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpswd.shared.records.problems import refusing

Taken = Mapping[str, Collection[str]] | None
_ROWS = 5_000
_GENDERS = {"female": 8532, "male": 8507}  # as OMOP writes them
_WITHDRAWN = {"entered-in-error", "cancelled", "registered", "refuted"}
_WRONG = (ValueError, KeyError, TypeError, AttributeError, IndexError)  # what reading something else raises


def read_fhir(path: Path, taken: Taken, lost: Counter[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A table's name and some of its rows.

    Args:
        path: an ndjson file, or a folder of them; raises RecordsRefused where one cannot be read.
        taken: the codes that are read, by table; None for all.
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
            if _status(resource) & _WITHDRAWN:
                lost["resources that were withdrawn"] += 1
                continue
            read_rows = [row for row in read(resource, number) if taken is None or _code(row) in {None, *taken[table]}]
        except _WRONG:
            lost[f"resources that are no valid {kind}"] += 1
            continue
        part += read_rows
        if len(part) >= _ROWS:
            yield table, waiting.pop(table)
    yield from ((table, part) for table, part in waiting.items() if part)


def _status(resource: dict[str, Any]) -> set[str]:
    codings = resource.get("verificationStatus", {}).get("coding", [])
    return {resource.get("status", ""), *(each.get("code") for each in codings)}


def _code(row: dict[str, Any]) -> str | None:
    return row.get("measurement_concept_id", row.get("condition_concept_id"))


def _codes(concept: dict[str, Any]) -> list[str]:
    return [f"{each.get('system', '')}|{each['code']}" for each in concept.get("coding", []) if "code" in each]


def _patient(resource: dict[str, Any], _: int) -> Iterator[dict[str, Any]]:
    year = int(resource["birthDate"][:4]) if "birthDate" in resource else None
    gender = _GENDERS.get(resource.get("gender", ""))
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
