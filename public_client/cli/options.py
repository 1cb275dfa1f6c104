"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dpswd.shared.core.errors import SettingsError

if TYPE_CHECKING:
    from dpswd.public_client.adaptation.hospital import Hospital

_Command = TypeVar("_Command", bound=Callable[..., Any])

DIRECTORY, FILE = click.Path(path_type=Path, file_okay=False), click.Path(path_type=Path, dir_okay=False)
"""What an option for a path takes."""
EXIT_DOES_NOT_FIT = 8
"""As of a training that the accountant refuses."""
CREDENTIALS_HELP = "Directory with ca.crt, client.crt, client.key."

format_option = click.option(
    "--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output."
)
"""``--format text|json``; arrives as `output`."""


def curator_options(command: _Command) -> _Command:
    """``--curator HOST:PORT --credentials DIR``; arrive as `address` and `credentials`. The settings may name both."""
    text = f"{CREDENTIALS_HELP}  [setting: curator.credentials]"
    command = click.option("--credentials", type=DIRECTORY, callback=_from_settings, help=text)(command)
    text = "The curator's host:port.  [setting: curator.address]"
    return click.option("--curator", "address", callback=_from_settings, help=text)(command)


def several_curators(command: _Command) -> _Command:
    """The same for one to many hospitals, which may have names; arrive as `curators` and `folders`."""
    text = "Directory with ca.crt, client.crt, client.key; one for each --curator, in their order."
    command = click.option("--credentials", "folders", multiple=True, type=DIRECTORY, help=text)(command)
    text = "A hospital; give it several times for several.  [default: a rehearsal here; of a plan, the setting's]"
    return click.option("--curator", "curators", multiple=True, metavar="[NAME=]HOST:PORT", help=text)(command)


def connect(address: str, credentials: Path, *, run_directory: Path | None = None, purpose: str = "") -> Hospital:
    """A connection with the settings' patience and server name."""
    from dpswd.public_client.adaptation.hospital import Hospital  # torch takes seconds to load
    from dpswd.public_client.settings import load

    settings = load()
    return Hospital.connect(
        address,
        credentials=credentials,
        run_directory=run_directory,
        timeout_s=settings.connection.timeout_seconds,
        patience_s=settings.connection.patience_seconds,
        start_s=settings.connection.start_seconds,
        server_name=settings.curator.server_name,
        purpose=purpose,
    )


def _from_settings(context: click.Context, parameter: click.Parameter, value: Any) -> Any:  # noqa: ARG001 - click's
    return from_settings(str(parameter.name), parameter.opts[0], value)


def from_settings(name: str, option: str, value: Any) -> Any:
    """The option's value, or the setting's of this name where it was left out.

    Raises:
        click.UsageError: there is neither.
    """
    if value is not None:
        return value
    from dpswd.public_client.settings import load

    setting = getattr(load().curator, name)
    if setting is None:
        raise click.UsageError(f"Missing option '{option}'; give it, or set curator.{name} (`dpswd-client settings`)")
    return setting


def key_values(option: str, words: tuple[str, ...]) -> dict[str, Any]:
    """KEY=VALUE words of an option; a value that is JSON is read as such.

    Raises:
        SettingsError: a word is none.
    """
    values: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise SettingsError(f"{option} {word!r} must be KEY=VALUE, such as coefficients=4")
        try:
            values[key] = json.loads(value)
        except json.JSONDecodeError:
            values[key] = value
    return values


def tell(output: str, document: Any, text: object) -> None:
    """Prints the document as JSON, or the text, as ``--format`` says."""
    echo_json(document) if output == "json" else click.echo(text)


def echo_json(value: Any) -> None:
    """Prints one JSON document."""
    click.echo(json.dumps(value, indent=1, sort_keys=True))
