"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def format_option(command: _Command) -> _Command:
    """``--format text|json``; arrives as `output`."""
    return click.option(
        "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output."
    )(command)


def curator_options(*, required: bool) -> Callable[[_Command], _Command]:
    """``--curator HOST:PORT --credentials DIR``; arrive as `address` and `credentials`."""

    def decorate(command: _Command) -> _Command:
        with_credentials = click.option(
            "--credentials",
            type=click.Path(path_type=Path, file_okay=False),
            required=required,
            help="Directory with ca.crt, client.crt, client.key.",
        )(command)
        return click.option("--curator", "address", required=required, help="The curator's host:port.")(
            with_credentials
        )

    return decorate


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
