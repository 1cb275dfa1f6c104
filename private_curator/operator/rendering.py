"""Templates of the report and the console: everything is escaped, foreign text is only ever text."""

from __future__ import annotations

import datetime as dt
import unicodedata

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from dpswd.private_curator.operator.charts import share_of
from dpswd.shared.core.errors import rounded


def plain(text: object) -> str:
    """Foreign text without what a reader cannot see: control characters, and those that reverse or hide others."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(sign)[0] == "C" else sign for sign in str(text))


def cell(value: object) -> str:
    """A value in a table."""
    if value is None or value == "":
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) else plain(value)


def environment(*packages: str) -> Environment:
    """The templates of these packages; figures are rounded to the safe side by ``up`` and ``down``."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["plain"] = plain
    made.filters["cell"] = cell
    made.filters["up"] = lambda value: rounded(value, up=True)
    made.filters["down"] = lambda value: rounded(value, up=False)
    made.filters["time"] = dt.datetime.fromisoformat
    made.globals["share_of"] = share_of
    return made
