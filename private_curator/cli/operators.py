"""``dpswd-curator operators``: who may act, each with a credential of their own."""

from __future__ import annotations

from pathlib import Path

import click

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.cli.common import FILE, chosen_act, home_if_given_option, needed, reason_option
from dpswd.private_curator.cli.console import DEFAULT_ADDRESS
from dpswd.private_curator.cli.showing import show, table_options
from dpswd.private_curator.operator import acts
from dpswd.private_curator.storage.home_directory import HomeDirectory


@click.command()
@click.argument("name", required=False)
@click.option(
    "--make", type=FILE, help="Makes your own credential, a file that you alone may read; NAME is what you are called."
)
@click.option("--add", metavar="PUBLIC_KEY", help="Enrols NAME, for whom --make has printed PUBLIC_KEY.")
@click.option("--issuer", help="With --add, of a console: it speaks for whom this OpenID provider signs in.")
@click.option("--remove", is_flag=True, help="Takes NAME out: the credential counts no more.")
@click.option("--sign-in", is_flag=True, help="Signs you in with your hospital's account, for eight hours.")
@click.option("--address", default=DEFAULT_ADDRESS, show_default=True, help="The console's, as the provider knows it.")
@click.option("--sign-out", is_flag=True, help="Ends it.")
@reason_option
@home_if_given_option
@table_options
def operators(
    name: str | None, home: HomeDirectory | None, make: Path | None, add: str | None, issuer: str | None, remove: bool,
    sign_in: bool, address: str, sign_out: bool, reason: str | None,
) -> None:  # fmt: skip
    """Shows who is enrolled, or changes it. From the first on, every act but freezing and pausing is signed by one.

    To enrol or remove takes a credential where operators are enrolled, and two where operators.second wants them for
    any act. Where an OpenID provider says who acts, --sign-in prints an address for a browser anywhere and asks for the
    one at which it ends: nothing need answer there. Your acts then bear your name and number, in your role; a note of
    it in your own directory is for this home alone.
    """
    act = chosen_act(make=make, add=add, remove=remove, sign_in=sign_in, sign_out=sign_out)
    if act is None:
        roster = needed(home).read_ledger().books.operators
        rows = [{"operator": own, "key": key, "issuer": roster.issuers.get(own)} for own, key in roster.keys.items()]
        show(rows, title="Operators")
        return
    if sign_in or sign_out:
        _sign(HomeDirectory(needed(home).path), address if sign_in else None)
        return
    if name is None:
        raise click.UsageError(f"{act} needs the operator's NAME")
    if make is not None:
        made = Operator.make(make, name)
        click.echo(f"{make} is yours alone: give it with --credential. Let it be enrolled:")
        click.echo(f"dpswd-curator operators {made.name!r} --add {made.credential}")
    elif add is not None:
        acts.enrol_operator(needed(home), name, add, issuer=issuer)
        click.echo(f"{name} is enrolled")
    elif reason is None:
        raise click.UsageError("Missing option '--reason'.")
    else:
        acts.remove_operator(needed(home), name, reason=reason)
        click.echo(f"{name} is no operator any more")


def _sign(home: HomeDirectory, address: str | None) -> None:
    """In, at an address; out without one."""
    from dpswd.private_curator.console import terminal

    if address is None:
        terminal.note_of(home).unlink(missing_ok=True)
        click.echo("nobody is signed in")
        return

    def ask(location: str) -> str:
        click.echo(f"open in a browser: {location}")
        return str(click.prompt("paste the address at which it ends", err=True))

    person, until = terminal.sign_in(home, address, ask=ask)
    click.echo(f"you are {person.subject['name']} ({', '.join(sorted(person.roles))}) until {until:%Y-%m-%d %H:%M} UTC")
