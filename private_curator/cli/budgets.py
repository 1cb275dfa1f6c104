"""``dpswd-curator budget``: the data set's (epsilon, delta), shown and changed by its operator alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.cli.common import (
    chosen_format,
    confirm_option,
    confirmed,
    format_option,
    home_option,
    ledger_command,
    reason_option,
    record_command,
    show,
)
from dpswd.private_curator.operator.acts import budget_of
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    from dpswd.private_curator.operator.record import Record

epsilon_option = click.option("--epsilon", type=float, required=True)
delta_option = click.option("--delta", type=float, default=None, help="[default: as it is]")
_confirmation_option = click.confirmation_option(prompt="No release will ever be made of this data set again. Go on?")


@click.group()
def budget() -> None:
    """The data set's budget. Nobody can change it over the network."""


@record_command(budget, "show", format_option)
def show_budget(record: Record) -> None:
    """What is promised, spent and left, and where spending leads. Works on a read-only copy of the home."""
    status, forecast = record.reading.status, record.overview.forecast
    show(
        {
            "state": status.state.value,
            "records": status.records,
            "records_per_person": status.records_per_person,
            **asdict(status.data_set),
            "steps_charged": status.steps_charged,
            "steps_used": status.steps_used,
            "spent_after_a_run_like_the_last": forecast.next_spent,
            "exhausted_at_this_rate_on": forecast.exhausted_on,
            "ledger_entries": status.entries,
            "ledger_head": status.head,
        },
        title="Budget of the data set; epsilon spent is at the budget's delta",
    )
    if chosen_format() == "text":
        click.echo(f"  {record.overview.promise}.")


@ledger_command(budget, "lower", epsilon_option, delta_option, reason_option)
def lower(books: Ledger, epsilon: float, delta: float | None, reason: str) -> None:
    """Sets a smaller budget; below what is spent, nothing is admitted any more."""
    from dpswd.private_curator.operator import acts

    status = books.status()
    wanted = acts.stated_budget(status.data_set, epsilon, delta, records_per_person=status.records_per_person)
    books.lower_budget(wanted, reason=reason)
    click.echo(f"the budget is lowered to epsilon {epsilon}")


@budget.command("extend")
@epsilon_option
@delta_option
@reason_option
@confirm_option
@home_option
def extend(home: HomeDirectory, epsilon: float, delta: float | None, reason: str, typed: str | None) -> None:
    """Raises the budget: weakens the promise made to the persons in the data set. Logged for good.

    Shows what changes. More than double, an epsilon above 10 or a delta of 1/n and more have to be typed out.
    """
    from dpswd.private_curator.operator import acts

    typed = confirmed(acts.extension(home, epsilon=epsilon, delta=delta), typed)
    acts.extend_budget(home, epsilon=epsilon, delta=delta, reason=reason, typed=typed)
    click.echo(f"the budget is extended to epsilon {epsilon}")


@ledger_command(budget, "freeze", reason_option)
def freeze(books: Ledger, reason: str) -> None:
    """Stops every new release until unfreeze."""
    books.freeze(reason=reason)
    click.echo("the data set is frozen: nothing new is released")


@ledger_command(budget, "unfreeze", reason_option)
def unfreeze(books: Ledger, reason: str) -> None:
    """Allows releases again."""
    books.unfreeze(reason=reason)
    click.echo("the data set is open again")


@ledger_command(budget, "end", reason_option, _confirmation_option)
def end(books: Ledger, reason: str) -> None:
    """Stops every new release for ever."""
    books.end(reason=reason)
    click.echo("the data set has ended: nothing is released any more")


def share_of(books: Ledger, *, epsilon: float | None, delta: float | None) -> PrivacyBudget | None:
    """A new client's own share of the budget, or None where it gets none.

    Raises:
        SettingsError: a delta without an epsilon.
        InvalidValue: epsilon or delta is outside what is allowed.
    """
    if epsilon is None:
        if delta is not None:
            raise SettingsError("--delta without --epsilon sets no share; give both, or neither")
        return None
    return budget_of(books, epsilon=epsilon, delta=delta)
