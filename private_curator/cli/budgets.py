"""``dpswd-curator budget``: the data set's (epsilon, delta), shown and changed by its operator alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from private_curator.cli.common import format_option, home_option, reason_option, show
from private_curator.ledger import Ledger
from private_curator.operator.home_directory import Home


@click.group()
def budget() -> None:
    """The data set's budget. Nobody can change it over the network."""


@budget.command("show")
@home_option
@format_option
def show_budget(home: Home, output: str) -> None:
    """What is promised, spent and left."""
    with home.open_ledger() as ledger:
        status = ledger.status()
    show(
        {
            "state": status.state.value,
            "records": status.records,
            **asdict(status.data_set),
            "steps_charged": status.steps_charged,
            "steps_used": status.steps_used,
            "ledger_entries": status.entries,
            "ledger_head": status.head,
        },
        output,
        title="Budget of the data set; epsilon spent is at the budget's delta",
    )


@budget.command("lower")
@home_option
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, default=None, help="[default: as it is]")
@reason_option
def lower(home: Home, epsilon: float, delta: float | None, reason: str) -> None:
    """Sets a smaller budget; below what is spent, nothing is admitted any more."""
    with home.open_ledger() as ledger:
        ledger.lower_budget(budget_of(ledger, epsilon=epsilon, delta=delta), reason=reason)
    click.echo(f"the budget is lowered to epsilon {epsilon}")


@budget.command("extend")
@home_option
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, default=None, help="[default: as it is]")
@reason_option
def extend(home: Home, epsilon: float, delta: float | None, reason: str) -> None:
    """Raises the budget: weakens the promise made to the persons in the data set. Logged for good."""
    with home.open_ledger() as ledger:
        ledger.extend_budget(budget_of(ledger, epsilon=epsilon, delta=delta), reason=reason)
    click.echo(f"the budget is extended to epsilon {epsilon}")


@budget.command("freeze")
@home_option
@reason_option
def freeze(home: Home, reason: str) -> None:
    """Stops every new release until unfreeze."""
    with home.open_ledger() as ledger:
        ledger.freeze(reason=reason)
    click.echo("the data set is frozen: nothing new is released")


@budget.command("unfreeze")
@home_option
@reason_option
def unfreeze(home: Home, reason: str) -> None:
    """Allows releases again."""
    with home.open_ledger() as ledger:
        ledger.unfreeze(reason=reason)
    click.echo("the data set is open again")


@budget.command("end")
@home_option
@reason_option
@click.confirmation_option(prompt="No release will ever be made of this data set again. Go on?")
def end(home: Home, reason: str) -> None:
    """Stops every new release for ever."""
    with home.open_ledger() as ledger:
        ledger.end(reason=reason)
    click.echo("the data set has ended: nothing is released any more")


def budget_of(ledger: Ledger, *, epsilon: float, delta: float | None) -> Any:
    """A budget under the data set's relation, by default with its delta.

    Raises:
        InvalidValue: epsilon or delta is outside what is allowed.
    """
    account = ledger.status().data_set
    return ledger.accounting.budget(
        epsilon=epsilon, delta=account.delta if delta is None else delta, relation=account.relation
    )
