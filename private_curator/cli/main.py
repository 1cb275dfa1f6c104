"""The root of ``dpswd-curator``, and the commands that make, show and serve a curator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from private_curator.cli.apply import apply
from private_curator.cli.budgets import budget
from private_curator.cli.certs import cert
from private_curator.cli.clients import client
from private_curator.cli.common import Commands, format_option, home_option, show
from private_curator.cli.ledgers import extractor, incidents, ledger, run
from private_curator.cli.records import reading, reading_options, records
from private_curator.cli.serving import parse_address, preflight, serve, settings
from private_curator.operator import home_directory as homes
from private_curator.operator.home_directory import Home
from private_curator.records.opening import open_source
from private_curator.serving.certificates import DEFAULT_NAMES
from shared.errors import SettingsError


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 2 wrong usage, 3 settings, 4 records, 5 ledger unavailable, 6 ledger corrupt, "
    "7 no such client or run, 8 refused by the accountant, 9 wrong value, 10 any other refusal, 1 a defect. "
    "See docs/exit-codes.md.",
)
@click.version_option(package_name="dpswd", prog_name="dpswd-curator")
def main() -> None:
    """Keeps private records and releases only what the privacy budget has paid for."""


@main.command()
@home_option
@click.option(
    "--records",
    "file",
    required=True,
    type=click.Path(path_type=Path),
    help="File or folder of records; see `records inspect`.",
)
@click.option("--epsilon", required=True, type=float, help="Budget of the data set for its whole life.")
@click.option("--delta", required=True, type=float, help="Its delta; well below one over the number of records.")
@click.option("--name", default=None, help="The data set's public name.  [default: the file's name]")
@reading_options
@click.option("--record-shape", default=None, help="Shape that one record gets, for example 1,28,28.")
@click.option("--scale-from", nargs=2, type=float, default=None, help="Public range of the stored values.")
@click.option("--scale-to", nargs=2, type=float, default=None, help="Range it is mapped to.  [default: 0 1]")
@click.option(
    "--san", "names", multiple=True, help="Name or address of the server; repeat.  [default: localhost 127.0.0.1]"
)
@click.option("--address", default=None, help="host:port to listen on.  [default: 127.0.0.1:50051]")
@click.option("--device", type=click.Choice(["cpu", "cuda", "auto"]), default=None, help="[default: auto]")
@click.option(
    "--approve", type=click.Choice(["any", "listed"]), default=None, help="Extractors that run.  [default: any]"
)
@click.option(
    "--ledger-url",
    default=None,
    envvar="DPSWD_CURATOR_LEDGER__URL",
    help="PostgreSQL for the ledger.  [default: the file HOME/ledger.db]",
)
@click.option(
    "--ledger-schema",
    default=None,
    envvar="DPSWD_CURATOR_LEDGER__SCHEMA_NAME",
    help="The ledger's own schema in that database.  [default: dpswd]",
)
@click.option(
    "--ledger-password-file",
    envvar="DPSWD_CURATOR_LEDGER__PASSWORD_FILE",
    type=click.Path(path_type=Path),
    default=None,
    help="File with the database's password.  [default: PGPASSFILE]",
)
@format_option
def init(
    home: Home,
    file: Path,
    epsilon: float,
    delta: float,
    name: str | None,
    record_shape: str | None,
    scale_from: tuple[float, float] | None,
    scale_to: tuple[float, float] | None,
    names: tuple[str, ...],
    address: str | None,
    device: str | None,
    approve: str | None,
    ledger_url: str | None,
    ledger_schema: str | None,
    ledger_password_file: Path | None,
    output: str,
    **chosen: Any,
) -> None:
    """Makes a curator: certificates, ledger with its budget, settings. Never overwrites anything."""
    chosen_records = reading(
        file,
        name=name,
        record_shape=_shape(record_shape),
        scale_from=scale_from or None,
        scale_to=scale_to or None,
        **chosen,
    )
    sections: dict[str, dict[str, object]] = {
        "listen": parse_address(address),
        "compute": {} if device is None else {"device": device},
        "extractors": {} if approve is None else {"approval": approve},
        "ledger": _ledger(ledger_url, ledger_schema, ledger_password_file),
    }
    made = homes.create(
        home.path,
        records=chosen_records,
        epsilon=epsilon,
        delta=delta,
        names=names or DEFAULT_NAMES,
        sections={section: fields for section, fields in sections.items() if fields},
    )
    layout = open_source(chosen_records.file, chosen_records, home=made.path).layout
    with made.open_ledger() as books:
        status = books.status()
        show(
            {
                "home": str(made.path),
                "records": status.records,
                "format": layout.format.value,
                "record_shape": " x ".join(map(str, chosen_records.record_shape or layout.shape)) or "one value",
                "type": layout.dtype.name,
                "labels": layout.labels or None,
                "served_from": "the file" if layout.mapped else "memory",
                "epsilon": status.data_set.epsilon,
                "delta": status.data_set.delta,
                "names": " ".join(names or DEFAULT_NAMES),
                "ledger_public_key": books.public_key.hex(),
            },
            output,
            title="A new curator; next: dpswd-curator client add, then dpswd-curator serve",
        )


@main.group()
def certificate() -> None:
    """The server's certificate."""


@certificate.command("renew")
@home_option
@click.option(
    "--san", "names", multiple=True, help="Name or address of the server; repeat.  [default: localhost 127.0.0.1]"
)
def renew(home: Home, names: tuple[str, ...]) -> None:
    """Makes a new server key and certificate; a running curator takes them after a restart."""
    home.authority.renew_server(names=names or DEFAULT_NAMES)
    click.echo(f"new server certificate for {' '.join(names or DEFAULT_NAMES)}; restart the curator")


def _ledger(url: str | None, schema: str | None, password_file: Path | None) -> dict[str, object]:
    secret = None if password_file is None else str(password_file.resolve())
    chosen = {"url": url, "schema_name": schema, "password_file": secret}
    if url is None and any(chosen.values()):
        raise SettingsError("--ledger-schema and --ledger-password-file need --ledger-url: name the database as well")
    return {name: value for name, value in chosen.items() if value is not None}


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise SettingsError(f"--record-shape is {text!r}; write numbers with commas, for example 1,28,28") from error


for command in (cert, client, budget, extractor, ledger, records, run, incidents, serve, settings, preflight, apply):
    main.add_command(command)

__all__ = ["main"]
