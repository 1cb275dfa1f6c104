"""Templates of the report and the console, where everything is escaped and foreign text is only text; and sentences."""

from __future__ import annotations

import datetime as dt
import tomllib
import unicodedata
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template

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


def share_of(part: float, whole: float) -> float:
    """Percent of a bar that is filled, from 0 to 100."""
    return 0.0 if whole <= 0 else 100.0 * min(1.0, max(0.0, part / whole))


def texts(file: str) -> Mapping[str, Any]:
    """What a file of texts beside this module holds."""
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


def environment(*packages: str, escaped: bool = True) -> Environment:
    """The templates of these packages; figures are rounded to the safe side by ``up`` and ``down``."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=escaped,  # noqa: S701 whatever shows a sentence escapes it
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"plain": plain, "cell": cell, "time": dt.datetime.fromisoformat, "budget": _budget}
    made.filters |= {"up": partial(rounded, up=True), "down": partial(rounded, up=False)}
    made.globals["share_of"] = share_of
    return made


def _budget(stated: Mapping[str, float]) -> str:
    return f"epsilon {stated['epsilon']:g} at delta {stated['delta']:g}"


_SENTENCES = environment(escaped=False)


@cache
def sentence(template: str) -> Template:
    """A template of a sentence, one of our own `texts`; what it gives is escaped where it is shown."""
    return _SENTENCES.from_string(template)
