"""Pages from templates: everything is escaped, foreign text is only ever text, figures are rounded to the safe side."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from dpswd.private_curator.operator.rendering import environment, plain

PLACES = (
    ("/", "Overview"),
    ("/budget", "Budget"),
    ("/clients", "Clients"),
    ("/runs", "Runs"),
    ("/requests", "Requests"),
    ("/history", "History"),
    ("/ledger", "Ledger"),
    ("/publication", "Publication"),
    ("/report", "Report"),
)
"""The pages in order, with their paths."""


_ACTS = re.compile(r"(dpswd-curator [a-z]+|extend (?:it|the budget) first)")
_PAGES = {
    "extend it first": "/budget#extend",
    "extend the budget first": "/budget#extend",
    "budget": "/budget",
    "approve": "/clients#approve",
    "clients": "/clients",
    "requests": "/requests",
    "runs": "/runs",
    "history": "/history",
    "ledger": "/ledger",
    "publish": "/publication",
    "report": "/report",
}
"""Where a thing is done here that a message sends an operator to, by its words or by the command's first one."""


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
        waiting: requests of clients that nobody has decided, and acts that wait for a second operator.
        notices: what is said once.
        live: the address that shows the page anew; empty where it would show another one.
        mark: see `dpswd.private_curator.operator.record.changes`.
    """

    data_set: str
    operator: str
    csrf: str
    here: str
    now: dt.datetime
    state: str = ""
    waiting: int = 0
    notices: Sequence[str] = ()
    live: str = ""
    mark: str = ""

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The navigation."""
        return PLACES


def linked(text: str) -> Markup:
    """Our own words, in which each act that has a page here leads to it."""
    parts = _ACTS.split(plain(text))
    for place in range(1, len(parts), 2):
        page = _PAGES.get(parts[place].rpartition("dpswd-curator ")[2], "")
        parts[place] = Markup('<a href="{}">{}</a>').format(page, parts[place]) if page else escape(parts[place])
    return Markup("").join(parts)


_TEMPLATES = environment("dpswd.private_curator.console", "dpswd.private_curator.operator")
_TEMPLATES.filters["linked"] = linked


def page(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page of the template's name."""
    return HTMLResponse(_TEMPLATES.get_template(f"{template}.html").render(values), status_code=status)
