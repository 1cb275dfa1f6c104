"""``dpswd-curator sign-in`` and ``sign-out``: who acts, where the hospital's OpenID provider says so."""

from __future__ import annotations

import click

from dpswd.private_curator.cli.common import home_option
from dpswd.private_curator.cli.console import DEFAULT_ADDRESS
from dpswd.private_curator.storage.home_directory import HomeDirectory


@click.command("sign-in")
@click.option("--address", default=DEFAULT_ADDRESS, show_default=True, help="The console's, as the provider knows it.")
@home_option
def sign_in(home: HomeDirectory, address: str) -> None:
    """Signs you in with your hospital's account, for the commands that act; it ends after eight hours.

    Open the printed address in a browser anywhere, and paste the one at which it ends: nothing need answer there. What
    you do then bears your name and number, in your role; a note of it in your own directory is for this home alone.
    """
    from dpswd.private_curator.console import terminal

    def ask(location: str) -> str:
        click.echo(f"open in a browser: {location}")
        return str(click.prompt("paste the address at which it ends", err=True))

    person, until = terminal.sign_in(home, address, ask=ask)
    click.echo(f"you are {person.subject['name']} ({', '.join(sorted(person.roles))}) until {until:%Y-%m-%d %H:%M} UTC")


@click.command("sign-out")
@home_option
def sign_out(home: HomeDirectory) -> None:
    """Forgets who signed in to this home."""
    from dpswd.private_curator.console.terminal import note_of

    note_of(home).unlink(missing_ok=True)
    click.echo("nobody is signed in")
