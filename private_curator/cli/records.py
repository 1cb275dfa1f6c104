"""``dpswd-curator records``: what a file of records holds, and conversion to one that can be mapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from private_curator.cli.common import format_option, home_option, reason_option, show
from private_curator.operator.home_directory import Home
from private_curator.records import target
from private_curator.records.opening import open_source
from private_curator.settings.tree import RecordsSettings
from private_curator.settings import tree as configuration
from shared.errors import SettingsError

_F = TypeVar("_F", bound=Callable[..., Any])

SHOWN_ROWS = 40
"""Columns and classes that are shown as text; --format json shows all."""


def reading_options(command: _F) -> _F:
    """How a file is read; the options arrive under the names of the settings in [records]."""
    for option in reversed(
        (
            click.option("--array", default=None, help="Name of the records' array, where an npz file holds several."),
            click.option("--columns", default=None, help="Columns of a table that make a record: age,height,...  "
                         "[default: all but the labels']"),
            click.option("--labels-array", default=None,
                         help="The labels' array in an npz file or column of a table; checked, never released."),
            click.option("--labels-file", type=click.Path(path_type=Path, dir_okay=False), default=None,
                         help="npy file with the labels, beside an npy or npz file."),
            click.option("--classes", default=None, help="Public: how many classes, or their names: no,yes.  "
                         "[default: nothing can be evaluated]"),
            click.option("--delimiter", default=None, help="Between the cells of a CSV file.  [default: a comma]"),
            click.option("--header", type=click.Choice(["auto", "yes", "no"]), default=None,
                         help="Whether a CSV file's first line names the columns.  [default: auto]"),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def reading(path: Path, *, name: str | None = None, **chosen: Any) -> RecordsSettings:
    """The settings of [records] from a command's options.

    Raises:
        SettingsError: a value is outside what is allowed.
    """
    columns, labels_file = chosen.pop("columns", None), chosen.pop("labels_file", None)
    classes = chosen.pop("classes", None)
    fields = {
        "name": name or path.resolve().stem,
        "file": path.resolve(),
        "columns": None if columns is None else tuple(part.strip() for part in columns.split(",")),
        "labels_file": None if labels_file is None else labels_file.resolve(),
        "classes": _classes(classes),
        **chosen,
    }
    return configuration.check_section(RecordsSettings, "records", fields)


def _classes(text: str | None) -> int | tuple[str, ...] | None:
    if text is None or text.strip().isdigit():
        return None if text is None else int(text)
    return tuple(part.strip() for part in text.split(","))


@click.group()
def records() -> None:
    """Files of records: what is in them, and conversion. What these commands show is for this terminal only."""


@records.command("inspect")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "--home",
    envvar="DPSWD_CURATOR_HOME",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Without PATH: the records of the curator in this directory, as its settings read them.",
)
@reading_options
@format_option
def inspect_records(path: Path | None, home: Path | None, output: str, **chosen: Any) -> None:
    """Shows what PATH was understood to hold; reads every record, changes nothing.

    npy, npz, Parquet, Arrow and CSV files and folders of images are read. A refusal names the place of the first
    offence. The ranges and classes that are shown depend on the records: they are for the operator alone.
    """
    from private_curator.records.schema import inspect

    if path is None:
        if home is None:
            raise SettingsError("name a file or folder of records, or --home for a curator's own")
        chosen_records = configuration.load(home.resolve()).records
        base = home.resolve()
    else:
        chosen_records, base = reading(path, **chosen), path.resolve().parent
    file = base / chosen_records.file
    found = inspect(file, open_source(file, chosen_records, home=base))
    if output == "json":
        show(found.to_json(), output)
        return
    public = found.public()
    notes = public.pop("notes")
    show(public | {"digest": found.digest}, output, title=f"Understood of {file}")
    for note in notes:
        click.echo(f"  note: {note}")
    if found.classes:
        rows = [{"label": name, "records": count} for name, count in found.classes.items()]
        show(rows[:SHOWN_ROWS], output, title=f"{len(rows)} classes in {found.labels!r}")
    columns = [
        {"column": column.name, "kind": column.kind, "from": column.low, "to": column.high} for column in found.columns
    ]
    show(columns[:SHOWN_ROWS], output, title="Ranges (private)")
    if max(len(columns), len(found.classes)) > SHOWN_ROWS:
        click.echo(f"  the first {SHOWN_ROWS} are shown; --format json shows all")


@records.command("convert")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The npy file to write.")
@reading_options
@format_option
def convert_records(path: Path, out: Path, output: str, **chosen: Any) -> None:
    """Writes the records of PATH to an npy file, from which samples are read without loading it.

    Works in batches: neither file has to fit into memory. Labels are written beside it, as whole numbers.
    """
    from private_curator.records.conversion import convert

    settings = reading(path, **chosen)
    made = convert(open_source(settings.file, settings, home=settings.file.parent), out)
    show(
        {
            "records": made.records,
            "out": str(made.out),
            "labels": None if made.labels is None else str(made.labels),
            "classes": ", ".join(made.classes) or None,
            "digest": made.digest,
        },
        output,
        title=f"Converted {path}",
    )


@records.command("accept")
@home_option
@reason_option
@format_option
def accept_records(home: Home, reason: str, output: str) -> None:
    """Takes the records as they are now for the curator's own, after they were corrected; restart the curator then.

    The budget stays as it is: it was promised to the persons in the data set, whatever the file looks like. Another
    data set needs a curator of its own.
    """
    settings = configuration.load(home.path)
    data, evidence = target.load_for_the_first_time(settings.records, home=home.path, reason=reason)
    with home.open_ledger() as ledger:
        if ledger.records != data.count:
            raise SettingsError(
                f"{settings.records_file} holds {data.count} records, the ledger was made for {ledger.records}; "
                "another number of records is another data set: make a new curator"
            )
    evidence.write(home.path)
    show({"records": data.count, "digest": evidence.digest, "reason": reason}, output, title="Accepted")


__all__ = ["reading", "reading_options", "records"]
