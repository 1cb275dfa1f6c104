"""``dpswd-curator budget``: the data set's (epsilon, delta), shown and changed by its operator alone."""

from __future__ import annotations

from dataclasses import asdict

import click

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.cli.common import (
    chosen_act,
    confirm_option,
    confirmed,
    home_option,
    reason_option,
    record_of,
)
from dpswd.private_curator.cli.showing import explain, format_option, show
from dpswd.private_curator.operator import acts
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.core.privacy.budget import PrivacyBudget

_DONE = {
    "freeze": "the data set is frozen: nothing new is released",
    "unfreeze": "the data set is open again",
    "end": "the data set has ended: nothing is released any more",
}
_ALREADY = "; it was so before, and the log holds that act's reason, not this one"


@click.command()
@click.option("--freeze", is_flag=True, help="Stops every new release until --unfreeze.")
@click.option("--unfreeze", is_flag=True, help="Allows releases again.")
@click.option("--lower", type=float, metavar="EPSILON", help="To so much; below what is spent, nothing is admitted.")
@click.option(
    "--extend",
    type=float,
    metavar="EPSILON",
    help="To so much: weakens the promise made to the persons in the data set. More than double, an epsilon above 10 "
    "or a delta of 1/n and more have to be typed out.",
)
@click.option("--delta", type=float, help="Of --lower and --extend.  [default: as it is]")
@click.option("--end", is_flag=True, help="Stops every new release for ever.")
@click.option("--yes", is_flag=True, help="Ends without asking.")
@confirm_option
@reason_option
@home_option
@format_option
def budget(
    home: HomeDirectory, freeze: bool, unfreeze: bool, lower: float | None, extend: float | None, delta: float | None,
    end: bool, yes: bool, typed: str | None, reason: str | None,
) -> None:  # fmt: skip
    """Shows what is promised, spent and left, and where spending leads; or changes it.

    Looking works on a read-only copy of the home. Nobody can change the budget over the network; each act is logged for
    good.
    """
    act = chosen_act(freeze=freeze, unfreeze=unfreeze, lower=lower, extend=extend, end=end, reason=reason)
    if delta is not None and act not in ("--lower", "--extend"):
        raise click.UsageError("--delta is of --lower and --extend")
    if act is None or reason is None:
        _show(home)
    elif extend is not None:
        _extend(home, extend, delta, reason=reason, typed=typed)
    else:
        if end and not yes:
            click.confirm("No release will ever be made of this data set again. Go on?", abort=True)
        with home.open_ledger() as books:
            if lower is not None:
                status = books.status()
                target = acts.stated_budget(status.data_set, lower, delta, records_per_person=status.records_per_person)
                books.lower_budget(target, reason=reason)
                click.echo(f"the budget is lowered to epsilon {lower}")
            else:
                before, act = books.state, act.removeprefix("--")
                getattr(books, act)(reason=reason)
                click.echo(_DONE[act] + _ALREADY * (books.state is before))


def _show(home: HomeDirectory) -> None:
    record = record_of(home)
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
    explain(f"{record.overview.promise}.")


def _extend(home: HomeDirectory, epsilon: float, delta: float | None, *, reason: str, typed: str | None) -> None:
    typed = confirmed(acts.extension(home, epsilon=epsilon, delta=delta), typed)
    acts.extend_budget(home, epsilon=epsilon, delta=delta, reason=reason, typed=typed)
    click.echo(f"the budget is extended to epsilon {epsilon}")


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
    return acts.budget_of(books, epsilon=epsilon, delta=delta)
