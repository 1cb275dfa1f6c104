"""One row a person: from an OMOP CDM 5.4 extract or database, or from FHIR.

A column is `year_of_birth`, `female`, `measurement:CODE` (the last one by date; with `@UNIT` behind it those in that
unit alone) or `condition:CODE` (1 where it was ever recorded, else 0). Files are put into tables of OMOP in a temporary
database that has no name on the disk; the same query flattens them and a hospital's own database.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.sources.extracts import CODES, FEMALE, MALE, TABLES, read_fhir, read_omop
from dpswd.private_curator.sources.sql import RowSource, connect, refusing_database
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.records.problems import RecordsRefused

_ALLOWED = "year_of_birth, female, measurement:CODE, measurement:CODE@UNIT and condition:CODE"
_person, _measurement, _condition = (sa.table(name, *map(sa.column, columns)) for name, columns in TABLES.items())


def person_source(
    path: Path | None, database: str | None, settings: RecordsSettings, *, fhir: bool, missing: float | None
) -> RowSource:
    """A row for each person; the columns and the labels' are named by the operator, for names are public.

    Args:
        path: the extract; None for the database.
        database: its address.
        settings: `columns` and `labels_array`; `delimiter` of an extract in CSV.
        fhir: whether the files are FHIR.
        missing: what stands for a missing value; None leaves the person out.

    Raises SettingsError where no columns are named or one cannot be, RecordsRefused where the files cannot be read or a
    measurement has several units and none is named.
    """
    names = [*(settings.columns or ()), *([settings.labels_array] if settings.labels_array else [])]
    codes = {name: _parsed(name, whole=not fhir) for name in names}
    lost = Counter[str]()
    if database is not None:
        engine, where = connect(database)
    else:
        assert path is not None
        engine, where = _temporary(), {"path": str(path)}
        taken: dict[str, set[Any]] | None = None
        if settings.columns:
            taken = {table: {code for what, code, _ in codes.values() if table.startswith(what)} for table in TABLES}
        rows = read_fhir(path, taken, lost) if fhir else read_omop(path, taken, settings.delimiter)
        with engine.begin() as connection:
            for table, part in rows:
                into = sa.table(table, *map(sa.column, TABLES[table])).insert().prefix_with("OR IGNORE")
                lost["persons that came again"] += len(part) - connection.execute(into, part).rowcount
            connection.exec_driver_sql("ANALYZE")  # or else a join of SQLite's looks at every pair
    if not settings.columns:
        raise RecordsRefused(f"name with --columns what a person's row holds: {_ALLOWED}", values=_frequent(engine))
    with refusing_database(), engine.connect() as connection:
        for what, code, unit in codes.values():
            if what == "measurement":
                _count(connection, code, unit, lost)
    query = _flattening(codes)
    text = str(query.compile(engine, compile_kwargs={"literal_binds": True}))
    return RowSource(engine, query, settings, missing=missing, query=text, where=where, lost=lost)


def _parsed(name: str, *, whole: bool) -> tuple[str, Any, Any]:
    """What a column is, its code and its unit."""
    what, colon, code = name.partition(":")
    unit = ""
    if what == "measurement":
        code, _, unit = code.rpartition("@") if "@" in code else (code, "", "")
    if (colon == "") != (what in ("year_of_birth", "female")) or (colon and what not in ("measurement", "condition")):
        raise SettingsError(f"--columns names {name!r}; a person's row may hold {_ALLOWED}")
    if whole and colon and not (code.isdigit() and (not unit or unit.isdigit())):
        raise SettingsError(f"--columns names {name!r}; codes and units of OMOP are concepts, which are whole numbers")
    return what, int(code) if whole and colon else code, (int(unit) if whole else unit) if unit else None


def _flattening(codes: dict[str, tuple[str, Any, Any]]) -> sa.Select[Any]:
    base: sa.FromClause = _person
    values: list[sa.ColumnElement[Any]] = []
    for name, (what, code, unit) in codes.items():
        value: sa.ColumnElement[Any]
        if what == "measurement":
            by_date = (_measurement.c.measurement_date.desc(), _measurement.c.measurement_id.desc())
            place = sa.func.row_number().over(partition_by=_measurement.c.person_id, order_by=by_date)
            ranked = (
                sa.select(_measurement.c.person_id, _measurement.c.value_as_number, place.label("place"))
                .where(*_of(code, unit), _measurement.c.value_as_number.is_not(None))
                .subquery()
            )
            last = sa.select(ranked).where(ranked.c.place == 1).subquery()
            base = base.outerjoin(last, last.c.person_id == _person.c.person_id)
            value = last.c.value_as_number
        elif what == "condition":
            ever = (_condition.c.person_id == _person.c.person_id) & (_condition.c.condition_concept_id == code)
            value = sa.case((sa.exists().where(ever), 1), else_=0)
        elif what == "female":
            value = sa.case((_person.c.gender_concept_id == FEMALE, 1), (_person.c.gender_concept_id == MALE, 0))
        else:
            value = _person.c.year_of_birth
        values.append(value.label(name))
    return sa.select(*values).select_from(base).order_by(_person.c.person_id)


def _of(code: Any, unit: Any) -> list[sa.ColumnElement[bool]]:
    of_code = [_measurement.c.measurement_concept_id == code]
    return of_code if unit is None else [*of_code, _measurement.c.unit_concept_id == unit]


def _count(connection: sa.Connection, code: Any, unit: Any, lost: Counter[str]) -> None:
    """Adds what of a measurement goes into no row, and refuses numbers of several units."""
    m = _measurement.c
    left_out = {
        "measurements without a number": m.value_as_number.is_(None),
        "measurements in another unit": sa.false() if unit is None else m.unit_concept_id.is_distinct_from(unit),
        "measurements of nobody in person": m.person_id.not_in(sa.select(_person.c.person_id)),
    }
    for words, where in left_out.items():
        lost[words] += connection.scalar(sa.select(sa.func.count()).where(*_of(code, None), where)) or 0
    units = sa.select(m.unit_concept_id).where(*_of(code, None), sa.func.coalesce(m.unit_concept_id, 0) != 0).distinct()
    several = [str(each) for (each,) in connection.execute(units.limit(10))] if unit is None else []
    if len(several) > 1:
        raise RecordsRefused(
            f"measurement:{code} was made in several units; write measurement:{code}@UNIT for one of them",
            values=several,
        )


def _frequent(engine: sa.Engine) -> list[str]:
    """The measurements and conditions of most records, for the operator's terminal."""
    names = []
    for table, column in CODES.items():
        code: sa.ColumnClause[Any] = sa.column(column)
        most = sa.select(code).select_from(sa.table(table)).group_by(code).order_by(sa.func.count().desc(), code)
        with refusing_database(), engine.connect() as connection:
            names += [f"{table.partition('_')[0]}:{each}" for (each,) in connection.execute(most.limit(5))]
    return names


def _temporary() -> sa.Engine:
    """A database that SQLite writes to a file without a name when it grows, and that ends with the process."""
    engine = sa.create_engine("sqlite://", creator=lambda: sqlite3.connect(""), poolclass=StaticPool)
    with engine.begin() as connection:
        for name, columns in TABLES.items():
            key = " PRIMARY KEY" if name == "person" else ""
            connection.exec_driver_sql(f"CREATE TABLE {name} ({columns[0]}{key}, {', '.join(columns[1:])})")
        for name, code in CODES.items():
            connection.exec_driver_sql(f"CREATE INDEX by_code_{name} ON {name} ({code}, person_id)")
    return engine
