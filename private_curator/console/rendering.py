"""Pages from templates: everything is escaped, foreign text is only ever text, figures are rounded to the safe side."""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from dpswd.private_curator.operator.charts import share_of
from dpswd.shared.core.errors import rounded

PLACES = (
    ("/", "Overview"),
    ("/teams", "Teams"),
    ("/runs", "Runs"),
    ("/requests", "Requests"),
    ("/timeline", "Timeline"),
    ("/ledger", "Ledger"),
    ("/publication", "Publication"),
    ("/report", "Report"),
)
"""The pages in order, with their paths."""


@dataclass(frozen=True)
class Frame:
    """What stands around every page.

    Attributes:
        data_set: its public name.
        operator: who acts here.
        csrf: of the session.
        here: path of the page in `PLACES`.
        now: the time that the page shows.
        state: of the data set; empty where the ledger cannot be read.
        waiting: requests of teams that nobody has decided.
        notices: what is said once.
    """

    data_set: str
    operator: str
    csrf: str
    here: str
    now: dt.datetime
    state: str = ""
    waiting: int = 0
    notices: Sequence[str] = ()

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The navigation."""
        return PLACES


def plain(text: object) -> str:
    """Foreign text without what a reader cannot see: control characters, and those that reverse or hide others."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(sign)[0] == "C" else sign for sign in str(text))


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("dpswd.private_curator.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["plain"] = plain
    made.filters["up"] = lambda value: rounded(value, up=True)
    made.filters["down"] = lambda value: rounded(value, up=False)
    made.filters["time"] = dt.datetime.fromisoformat
    made.globals["share_of"] = share_of
    return made


_TEMPLATES = _environment()


def page(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page of the template's name."""
    return HTMLResponse(_TEMPLATES.get_template(f"{template}.html").render(values), status_code=status)
