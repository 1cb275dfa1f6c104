"""Records that may be several of one person: noticed by a column's name (`grouping` keeps one record of each).

The promise is of records: replacing one record changes what is released by little. A person with k records is protected
k times less (k times epsilon, and more than k times delta). Whoever wants the promise for persons keeps one record of
each, or at most k and says so at `init`: then a record's budget is as much smaller
(`dpswd.shared.accounting.persons`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpswd.shared.records.tables import TableSource

_PERSON = re.compile(
    r"(.*[_ .-])?(patient|person|subject|participant|pat|mrn|ssn|pid)[_ .-]?(id|nr|no|num|number|key|code)?",
    re.IGNORECASE,
)


def person_columns(columns: Sequence[str]) -> list[str]:
    """The columns whose names say that they hold a person's number."""
    return [name for name in columns if _PERSON.fullmatch(name.strip())]


def with_person_note(table: TableSource) -> TableSource:
    """The table, whose layout says what the operator should know about such columns among a record's values."""
    names = person_columns(table.columns)
    if not names:
        return table
    text = (
        f"{names[0]!r} looks like a person's number and is a value of each record: it teaches a model nothing, and "
        "where it repeats, a person has several records. What is promised is for records, not persons: `dpswd-curator "
        f"records convert --person {names[0]}` keeps one record a person and leaves the column out (with --most K: up "
        "to K, which `init --records-per-person K` prices together)"
    )
    table.layout = replace(table.layout, notes=(*table.layout.notes, text))
    return table
