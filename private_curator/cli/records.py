"""``dpswd-curator records``: what a file holds, conversion to one that can be mapped, features of a backbone."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpswd.private_curator.cli import common
from dpswd.private_curator.cli.showing import chosen_format, explain, format_option, show
from dpswd.private_curator.operator import guards
from dpswd.private_curator.operator.acts import budget_of
from dpswd.private_curator.operator.telling import ProgressReporter
from dpswd.private_curator.records import target
from dpswd.private_curator.records.opening import open_source
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.settings.groups import ComputeSettings, RecordsSettings
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.accounting.persons import MOST_RECORDS
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.files import write_private

if TYPE_CHECKING:
    from dpswd.private_curator.records.conversion import Converted
    from dpswd.shared.records.batches import Source

SHOWN_ROWS = 40
"""Columns and classes that are shown as text; --format json shows all."""


def reading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How a file is read; the options arrive under the names of the settings in [records]."""
    notes = {"columns": "Written age,height.", "classes": "Names are written no,yes.", "header": "[default: auto]"}
    for name in ("header", "delimiter", "unlabelled", "classes", "labels_file", "labels_array", "columns", "array"):
        command = common.field_option(RecordsSettings, name, note=notes.get(name, ""))(command)
    return command


def person_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """One record a person, or few."""
    command = click.option(
        "--most",
        type=click.IntRange(1, MOST_RECORDS),
        default=1,
        show_default=True,
        help="Keeps the first so many records of each person.",
    )(command)
    note = "A table's column that tells persons apart; it is left out of the records."
    return click.option("--person", help=note)(command)


def scaling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How stored values become float32; the options arrive under the names of the settings in [records]."""
    for name in ("scale_to", "scale_from"):
        command = common.field_option(RecordsSettings, name, nargs=2, metavar="LOW HIGH")(command)
    return common.field_option(RecordsSettings, "record_shape", note="Written 1,28,28.")(command)


def contract_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What the operator declares of the values; the option arrives under the name of the setting in [records]."""
    return common.field_option(RecordsSettings, "value_range", note="Written 0,1.")(command)


def reading(path: Path, *, name: str | None = None, **chosen: Any) -> RecordsSettings:
    """The settings of [records] from a command's options, which errors then name.

    Raises:
        SettingsError: a value is outside what is allowed.
    """
    common.name_options("records")
    fields = {
        **chosen,
        "name": name or path.resolve().stem,
        "file": path.resolve(),
        "columns": _listed(chosen.get("columns")),
        "classes": _classes(chosen.get("classes")),
        "record_shape": _shape(chosen.get("record_shape")),
        "value_range": _listed(chosen.get("value_range")),
    }
    return RecordsSettings.checked("records", fields)


def _listed(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _classes(text: str | None) -> int | tuple[str, ...] | None:
    return int(text) if text is not None and text.strip().isdigit() else _listed(text)


def _shape(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(map(int, text.split(",")))
    except ValueError as error:
        raise SettingsError(f"--record-shape is {text!r}; write numbers with commas, for example 1,28,28") from error


@click.group()
def records() -> None:
    """Files of records: what is in them, and conversion. What these commands show is for this terminal only."""


@records.command("inspect")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@common.optional_home_option("Without PATH: the records of the curator in this directory, as its settings read them.")
@reading_options
@format_option
def inspect_records(path: Path | None, home: Path | None, **chosen: Any) -> None:
    """Shows what PATH was understood to hold; reads every record, changes nothing.

    npy, npz, Parquet, Arrow and CSV files and folders of images are read. A refusal names the place of the first
    offence. The ranges and classes that are shown depend on the records: they are for the operator alone.
    """
    from dpswd.private_curator.records.schema import inspect

    if path is None:
        if home is None:
            raise SettingsError("name a file or folder of records, or --home for a curator's own")
        chosen_records, base = configuration.load(home).records, home
    else:
        chosen_records, base = reading(path, **chosen), path.resolve().parent
    file = base / chosen_records.file
    facts = inspect(file, open_source(chosen_records, home=base))
    if chosen_format() == "json":
        show(facts.to_json())
        return
    public = facts.public()
    notes = public.pop("notes")
    show(public | {"digest": facts.digest}, title=f"Understood of {file}")
    for note in notes:
        click.echo(f"  note: {note}")
    if facts.classes:
        rows = [{"label": name, "records": count} for name, count in facts.classes.items()]
        show(rows[:SHOWN_ROWS], title=f"{len(rows)} classes in {facts.labels!r}")
    columns = [
        {"column": column.name, "kind": column.kind, "from": column.low, "to": column.high} for column in facts.columns
    ]
    show(columns[:SHOWN_ROWS], title="Ranges (private)")
    if max(len(columns), len(facts.classes)) > SHOWN_ROWS:
        click.echo(f"  the first {SHOWN_ROWS} are shown; --format json shows all")


@records.command("convert")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--example", is_flag=True, help="Instead of PATH: 898 public digits, to try with.")
@click.option("--out", required=True, type=common.FILE, help="The npy file to write.")
@click.option("--database", envvar="DPSWD_CURATOR_DATABASE", show_envvar=True, help="Of a query in PATH, or of OMOP.")
@click.option("--missing", type=float, help="SQL, OMOP, FHIR: stands for a missing value; else such rows are left out.")
@person_options
@reading_options
@format_option
def convert_records(
    path: Path | None, example: bool, out: Path, database: str | None, missing: float | None, person: str | None,
    most: int, **chosen: Any,
) -> None:  # fmt: skip
    """Writes the records of PATH to an npy file, from which samples are read without loading it.

    Works in batches. Labels are written beside it, as whole numbers. With `dpswd[sources]` PATH may also be a query
    (.sql), an OMOP extract, FHIR ndjson, DICOM or NIfTI.
    """
    from dpswd.private_curator.records.conversion import convert
    from dpswd.private_curator.records.example import Example
    from dpswd.private_curator.sources.opening import open_hospital, write_notes

    if (path is None and (database is None or example)) != example:
        raise SettingsError("name a file or folder of records, --database, or --example for one to try with")
    settings = reading(path or out, **chosen)
    asked = None if example else database
    hospital = open_hospital(path, out, settings, database=asked, missing=missing, person=person, most=most)
    source = hospital or (Example() if example else _source(settings, person, most))
    tell = ProgressReporter(partial(click.echo, err=True), text="{done:,} records are done")
    made = convert(source, out, settings, progress=tell)
    notes = {} if hospital is None else write_notes(hospital, out, made.digest)
    show({**_written(made), **_of_persons(source, most), **notes}, title=f"Converted {path or 'what was asked for'}")
    _next(made, settings, most)


@records.command("embed")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--model", required=True, type=common.FILE, help="The backbone: an ONNX file with its weights inside.")
@click.option("--out", required=True, type=common.FILE, help="The npy file of features to write.")
@click.option(
    "--approve",
    "approved",
    metavar="DIGEST",
    help="The model's SHA-256, or its first 16 digits or more; without it the model is described and not evaluated.",
)
@click.option("--feature", help="The model's output that is the feature, where it has several.")
@common.field_option(ComputeSettings, "worker_memory_bytes", note="[default: 4 GiB]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds that one batch of records may take.",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 256),
    default=0,
    help="CPU threads; 0, the default, leaves onnxruntime's choice.",
)
@person_options
@scaling_options
@reading_options
@format_option
def embed_records(
    path: Path, model: Path, out: Path, approved: str | None, feature: str | None, worker_memory_bytes: int | None,
    seconds: float, threads: int, person: str | None, most: int, **chosen: Any,
) -> None:  # fmt: skip
    """Writes the features that a frozen backbone gives for the records of PATH to an npy file, with their labels.

    The model is somebody else's file: it is described first, and evaluated only when you approve its digest, on one
    record at a time, in a process without network that reads no file. Needs `dpswd[embed]`.
    """
    from dpswd.private_curator.onnx.embedding import MAX_MODEL_BYTES, OnnxWorker
    from dpswd.private_curator.records import embedding
    from dpswd.private_curator.records.conversion import convert

    settings = reading(path, **chosen)
    card = out.with_name(f"{out.stem}.model.json")
    if card.exists():
        raise SettingsError(f"{card} exists and is not overwritten; choose another name")
    data, digest = embedding.read_model(model, most=MAX_MODEL_BYTES)
    memory = worker_memory_bytes or ComputeSettings().worker_memory_bytes
    began = time.monotonic()
    with contextlib.closing(OnnxWorker(data, memory_bytes=memory, seconds=seconds, threads=threads)) as worker:
        described = {"sha256": digest, "bytes": len(data), **worker.description}
        if approved is None or chosen_format() == "text":
            allowed = {"memory_bytes": memory, "seconds_per_batch": seconds, "process": worker.confinement}
            show(described | allowed, title=f"Model {model}")
        embedding.check_approved(digest, approved)
        del data
        source = _source(settings, person, most)
        tell = ProgressReporter(partial(click.echo, err=True), text="{done:,} records are done")
        embedded = embedding.EmbeddedRecords(source, settings, worker, feature=feature, progress=tell)
        made = convert(embedded, out, settings)
        spent = {"seconds": round(time.monotonic() - began, 1), "memory_bytes": worker.peak_bytes}
    shape = embedded.record_shape
    facts = {"model": described, "feature": feature, "record_shape": shape, "dimension": worker.features}
    write_private(card, json.dumps(facts, indent=2).encode() + b"\n")
    more = {"dimension": worker.features, "model": str(card), **spent}
    show({**_written(made), **_of_persons(source, most), **more}, title=f"Embedded {path}")
    explain(
        "next: dpswd-curator init with these records; names, units and ranges of the old ones do not hold for them. "
        f"The team's source must be features of the same model (SHA-256 {digest})"
    )
    _next(made, settings, most)


def _source(settings: RecordsSettings, person: str | None, most: int) -> Source:
    """The records, or the first ones of each person."""
    if person is not None:
        from dpswd.private_curator.records.grouping import FewPerPerson  # needs pyarrow

        return FewPerPerson(settings, person, most=most)
    if most != 1:
        raise SettingsError("--most is of each person; name the column that tells persons apart with --person")
    return open_source(settings, home=settings.file.parent)


def _written(made: Converted) -> dict[str, object]:
    return {
        "records": made.records,
        "out": str(made.out),
        "labels": None if made.labels is None else str(made.labels),
        "classes": ", ".join(made.classes) or None,
        "digest": made.digest,
    }


def _of_persons(source: Source, most: int) -> dict[str, object]:
    left_out = getattr(source, "left_out", None)
    return {} if left_out is None else {"left_out": left_out, "records_per_person": most}


def _next(made: Converted, settings: RecordsSettings, most: int) -> None:
    """What to say to `init` about the new file."""
    if made.labels is not None and settings.unlabelled is not None:
        explain(f"next: dpswd-curator init --unlabelled {UNLABELLED}, the number of records without a label")
    if most > 1:
        # The bound itself: how many records somebody has in truth follows from the data, and k is public.
        explain(
            f"next: dpswd-curator init --records-per-person {most}, so that what is promised is promised to a person "
            f"with as many as {most} of these records"
        )


@records.command("accept")
@common.home_option
@click.option("--update", is_flag=True, help="Persons have come or gone; their number may be another one.")
@common.reason_option
@common.confirm_option
@format_option
def accept_records(home: HomeDirectory, update: bool, reason: str, typed: str | None) -> None:
    """Takes the records as they are now for the curator's own, corrected or updated; restart the curator then.

    The budget stays as it is: it was promised to the persons in the data set, and whoever stays after an update is
    charged in sum. Open runs of the old records end with it. Another data set needs a curator of its own.
    """
    settings = configuration.load(home.path)
    data, fingerprint = target.load_for_the_first_time(settings.records, home=home.path, reason=reason)
    with home.open_ledger() as ledger:
        if update:
            whole = budget_of(ledger, epsilon=ledger.status().data_set.epsilon)
            common.confirmed(guards.opening(records=data.count, budget=whole), typed)
            ledger.update_records(data.count, reason=reason)
        else:
            data.check_count(ledger.records, settings.records_file)
    fingerprint.write(home.path)
    show({"records": data.count, "digest": fingerprint.digest, "reason": reason}, title="Accepted")
