"""``budget``: what is left at a hospital, and asking its operator for more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpswd.public_client.cli.options import connect, curator_options, format_option, tell
from dpswd.shared.core.errors import rounded

if TYPE_CHECKING:
    from dpswd.public_client.curator.values import BudgetAnswer


@click.group()
def budget() -> None:
    """A hospital's budget: only its operator can change it, and can be asked."""


@budget.command("request")
@curator_options
@click.option("--epsilon", type=float, required=True, help="On top of what may be spent now.")
@click.option("--because", required=True, help="Why, in one line of at most 200 characters, for the operator.")
@format_option
def request(address: str, credentials: Path, epsilon: float, because: str, output: str) -> None:
    """Asks the operator for more budget. Nothing changes before the operator decides; one request waits at a time."""
    with connect(address, credentials) as hospital:
        asked = hospital.curator.request_budget(epsilon, because=because)
    _show(asked[-1:], output)


@budget.command("requests")
@curator_options
@format_option
def requests(address: str, credentials: Path, output: str) -> None:
    """What became of the requests for budget: approved, cut or denied, with the operator's words."""
    with connect(address, credentials) as hospital:
        asked = hospital.curator.budget_requests()
    _show(asked, output)


def _show(asked: Sequence[BudgetAnswer], output: str) -> None:
    tell(output, [asdict(one) for one in asked], "\n".join(map(_line, asked)) or "no request was made")


def _line(asked: BudgetAnswer) -> str:
    wanted = f"request {asked.number} of {asked.time[:10]}, epsilon {asked.epsilon:g} more ({asked.because}):"
    if not asked.decision:
        return f"{wanted} waits for the operator"
    granted = f", epsilon {rounded(asked.granted, up=False)} granted" if asked.granted else ""
    return f"{wanted} {asked.decision}{granted}: {asked.reason}"
