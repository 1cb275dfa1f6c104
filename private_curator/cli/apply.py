"""``dpswd-curator apply``: an adapted model on the hospital's own records, on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpswd.private_curator.cli.common import FILE, device_option, optional_home_option
from dpswd.private_curator.cli.records import reading, reading_options, scaling_options
from dpswd.private_curator.cli.showing import chosen_format, format_option, show
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.shared.core.errors import SettingsError

if TYPE_CHECKING:
    from dpswd.private_curator.operator.application import Application

SHOWN_VALUES = 8
"""Drifted values that are shown as text; --report has all."""


@click.command("apply")
@click.argument("model", type=FILE)
@click.option("--out", required=True, type=FILE, help="CSV of predictions.")
@click.option("--records", "file", type=click.Path(path_type=Path), help="File or folder of records.")
@optional_home_option("A curator's directory: its records, or --records read as its settings say.")
@click.option("--report", type=FILE, help="JSON of the drift.")
@scaling_options
@device_option
@reading_options
@format_option
def apply(
    model: Path, out: Path, file: Path | None, home: Path | None, report: Path | None, device: str | None, **chosen: Any
) -> None:
    """Predicts the hospital's own records with MODEL, the file that the ML team delivered.

    No network is used and no budget is spent: nothing leaves this machine. Predictions and the drift report are
    computed without noise and are NOT private; keep them as you keep the records.
    """
    from dpswd.private_curator.operator.application import apply_model, open_private, write_predictions
    from dpswd.private_curator.records import target
    from dpswd.private_curator.records.labels import class_names, load_labels
    from dpswd.private_curator.records.opening import open_source
    from dpswd.shared.devices import resolve_device
    from dpswd.shared.models.adapted import read_adapted

    records, base = _records(file, home, chosen)
    for path in (out, report):
        if path is not None and path.exists():
            raise SettingsError(f"{path} exists, and nothing is ever overwritten; choose another file")
    loaded = read_adapted(model, device=resolve_device(device or "auto"))
    data = target.load_for_the_first_time(records, home=base)[0]
    layout = open_source(records, home=base).layout
    names = class_names(records)
    applied = apply_model(loaded, data, class_names=names, value_names=layout.columns)
    write_predictions(out, applied, class_names=names)
    if report is not None and applied.drift is not None:
        with open_private(report) as stream:
            json.dump(applied.drift.to_json(), stream, indent=1)
    labels = load_labels(records, home=base, records=data.count) if layout.labels else None
    shown = _figures(applied, classes=loaded.classes, names=names, out=out)
    if labels is not None:
        shown["accuracy_on_own_labels"] = applied.accuracy(labels)
    if chosen_format() == "json":
        show(shown | {"drift": None if applied.drift is None else applied.drift.to_json()})
        return
    show(shown, title="Applied on this machine; nothing of it is private, nothing left")
    _show_drift(applied)


def _records(file: Path | None, home: Path | None, chosen: dict[str, Any]) -> tuple[RecordsSettings, Path]:
    """Which records, read how; and where relative paths start."""
    given = {name: value for name, value in chosen.items() if value is not None}
    if home is None:
        if file is None:
            raise SettingsError("name the records with --records, or a curator's directory with --home")
        return reading(file, **chosen), file.resolve().parent
    own = configuration.load(home).records
    if file is None and not given:
        return own, home
    # Other records, read as the curator's own; their labels, if there are any, must be named anew.
    saved = own.model_dump(exclude={"labels_array", "labels_file", "name", "file"}, exclude_defaults=True)
    fresh = reading(file or home / own.file, **chosen)
    fields = saved | fresh.model_dump(exclude_defaults=True)
    return RecordsSettings.checked("records", fields), home


def _figures(applied: Application, *, classes: int, names: tuple[str, ...], out: Path) -> dict[str, Any]:
    counts = applied.class_counts(classes)
    labels = names or tuple(map(str, range(classes)))
    return {
        "predictions": str(out),
        "records": len(applied.predictions),
        "classes": " ".join(f"{name}:{count}" for name, count in zip(labels, counts, strict=True)),
        "mean_confidence": float(applied.confidences.mean()),
    }


def _show_drift(applied: Application) -> None:
    drift = applied.drift
    if drift is None:
        click.echo("no drift report: the model's file has no statistics of its public source")
        return
    click.echo(
        f"drift from the public source ({drift.source_records} records): feature distance {drift.feature_distance:.3f} "
        f"(chance alone: {drift.chance:.3f}); {100 * drift.drifted:.0f}% of the values differ strongly"
    )
    rows = [
        {"value": v.name, "distance": v.distance, "mean_shift_sd": v.mean_shift, "outside_range": v.outside}
        for v in drift.values[:SHOWN_VALUES]
    ]
    show(rows, title="Values that differ most")
    low, source_low = sum(drift.confidences[:10]), sum(drift.source_confidences[:10])
    click.echo(f"confidence below 0.5: {100 * low:.0f}% of the records, {100 * source_low:.0f}% of the source")
    click.echo(f"note: {drift.notice}")
