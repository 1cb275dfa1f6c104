"""One record a person, or few, so that what is promised for records is promised for persons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpswd.private_curator.records.opening import check_choice, format_of, reading
from dpswd.private_curator.records.persons import with_person_note
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.records.batches import TABLES, Batch, Layout, Source
from dpswd.shared.records.problems import RecordsRefused
from dpswd.shared.records.tables import TableSource

_NO_PERSON = "a record names no person; add the person, or drop the record"


class FewPerPerson:
    """A table's records without the person's column, the first of each person alone, in the file's order.

    Args:
        settings: of the table; a path as it is.
        person: the column.
        most: records of one person that are kept.

    Raises:
        RecordsRefused: this is no table, or has no such column.
    """

    def __init__(self, settings: RecordsSettings, person: str, *, most: int = 1) -> None:
        path, kind = Path(settings.file), format_of(Path(settings.file))
        if kind not in TABLES:
            raise RecordsRefused(f"{path}: persons are told apart by a column of a table (CSV, Parquet, Arrow)")
        check_choice(kind, settings)
        read = reading(settings)
        values = with_person_note(TableSource(path, kind, read, without=person))
        # Persons stand where labels do, as numbers or texts, beside the one column that a table's record needs: others
        # may be texts and are not read.
        read = replace(read, columns=values.columns[:1], labels=person, unlabelled=None)
        self._persons = TableSource(path, kind, read, missing=_NO_PERSON)
        self._values: Source = values
        self.layout: Layout = replace(values.layout, count=None)
        self._most = most
        self.left_out = 0
        """Records that were not among the first of their person, after `batches`."""

    def batches(self) -> Iterator[Batch]:
        """See `Source`."""
        first = self._first_records()
        self.left_out, start = int((~first).sum()), 0
        for batch in self._values.batches():
            chosen = first[start : start + len(batch.records)]
            start += len(batch.records)
            if chosen.any():
                labels = None if batch.labels is None else batch.labels[chosen]
                yield Batch(np.ascontiguousarray(batch.records[chosen]), labels)

    def _first_records(self) -> npt.NDArray[np.bool_]:
        """Whether each record is among the first of its person, (n,)."""
        seen: Counter[object] = Counter()
        first: list[bool] = []
        for batch in self._persons.batches():
            assert batch.labels is not None  # the person's column is named
            for person in batch.labels.tolist():
                first.append(seen[person] < self._most)
                seen[person] += 1
        return np.array(first, dtype=np.bool_)
