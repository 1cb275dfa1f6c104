"""A refusal that knows where the offence is.

The location of an offence (a record's number, a column, a file's name) depends on the data. It is for the operator's
own terminal: ``str`` leaves it out, and so does everything that could get into a log or to a client.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Sequence

from dpswd.shared.core.errors import DataInvalid

_SHOWN = 10


class RecordsRefused(DataInvalid):
    """Records that cannot be served.

    Attributes:
        location: where the first offence is, for the operator's terminal only; empty if it has no location.
        values: those that were found, for the same eyes only.
    """

    def __init__(self, text: str, *, location: str = "", values: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.location, self.values = location, values

    def in_full(self) -> str:
        """The refusal with the location of the first offence, and what was found."""
        more = f" and {len(self.values) - _SHOWN} more" * (len(self.values) > _SHOWN)
        values = f" (found: {', '.join(map(repr, self.values[:_SHOWN]))}{more})" if self.values else ""
        return str(self) + (f" (first at {self.location})" if self.location else "") + values


def no_such(name: str, names: Sequence[str]) -> str:
    """What there is in the place of a name that is not there."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"it has {', '.join(map(repr, names))}" + "".join(f"; did you mean {each!r}?" for each in near)


@contextlib.contextmanager
def refusing(*foreign: type[BaseException], text: str, remedy: str, location: str = "") -> Iterator[None]:
    """Turns a library's errors into a refusal; they may quote the file's content, so that only their type is told.

    Args:
        foreign: the library's errors.
        text: of the refusal.
        remedy: what to do.
        location: where the offence is.

    Raises:
        RecordsRefused: the block raised one of them.
    """
    try:
        yield
    except RecordsRefused:
        raise
    except foreign as error:
        kind = type(error).__name__
    else:
        return
    raise RecordsRefused(f"{text} ({kind}); {remedy}", location=location)
