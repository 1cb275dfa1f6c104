"""``dpswd-curator request``: what clients ask of the budget, and the operator's answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.cli.common import format_option, ledger_command, reason_option, record_command, show

if TYPE_CHECKING:
    from dpswd.private_curator.operator.record import Record

_number = click.argument("number", type=int)
_epsilon_option = click.option("--epsilon", type=float, help="Grants so much and no more.  [default: what is asked]")


@click.group()
def request() -> None:
    """Clients' requests for more budget; the client hears the answer and its reason."""


@record_command(request, "list", format_option)
def list_requests(record: Record) -> None:
    """Every request, the oldest first; those without a decision wait."""
    show([asdict(asked) for asked in record.requests], title="Requests for budget")


@ledger_command(request, "approve", _number, _epsilon_option, reason_option)
def approve(number: int, books: Ledger, epsilon: float | None, reason: str) -> None:
    """Grants request NUMBER, or with --epsilon a part of it, by adding to the client's share.

    The data set's budget stays as it is; a share larger than that is refused.
    """
    asked = next((one.epsilon for one in books.budget_requests() if one.number == number), 0.0)
    decided = books.decide_request(number, granted=asked if epsilon is None else epsilon, reason=reason)
    click.echo(f"request {number} of {decided.client} is {decided.decision}: epsilon {decided.granted:g} more")


@ledger_command(request, "deny", _number, reason_option)
def deny(number: int, books: Ledger, reason: str) -> None:
    """Denies request NUMBER."""
    decided = books.decide_request(number, granted=0.0, reason=reason)
    click.echo(f"request {number} of {decided.client} is denied")
