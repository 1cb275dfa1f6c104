"""``dpswd-curator operator``: who may act, each with a credential of their own."""

from __future__ import annotations

from pathlib import Path

import click

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.cli.common import FILE, format_option, home_option, ledger_command, reason_option, show
from dpswd.private_curator.operator import acts
from dpswd.private_curator.storage.home_directory import HomeDirectory


@click.group()
def operator() -> None:
    """Operators with credentials: from the first on, every act but freezing and pausing is signed by one."""


@operator.command("key")
@click.argument("name")
@click.option("--out", required=True, type=FILE, help="The credential's file, which you alone may read (mode 0600).")
def key(name: str, out: Path) -> None:
    """Makes your own credential, on your own account; NAME is what the ledger calls you."""
    made = Operator.make(out, name)
    click.echo(f"{out} is yours alone: give it with --credential. Let it be enrolled:")
    click.echo(f"dpswd-curator operator add {made.name!r} {made.credential}")


@operator.command("add")
@click.argument("name")
@click.argument("public_key")
@home_option
def add(name: str, public_key: str, home: HomeDirectory) -> None:
    """Enrols the operator NAME, whose `operator key` has printed PUBLIC_KEY.

    Takes a credential where operators are enrolled, and two where operators.second wants them for any act.
    """
    acts.enrol_operator(home, name, public_key)
    click.echo(f"{name} is enrolled")


@operator.command("remove")
@click.argument("name")
@home_option
@reason_option
def remove(name: str, home: HomeDirectory, reason: str) -> None:
    """Takes the operator NAME out: the credential counts no more."""
    acts.remove_operator(home, name, reason=reason)
    click.echo(f"{name} is no operator any more")


@ledger_command(operator, "list", format_option)
def list_operators(books: Ledger) -> None:
    """Who is enrolled, with the public key of the credential."""
    show([{"operator": name, "key": key} for name, key in sorted(books.operators().items())], title="Operators")
