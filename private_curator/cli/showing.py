"""What a command shows: JSON for programs; for people tables that fit their terminal, whose cells can be copied.

A terminal gets the columns that matter, with ids, times and figures shortened; ``--wide``, a pipe or a file get all
columns in full, a line for each row.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table

from dpswd.shared.core.errors import rounded

_F = TypeVar("_F", bound=Callable[..., Any])

_FORMAT, _WIDE = f"{__name__}.format", f"{__name__}.wide"
SHORT_ID = 8
"""Digits of an id on a terminal; commands take the first digits of one in its place."""
_IDS = {"run_id": SHORT_ID, "fingerprint": 16, "key": 16}
"""Columns of ids, and how many of their digits a terminal shows."""
_TIMES = {"time": 16, "opened": 10, "last_seen": 10, "expires": 10}
"""Columns of times, and how many of their characters are day or minute."""
_SPENT = {"epsilon_spent", "spent", "spent_day", "spent_year", "spent_after_a_run_like_the_last", "alone"}
_SPENT |= {"adds_to_data_set", "adds_to_share"}
_LEFT = {"epsilon_remaining", "left"}
_LABELS = {"epsilon_spent": "spent", "epsilon_remaining": "left", "run_id": "run"}
_UNLIMITED = 10_000  # columns of a pipe


def remember(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback that keeps an option's value in the context, under a name."""
    return lambda context, _parameter, value: context.meta.update({name: value})


def format_option_of(*formats: str, meaning: str) -> Callable[[_F], _F]:
    """``--format``, which `show` obeys."""
    return click.option(
        "--format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        expose_value=False,
        callback=remember(_FORMAT),
        help=meaning,
    )


format_option = format_option_of("text", "json", meaning="text for people, json for programs.")
wide_option = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=remember(_WIDE),
    help="All columns in full, wider than the terminal; as into a pipe.",
)


def table_options(command: _F) -> _F:
    """``--format`` and ``--wide`` of a command that shows rows."""
    return wide_option(format_option(command))


def chosen_format() -> str:
    """What the command's ``--format`` says."""
    chosen: str = click.get_current_context().meta.get(_FORMAT, "text")
    return chosen


def explain(text: str) -> None:
    """Prints a note below a table for people."""
    if chosen_format() == "text":
        click.echo(textwrap.fill(text, width=_columns(110), initial_indent="  ", subsequent_indent="  "))


def show(value: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, title: str = "", short: Sequence[str] = ()) -> None:
    """Prints one object, or rows of equal keys, in the chosen format.

    Args:
        value: the object, or the rows.
        title: for people.
        short: the columns that a terminal gets; all by default.
    """
    if chosen_format() == "json":
        click.echo(json.dumps(value, indent=2))
    elif isinstance(value, Mapping):
        _show_one(value, title)
    elif not value:
        click.echo("none")
    else:
        narrow = sys.stdout.isatty() and not click.get_current_context().meta.get(_WIDE)
        _show_rows(value, title, [name for name in value[0] if not narrow or not short or name in short], narrow)


def _columns(most: int) -> int:
    return min(most, shutil.get_terminal_size().columns) if sys.stdout.isatty() else most


def _show_one(value: Mapping[str, Any], title: str) -> None:
    """A line for each entry; what is longer than a line is wrapped between words, and an id or JSON never."""
    width, names = _columns(_UNLIMITED), max(map(len, value))
    click.echo(f"{title}\n" if title else "")
    for name, entry in value.items():
        lead, text = f"  {name.replace('_', ' '):<{names}}  ", _cell(name, entry)
        if len(lead) + len(text) > width and (" " not in text or text.startswith("{")):
            click.echo(f"{lead.rstrip()}\n    {text}")
        else:
            click.echo(textwrap.fill(text, width, initial_indent=lead, subsequent_indent=" " * len(lead)))
    click.echo()


def _show_rows(rows: Sequence[Mapping[str, Any]], title: str, names: Sequence[str], narrow: bool) -> None:
    if title:
        click.echo(textwrap.fill(title, _columns(_UNLIMITED)))
    cells = [
        {name: _cell("spent" if name == "epsilon" else name, row[name], narrow=narrow) for name in names}
        for row in rows
    ]
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        values = [row[name] for row in rows]
        number = all(isinstance(value, int | float) or value is None for value in values)
        words = any(isinstance(value, str) and " " in value for value in values)
        label = _LABELS.get(name, name.replace("_", " "))
        if narrow:
            room = max(len(row[name]) for row in cells)
            label = textwrap.fill(label, max(room, *map(len, label.split())))
        table.add_column(label, justify="right" if number else "left", no_wrap=not words, overflow="fold")
    for row in cells:
        table.add_row(*row.values())
    # A pipe has no width: nothing is cut there. Both sizes are given: else a dumb terminal has 80.
    width = _columns(_UNLIMITED) if narrow else _UNLIMITED
    Console(file=sys.stdout, width=width, height=100, markup=False, highlight=False).print(table)


def _cell(name: str, value: object, *, narrow: bool = False) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return rounded(value, up=name in _SPENT) if name in _SPENT | _LEFT else f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_cell(key, entry)}" for key, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "; ".join(_cell("", entry) for entry in value) or "none"
    text = str(value)
    if narrow and name in _TIMES:
        return text[: _TIMES[name]].replace("T", " ")
    return text[: _IDS.get(name)] if narrow else text
