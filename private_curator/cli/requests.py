"""``dpswd-curator requests``: what clients ask of the budget, and the operator's answer."""

from __future__ import annotations

from dataclasses import asdict

import click

from dpswd.private_curator.cli.common import chosen_act, home_option, reason_option, record_of
from dpswd.private_curator.cli.showing import show, table_options
from dpswd.private_curator.storage.home_directory import HomeDirectory

_SHORT = ("number", "time", "client", "epsilon", "purpose", "decision", "granted")


@click.command()
@click.argument("number", type=int, required=False)
@click.option(
    "--approve",
    is_flag=True,
    help="Grants it by adding to the client's share. The data set's budget stays as it is; a share larger than that is "
    "refused.",
)
@click.option("--epsilon", type=float, help="Of --approve: so much and no more.  [default: what is asked]")
@click.option("--deny", is_flag=True, help="Grants nothing.")
@reason_option
@home_option
@table_options
def requests(
    number: int | None, home: HomeDirectory, approve: bool, epsilon: float | None, deny: bool, reason: str | None
) -> None:
    """Shows clients' requests for more budget, or answers NUMBER; the client hears the answer and its reason."""
    act = chosen_act(approve=approve, deny=deny, reason=reason)
    if epsilon is not None and not approve:
        raise click.UsageError("--epsilon is of --approve")
    if act is None or reason is None:
        asked = [asdict(one) for one in record_of(home).requests if number in (None, one.number)]
        show(asked, title="Requests for budget; those without a decision wait", short=_SHORT)
        return
    if number is None:
        raise click.UsageError(f"{act} needs the request's NUMBER")
    with home.open_ledger() as books:
        requested = next((one.epsilon for one in books.budget_requests() if one.number == number), 0.0)
        granted = 0.0 if deny else requested if epsilon is None else epsilon
        decided = books.decide_request(number, granted=granted, reason=reason)
    added = f": epsilon {decided.granted:g} more" if approve else ""
    click.echo(f"request {number} of {decided.client} is {decided.decision}{added}")
