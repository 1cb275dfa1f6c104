"""The rows of a query, from any database that SQLAlchemy knows, by a server-side cursor: memory is that of a batch."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.sources import First, words_of
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.records.batches import Array, Batch, Format, Layout, check_finite
from dpswd.shared.records.problems import RecordsRefused, no_such, refusing

_ROWS = 10_000
_NO_NUMBERS = (str, bytes, bytearray, memoryview, list, dict, dt.date, dt.time, dt.timedelta)
_NOT = "the query gives something else than a number"


class RowSource:
    """The rows of a statement, each a record: numbers and truth values, NULL where one is missing.

    Args:
        engine: the database.
        statement: is run in a transaction that is rolled back.
        settings: `columns` (by default all others), `labels_array` and `unlabelled`.
        missing: what stands for NULL; None leaves such rows out.
        person: the column that tells persons apart, which is in no record; or None.
        most: rows of each person that stay, in the query's order.
        query: the statement, for the notes.
        where: it is asked, for them.
        lost: what was left out before.

    Raises RecordsRefused where the database refuses, or has no such column.
    """

    def __init__(
        self, engine: sa.Engine, statement: sa.Executable, settings: RecordsSettings, *, missing: float | None,
        query: str, where: dict[str, Any], person: str | None = None, most: int = 1, lost: Counter[str] | None = None,
    ) -> None:  # fmt: skip
        self._engine, self._statement, self._missing, self._most = engine, statement, missing, most
        self._unlabelled = settings.unlabelled
        self.origin = where | {"query": query, "query_sha256": hashlib.sha256(query.encode()).hexdigest()}
        self._lost_before = lost or Counter[str]()
        self.lost = Counter[str]()
        with self._rows() as rows:
            names = list(rows.keys())
        columns = settings.columns or [name for name in names if name not in (settings.labels_array, person)]
        others = [each for each in (settings.labels_array, person) if each is not None]
        wrong = [name for name in (*columns, *others) if names.count(name) != 1]
        if wrong or not columns or len({*columns, *others}) < len(columns) + len(others):
            raise RecordsRefused(
                f"the query gives no column, or several, for {wrong[0]!r}: {no_such(wrong[0], names)}" if wrong else
                "a record needs at least one column, and each column serves once; name them with --columns"
            )  # fmt: skip
        self._values = [names.index(name) for name in columns]
        self._label = None if settings.labels_array is None else names.index(settings.labels_array)
        self._person = None if person is None else names.index(person)
        labels, stored = settings.labels_array or "", np.dtype(np.float32)
        self.layout = Layout(Format.NPY, stored, (len(columns),), columns=tuple(columns), labels=labels)

    def batches(self) -> Iterator[Batch]:
        """See `Source`."""
        lost, start, first = Counter(self._lost_before), 0, First(self._most)
        with self._rows() as rows:
            for part in rows.partitions(_ROWS):
                values, labels = [], []
                for row in part:
                    chosen = [row[place] for place in self._values]
                    why = self._why_not(chosen, row, first, lost)
                    if why:
                        lost[why] += 1
                    else:
                        values.append(chosen)
                        labels.append(None if self._label is None else row[self._label])
                self.lost = +lost
                if values:
                    numbers = self._numbers(values)
                    check_finite(numbers, start=start, name="the query", columns=self.layout.columns)
                    yield Batch(numbers, None if self._label is None else self._texts(labels))
                start += len(values)
        if not start:
            remedy = "--missing says what stands for a missing value"
            raise RecordsRefused(f"no row becomes a record ({words_of(self.lost) or 'there is none'}); {remedy}")

    def _why_not(self, values: list[Any], row: sa.Row[Any], first: First, lost: Counter[str]) -> str:
        """Why a row becomes no record, if it does not; a missing value becomes what stands for it."""
        if None in values:
            for place, value in enumerate(values):
                if value is None:
                    lost[f"missing values of {self.layout.columns[place]}"] += 1
                    values[place] = self._missing
            if self._missing is None:
                return "rows left out for a missing value"
        if self._label is not None and row[self._label] is None and self._unlabelled is None:
            return "rows without a label"
        if self._person is not None and row[self._person] is None:
            return "rows without a person"
        return "" if self._person is None or first.take(row[self._person]) else "further rows of a person"

    def _numbers(self, rows: list[list[Any]]) -> Array:
        """(m, d) float32."""
        if not any(issubclass(kind, _NO_NUMBERS) for kind in set(map(type, chain.from_iterable(rows)))):
            with np.errstate(over="ignore"), refusing(TypeError, ValueError, text=_NOT, remedy="name the columns"):
                return np.array(rows, dtype=np.float64).astype(np.float32)
        place, value = next((p, v) for row in rows for p, v in enumerate(row) if isinstance(v, _NO_NUMBERS))
        kind, column = type(value).__name__, self.layout.columns[place]
        raise RecordsRefused(
            f"{_NOT}: column {column!r} holds {kind}; turn it into one, or leave it out with --columns"
        )

    def _texts(self, labels: list[Any]) -> Array:
        kind = next((type(label) for label in labels if label is not None), int)
        stand_in: object = self._unlabelled
        if kind is not str and self._unlabelled is not None:
            with contextlib.suppress(ValueError):
                stand_in = int(self._unlabelled)
        return np.array([stand_in if label is None else label for label in labels])

    @contextlib.contextmanager
    def _rows(self) -> Iterator[sa.CursorResult[Any]]:
        with refusing_database(), self._engine.connect() as connection:
            if self._engine.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA query_only = ON")
            chosen = connection.execution_options(yield_per=_ROWS, postgresql_readonly=True)
            yield chosen.execute(self._statement)


def refusing_database() -> contextlib.AbstractContextManager[None]:
    """Turns a database's error into a refusal without its words, which may quote a value."""
    remedy = "try the address and the query in its own client first"
    return refusing(SQLAlchemyError, text="the database refuses", remedy=remedy)


def connect(database: str) -> tuple[sa.Engine, dict[str, Any]]:
    """The database at an address, and which it is, without the password, for the notes.

    Raises SettingsError where it is no address, or its driver is not installed.
    """
    try:
        url = sa.make_url(database)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        return sa.create_engine(url, hide_parameters=True), {"database": url.render_as_string(hide_password=True)}
    except (SQLAlchemyError, ValueError) as error:
        text = f"--database is no address ({type(error).__name__}); write postgresql://user@host/name, sqlite:///file"
        raise SettingsError(text) from None
    except ImportError as error:
        raise SettingsError(f"the database needs the driver {error.name}: pip install {error.name}") from error


def query_source(
    path: Path, database: str, settings: RecordsSettings, *, missing: float | None, person: str | None, most: int
) -> RowSource:
    """The rows of the query that stands in a file; see `RowSource`."""
    query = path.read_text(encoding="utf-8").strip().rstrip(";")
    engine, where = connect(database)
    statement = sa.text(query.replace(":", "\\:"))  # no colon begins a parameter
    return RowSource(engine, statement, settings, missing=missing, query=query, where=where, person=person, most=most)
