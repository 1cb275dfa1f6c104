"""From a path or a database's address to a source of records, by what is there; and the notes beside what was made."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.sources import words_of
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.files import write_private
from dpswd.shared.records.batches import Source

_MOST_LOOKED_AT = 1000  # entries of a folder of which one tells what it holds
_ENDINGS = (("query", ".sql"), ("fhir", ".ndjson"), ("dicom", ".dcm"), ("nifti", (".nii", ".nii.gz")))


class HospitalSource(Source, Protocol):
    """A source that counts what it leaves out (`lost`, after `batches`) and says where it comes from (`origin`)."""

    lost: Counter[str]
    origin: dict[str, Any]


def open_hospital(
    path: Path | None, out: Path, settings: RecordsSettings, *, database: str | None, missing: float | None,
    person: str | None, most: int,
) -> HospitalSource | None:  # fmt: skip
    """Opens what a hospital's own system holds: a query, an OMOP extract or database, FHIR, DICOM or NIfTI.

    Args:
        path: what is read; None for an OMOP database.
        out: where the records go; the notes go beside.
        settings: which columns, which labels.
        database: its address, as SQLAlchemy writes it.
        missing: what stands for a missing value; without it rows with one are left out.
        person: what tells persons apart.
        most: records of each.

    Returns None for any other format. Raises SettingsError where an option has no meaning or dpswd[sources] is not
    installed, RecordsRefused where nothing can be read.
    """
    kind = "omop" if path is None and database is not None else _kind(path)
    if kind is None and missing is None:
        return None
    wrong = {
        "--missing is for SQL, OMOP and FHIR; leave it out": missing is not None and kind in (None, "dicom", "nifti"),
        "OMOP and FHIR become one row a person by themselves; leave out --person and --most": (
            kind in ("omop", "fhir") and (person is not None or most != 1)
        ),
        "--most is of each person; name the column that tells persons apart with --person": most != 1 and not person,
        "a query needs --database, the database that answers it": kind == "query" and database is None,
        f"{_notes(out)} exists and is not overwritten; choose another name": _notes(out).exists(),
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise SettingsError(text)
    try:
        if kind == "query" and path is not None and database is not None:
            from dpswd.private_curator.sources import sql

            return sql.query_source(path, database, settings, missing=missing, person=person, most=most)
        if kind in ("omop", "fhir"):
            from dpswd.private_curator.sources import persons

            return persons.person_source(path, database, settings, fhir=kind == "fhir", missing=missing)
        from dpswd.private_curator.sources import scans

        assert path is not None
        return scans.ScanSource(path, settings, dicom=kind == "dicom", person=person, most=most)
    except ImportError as error:
        raise SettingsError(f"this needs {error.name}; pip install 'dpswd[sources]'") from error


def write_notes(source: HospitalSource, out: Path, digest: str) -> dict[str, Any]:
    """Writes beside the records where they come from, which columns they have and what was lost; shows the last."""
    facts = source.origin | {"digest": digest, "columns": source.layout.columns, "lost": +source.lost}
    write_private(_notes(out), json.dumps(facts, indent=2).encode() + b"\n")
    return {"notes": str(_notes(out)), "lost": words_of(source.lost) or "nothing"}


def _notes(out: Path) -> Path:
    return out.with_name(f"{out.stem}.notes.json")


def _kind(path: Path | None) -> str | None:
    if path is None or not path.exists():
        return None
    names = [path]
    if path.is_dir():
        if any(name.name.lower().startswith("person.") for name in path.iterdir()):
            return "omop"
        names = [name for name, _ in zip(path.rglob("*"), range(_MOST_LOOKED_AT), strict=False) if name.is_file()]
    for kind, ending in _ENDINGS:
        if any(name.name.lower().endswith(ending) for name in names):
            return kind
    return "dicom" if any(name.open("rb").read(132)[128:] == b"DICM" for name in names) else None
