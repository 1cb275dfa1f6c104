"""The root of ``dpswd-curator``, and the commands that make, show and serve a curator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import click

from dpswd.private_curator.books.figures import LedgerStatus
from dpswd.private_curator.cli import common
from dpswd.private_curator.cli.apply import apply
from dpswd.private_curator.cli.budgets import budget
from dpswd.private_curator.cli.certificates import approve, certificates
from dpswd.private_curator.cli.clients import add, clients
from dpswd.private_curator.cli.cluster import cluster
from dpswd.private_curator.cli.console import console
from dpswd.private_curator.cli.history import history, report
from dpswd.private_curator.cli.ledgers import extractors, incidents, ledger, runs
from dpswd.private_curator.cli.operators import operators
from dpswd.private_curator.cli.publishing import describe, publish
from dpswd.private_curator.cli.records import contract_options, reading, reading_options, records, scaling_options
from dpswd.private_curator.cli.requests import requests
from dpswd.private_curator.cli.serving import parse_address, preflight, serve, settings
from dpswd.private_curator.cli.showing import explain, format_option, show
from dpswd.private_curator.operator import guards
from dpswd.private_curator.records.labels import NO_CLASSES
from dpswd.private_curator.records.opening import open_source
from dpswd.private_curator.settings.groups import ExtractorSettings, LedgerSettings, RecordsSettings
from dpswd.private_curator.storage import home_directory as homes
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.privacy.budget import PrivacyBudget


class _Curator(common.Program):
    sections: ClassVar = {
        "Every day": ("serve", "console", "budget", "clients", "approve", "requests", "runs", "history", "publish"),
        "Sometimes": ("init", "preflight", "add", "records", "apply", "ledger", "report", "incidents"),
        "Rarely": ("describe", "certificates", "extractors", "operators", "settings", "cluster"),
    }


@click.group(
    cls=_Curator,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 2 wrong usage, 3 settings, 4 records, 5 ledger unavailable, 6 ledger corrupt, "
    "7 no such client or run, 8 refused by the accountant, 9 wrong value, 10 any other refusal, 1 a defect. "
    "See docs/exit-codes.md.",
)
@common.operator_option
@common.credential_option
@click.version_option(package_name="dpswd", prog_name="dpswd-curator")
def main() -> None:
    """Keeps private records and releases only what the privacy budget has paid for."""


@main.command()
@common.home_option
@click.option(
    "--records", "file", required=True, type=click.Path(path_type=Path), help="File or folder; see `records inspect`."
)
@click.option("--epsilon", required=True, type=float, help="Budget of the data set for its whole life, for a person.")
@click.option("--delta", required=True, type=float, help="Its delta; well below one over the number of records.")
@click.option(
    "--records-per-person",
    type=int,
    default=1,
    show_default=True,
    help="How many records of one person there are at most (`records convert --person --most`); prices them together.",
)
@common.field_option(RecordsSettings, "name", note="Teams and boards read it.  [default: asked, or the file's name]")
@common.field_option(RecordsSettings, "labelled")
@reading_options
@scaling_options
@contract_options
@common.san_option
@click.option("--address", default=None, help="host:port to listen on.  [default: 127.0.0.1:50051]")
@common.device_option
@common.field_option(ExtractorSettings, "approval", "--approve", note="[default: any]")
@common.field_option(LedgerSettings, "url", "--ledger-url", envvar="DPSWD_CURATOR_LEDGER__URL")
@common.field_option(LedgerSettings, "schema_name", "--ledger-schema", envvar="DPSWD_CURATOR_LEDGER__SCHEMA_NAME")
@common.field_option(
    LedgerSettings, "password_file", "--ledger-password-file", envvar="DPSWD_CURATOR_LEDGER__PASSWORD_FILE"
)
@common.confirm_option
@format_option
def init(
    home: HomeDirectory, file: Path, epsilon: float, delta: float, records_per_person: int, name: str | None,
    names: tuple[str, ...], address: str | None, device: str | None, approve: str | None, ledger_url: str | None,
    ledger_schema: str | None, ledger_password_file: Path | None, typed: str | None, **chosen: Any,
) -> None:  # fmt: skip
    """Makes a curator: certificates, ledger with its budget, settings. Never overwrites anything.

    An epsilon above 10, or a delta of 1/n and more, has to be typed out.
    """
    chosen_records = reading(file, name=name or _asked_name(file), **chosen)
    layout = open_source(chosen_records, home=home.path).layout
    if layout.dtype.name == "uint8" and chosen_records.scale_from is None and chosen_records.value_range is None:
        chosen_records = chosen_records.model_copy(update={"value_range": chosen_records.scale_to})
    groups: dict[str, dict[str, object]] = {
        "listen": parse_address(address),
        "compute": {"device": device},
        "extractors": {"approval": approve},
        "ledger": _ledger(ledger_url, ledger_schema, ledger_password_file),
    }

    def agreed(count: int, budget: PrivacyBudget) -> None:
        common.confirmed(guards.opening(records=count, budget=budget), typed)

    made = homes.create(
        home.path,
        records=chosen_records,
        epsilon=epsilon,
        delta=delta,
        names=names,
        records_per_person=records_per_person,
        groups={name: fields for name, fields in groups.items() if any(fields.values())},
        agreed=agreed,
    )
    with made.open_ledger() as books:
        status = books.status()
        show(
            {
                "home": str(made.path),
                "name": chosen_records.name,
                "records": status.records,
                "format": layout.format.value,
                "record_shape": " x ".join(map(str, chosen_records.record_shape or layout.shape)) or "one value",
                "type": layout.dtype.name,
                "value_range": chosen_records.value_range and "{:g} to {:g}".format(*chosen_records.value_range),
                "labels": layout.labels or None,
                "served_from": "the file" if layout.mapped else "memory",
                "epsilon": epsilon,
                "delta": delta,
                **_of_records(status),
                "names": " ".join(names),
                "ledger_public_key": books.public_key.hex(),
            },
            title="A new curator; next: dpswd-curator preflight, then dpswd-curator approve",
        )
    unread = (NO_CLASSES,) if layout.labels and chosen_records.classes is None else ()
    for note in (*layout.notes, *unread):
        explain(f"note: {note}")


def _asked_name(file: Path) -> str:
    """The data set's name, from whoever is there to type it."""
    default = file.resolve().stem
    if sys.stdin.isatty():
        return str(click.prompt("Name of the data set, which teams and boards read", default=default, err=True))
    click.echo(f"the data set is named {default!r}, after its file; --name gives it another name", err=True)
    return default


def _of_records(status: LedgerStatus) -> dict[str, object]:
    """How a person's budget is counted where a person may have several records."""
    if status.records_per_person == 1:
        return {}
    account = status.data_set
    return {
        "records_per_person": status.records_per_person,
        "epsilon_of_a_record": account.epsilon,
        "delta_of_a_record": account.delta,
    }


def _ledger(url: str | None, schema: str | None, password_file: Path | None) -> dict[str, object]:
    if url is None and (schema or password_file):
        raise SettingsError("--ledger-schema and --ledger-password-file need --ledger-url: name the database as well")
    return {"url": url, "schema_name": schema, "password_file": password_file and str(password_file)}


for command in (
    add, apply, approve, budget, certificates, clients, cluster, console, describe, extractors, history, incidents,
    ledger, operators, preflight, publish, records, report, requests, runs, serve, settings,
):  # fmt: skip
    main.add_command(command)
