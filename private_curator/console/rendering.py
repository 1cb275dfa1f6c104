"""Pages from templates: everything is escaped, foreign text is only ever text, figures are rounded to the safe side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from dpswd.private_curator.books.operators import who
from dpswd.private_curator.operator.charts import spent_over_time
from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER, ahead
from dpswd.private_curator.operator.officer import STATEMENTS, items
from dpswd.private_curator.operator.rendering import environment, plain
from dpswd.private_curator.storage.certificates import LEAF_DAYS

_NAMES = ("budget", "clients", "runs", "requests", "history", "ledger", "publication", "report")
PLACES = (("/", "Overview"), *((f"/{name}", name.capitalize()) for name in _NAMES))
"""The pages in order, with their paths."""
ROWS = 100  # rows of one page of a table

_ACTS = re.compile(r"(dpswd-curator [a-z]+|extend (?:it|the budget) first)")
_PAGES = {name: f"/{name}" for name in _NAMES} | {
    "extend it first": "/budget#extend",
    "extend the budget first": "/budget#extend",
    "approve": "/clients#approve",
    "publish": "/publication",
}
"""Where a thing is done here that a message sends an operator to, by its words or by the command's first one."""


def linked(text: str) -> Markup:
    """Our own words, in which each act that has a page here leads to it."""
    parts = _ACTS.split(plain(text))
    for place in range(1, len(parts), 2):
        page = _PAGES.get(parts[place].rpartition("dpswd-curator ")[2], "")
        parts[place] = Markup('<a href="{}">{}</a>').format(page, parts[place]) if page else escape(parts[place])
    return Markup("").join(parts)


def again(noted: Mapping[str, Any]) -> str:
    """The page on which a second operator does what a first one has noted, filled in; empty where there is none."""
    places = {"extend": "/budget?{}#extend", "approve": "/clients?{}#approve", "state": "/report?{}#statement"}
    names, given = ("epsilon", "delta", "days", "item", "words"), noted["arguments"]
    filled = {name: given[name] for name in names if given.get(name)} | {"reason": noted["reason"]}
    return places.get(noted["act"], "").format(urlencode(filled))


_TEMPLATES = environment("dpswd.private_curator.console", "dpswd.private_curator.operator")
_TEMPLATES.filters["linked"] = linked
_TEMPLATES.globals |= {"places": PLACES, "most_rows": ROWS, "leaf_days": LEAF_DAYS, "why": WHY_COUNTS_DIFFER}
# Templates call these by their names.
_CALLED = (again, ahead, items, spent_over_time, who)
_TEMPLATES.globals |= {"statements": STATEMENTS} | {each.__name__: each for each in _CALLED}


def page(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page of the template's name."""
    return HTMLResponse(_TEMPLATES.get_template(f"{template}.html").render(values), status_code=status)
