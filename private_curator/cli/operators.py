"""``dpswd-curator operators``: who may act, each with a credential of their own."""

from __future__ import annotations

from pathlib import Path

import click

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.cli.common import FILE, chosen_act, home_if_given_option, needed, reason_option
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
@reason_option
@home_if_given_option
@table_options
def operators(
    name: str | None, home: HomeDirectory | None, make: Path | None, add: str | None, issuer: str | None, remove: bool,
    reason: str | None,
) -> None:  # fmt: skip
    """Shows who is enrolled, or changes it. From the first on, every act but freezing and pausing is signed by one.

    To enrol or remove takes a credential where operators are enrolled, and two where operators.second wants them for
    any act.
    """
    act = chosen_act(make=make, add=add, remove=remove)
    if act is None:
        roster = needed(home).read_ledger().books.operators
        rows = [{"operator": own, "key": key, "issuer": roster.issuers.get(own)} for own, key in roster.keys.items()]
        show(rows, title="Operators")
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
