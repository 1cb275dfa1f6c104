"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from public_client.curator.stub import Curator

_Command = TypeVar("_Command", bound=Callable[..., Any])

_SETTING_HELP = "  [setting: curator.{}]"


def format_option(command: _Command) -> _Command:
    """``--format text|json``; arrives as `output`."""
    return click.option(
        "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output."
    )(command)


def curator_options(*, required: bool) -> Callable[[_Command], _Command]:
    """``--curator HOST:PORT --credentials DIR``; arrive as `address` and `credentials`.

    Args:
        required: whether the command cannot do without a curator; then the settings may name it as well
            (`public_client.settings`). Where the curator is a choice, it is made on the command line only.
    """

    def decorate(command: _Command) -> _Command:
        with_credentials = click.option(
            "--credentials",
            type=click.Path(path_type=Path, file_okay=False),
            default=None,
            callback=_from_settings if required else None,
            help="Directory with ca.crt, client.crt, client.key." + _SETTING_HELP.format("credentials") * required,
        )(command)
        return click.option(
            "--curator",
            "address",
            default=None,
            callback=_from_settings if required else None,
            help="The curator's host:port." + _SETTING_HELP.format("address") * required,
        )(with_credentials)

    return decorate


def connect(address: str, credentials: Path, *, run_directory: Path | None = None) -> Curator:
    """A connection with the settings' patience and server name."""
    from public_client.curator.stub import Curator  # torch takes seconds to load
    from public_client.settings import load

    settings = load()
    return Curator.connect(
        address,
        credentials=credentials,
        run_directory=run_directory,
        timeout_s=settings.connection.timeout_seconds,
        patience_s=settings.connection.patience_seconds,
        server_name=settings.curator.server_name,
    )


def _from_settings(_context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """The option's value, or the setting's of the same name where it was left out."""
    if value is not None:
        return value
    from public_client.settings import load

    found = getattr(load().curator, str(parameter.name))
    if found is None:
        option = parameter.opts[0]
        raise click.UsageError(
            f"Missing option '{option}'; give it, or set curator.{parameter.name} (`dpswd-client settings`)"
        )
    return found


def device_option(command: _Command) -> _Command:
    """``--device auto|cpu|cuda``."""
    return click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Where to compute.",
    )(command)


def echo_json(value: Any) -> None:
    """Prints one JSON document."""
    click.echo(json.dumps(value, indent=1, sort_keys=True))
