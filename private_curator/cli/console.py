"""``dpswd-curator console``: pages to look at, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import click

from dpswd.private_curator.cli.common import FILE, home_option
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError

DEFAULT_ADDRESS = "127.0.0.1:8466"


@click.command()
@home_option
@click.option(
    "--address",
    default=DEFAULT_ADDRESS,
    show_default=True,
    help="host:port on this machine's loopback; port 0 takes a free one.",
)
@click.option("--socket", type=FILE, help="A Unix socket instead, which only its owner may use; needs --origin.")
@click.option(
    "--origin",
    "further",
    multiple=True,
    help="What the browser shows where it comes through a tunnel, such as http://127.0.0.1:9000; repeat.",
)
def console(home: HomeDirectory, address: str, socket: Path | None, further: tuple[str, ...]) -> None:
    """Shows the operator's console in a browser on this machine, until SIGTERM or Ctrl-C.

    Prints an address that signs in once. Looking needs neither the ledger's key nor the records; the few acts go
    through the same functions as the command line. They bear the name of --as. Nothing listens
    beyond this machine's loopback.
    """
    try:
        from dpswd.private_curator.console.application import console as made
        from dpswd.private_curator.console.door import origins_of
        from dpswd.private_curator.console.server import greeting, listen_on_loopback, listen_on_socket, serve
    except ImportError as error:
        raise SettingsError(
            f"the console needs {error.name}, which is not installed; install dpswd[curator]"
        ) from error
    if socket is not None and not further:
        raise SettingsError("--socket needs --origin: the address that the browser will show, behind ssh -L or a relay")
    if not home.settings.is_file():
        raise SettingsError(f"{home.path} holds no {home.settings.name}; make a curator with `dpswd-curator init`")
    listening = listen_on_loopback(address) if socket is None else listen_on_socket(socket)
    vouched = configuration.load(home.path).console.issuer is not None
    origins = origins_of(listening.address, further, by_tls=vouched)
    click.echo(f"the console listens on {socket or listening.address}")
    serve(
        made(
            home,
            origins=origins,
            announce=lambda token: click.echo(greeting(origins, token)),
            on_socket=socket is not None,
        ),
        listening,
    )
