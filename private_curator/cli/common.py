"""What all commands share: the home directory, output as text or JSON, errors as exit codes."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table

from private_curator.operator.home_directory import Home
from private_curator.records.problems import RecordsRefused
from shared import errors

_F = TypeVar("_F", bound=Callable[..., Any])

SERVING = "serve"
"""The command whose output is a log."""
EXIT_DEFECT = 1
EXIT_USAGE = 2  # click's own

# The first class that fits decides; docs/exit-codes has a page for each code.
EXIT_CODES: tuple[tuple[type[BaseException], int, str], ...] = (
    (errors.SettingsError, 3, "a setting, a file of the home directory, or a refusal to overwrite"),
    (errors.DataInvalid, 4, "records or labels that cannot be served"),
    (errors.LedgerUnavailable, 5, "the ledger cannot be read or written now; nothing was changed"),
    (errors.LedgerCorrupt, 6, "the ledger does not verify"),
    (errors.RestoreRefused, 6, "a restore would forget charges"),
    (errors.GrantNotHeld, 7, "no such client or run, or the data set is closed"),
    (errors.PrivacyError, 8, "refused by the accountant"),
    (errors.InvalidValue, 9, "a value is outside what is allowed"),
    (errors.DpswdError, 10, "any other refusal"),
)


class Commands(click.Group):
    """A group whose errors are one line on standard error and a documented exit code, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001 - the boundary of the program
            # What serves writes to a log that others may read; the place of an offence is for a terminal.
            text = _explain(error, placed=ctx.invoked_subcommand != SERVING)
            click.echo(f"Error: {text}", err=True)
            ctx.exit(exit_code(error))


def exit_code(error: BaseException) -> int:
    """The documented exit code of an error."""
    return next((code for kind, code, _ in EXIT_CODES if isinstance(error, kind)), EXIT_DEFECT)


def _explain(error: Exception, *, placed: bool) -> str:
    if isinstance(error, RecordsRefused):
        return error.in_full() if placed else f"{error}; `dpswd-curator records inspect` names the place"
    if isinstance(error, errors.DpswdError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file'}: {error.strerror}"
    # The text of an unexpected error may quote a record; the place says where to look.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"unexpected {type(error).__qualname__} at {Path(frame.filename).name}:{frame.lineno}; please report it"


home_option = click.option(
    "--home",
    "home",
    required=True,
    envvar="DPSWD_CURATOR_HOME",
    type=click.Path(path_type=Path, file_okay=False),
    callback=lambda _context, _parameter, value: Home(value.resolve()),
    help="The curator's directory.  [env: DPSWD_CURATOR_HOME]",
)

format_option = click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text for people, json for programs.",
)

reason_option = click.option("--reason", required=True, help="Why; it stands in the ledger for good.")


def show(value: Mapping[str, Any] | Sequence[Mapping[str, Any]], output: str, *, title: str = "") -> None:
    """Prints one object, or rows of equal keys, as text or JSON."""
    if output == "json":
        click.echo(json.dumps(value, indent=2))
        return
    table = Table(title=title or None, box=box.SIMPLE, title_justify="left", show_header=not isinstance(value, Mapping))
    if isinstance(value, Mapping):
        table.add_column()
        table.add_column()
        for name, entry in value.items():
            table.add_row(name.replace("_", " "), _cell(entry))
    else:
        if not value:
            click.echo("none")
            return
        for name in value[0]:
            table.add_column(name.replace("_", " "), overflow="fold")
        for row in value:
            table.add_row(*(_cell(entry) for entry in row.values()))
    # A pipe has no width: long cells must not be cut there.
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200).print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
