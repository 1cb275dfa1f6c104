"""A refusal that knows where the offence is.

The place of an offence (a record's number, a column, a file's name) depends on the data. It is for the operator's own
terminal: ``str`` leaves it out, and so does everything that could reach a log or a client.
"""

from __future__ import annotations

from shared.errors import DataInvalid


class RecordsRefused(DataInvalid):
    """Records that cannot be served.

    Attributes:
        place: where the first offence is, for the operator's terminal only; empty if it has no place.
    """

    def __init__(self, text: str, *, place: str = "") -> None:
        super().__init__(text)
        self.place = place

    def in_full(self) -> str:
        """The refusal with the place of the first offence."""
        return f"{self} (first at {self.place})" if self.place else str(self)
