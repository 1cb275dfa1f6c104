"""``dpswd-curator sign-in`` and ``sign-out``: who acts, where the hospital's OpenID provider says so."""

from __future__ import annotations

import click

from dpswd.private_curator.cli.common import home_option
from dpswd.private_curator.storage.home_directory import HomeDirectory


@click.command("sign-in")
@click.option("--paste", is_flag=True, help="The browser is on another machine: paste the address at which it ends.")
@click.option("--port", default=0, show_default=True, help="Of 127.0.0.1, where the browser ends; 0 takes a free one.")
@home_option
def sign_in(home: HomeDirectory, paste: bool, port: int) -> None:
    """Signs you in with your hospital's account, for the commands that act; it ends after eight hours.

    Prints an address for a browser. What you do then bears your name and your account's number, in your role. A note of
    it stands in your own directory, for this home alone.
    """
    from dpswd.private_curator.console import terminal

    person, until = terminal.sign_in(
        home,
        port=port,
        show=lambda address: click.echo(f"open in a browser: {address}"),
        ask=(lambda: str(click.prompt("the address at which it ended", err=True))) if paste else None,
    )
    click.echo(f"you are {person.subject['name']} ({', '.join(sorted(person.roles))}) until {until:%Y-%m-%d %H:%M} UTC")


@click.command("sign-out")
@home_option
def sign_out(home: HomeDirectory) -> None:
    """Forgets who signed in to this home."""
    from dpswd.private_curator.console import terminal

    click.echo("you are signed out" if terminal.sign_out(home) else "nobody had signed in")
