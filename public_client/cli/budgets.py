"""``requests``: asking a hospital's operator for more budget."""

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


@click.command()
@curator_options
@click.option("--epsilon", type=float, help="Asks for so much on top of what may be spent now; needs --purpose.")
@click.option("--purpose", help="What for, in one line of at most 200 characters, for the operator.")
@format_option
def requests(address: str, credentials: Path, epsilon: float | None, purpose: str | None, output: str) -> None:
    """What became of your requests for budget; or asks the operator for more.

    Nothing changes before the operator decides; one request waits at a time.
    """
    if (epsilon is None) != (purpose is None):
        raise click.UsageError("--epsilon and --purpose belong together: how much more, and what for")
    with connect(address, credentials) as hospital:
        if epsilon is None or purpose is None:
            _show(hospital.curator.budget_requests(), output)
        else:
            _show(hospital.curator.request_budget(epsilon, purpose=purpose)[-1:], output)


def _show(asked: Sequence[BudgetAnswer], output: str) -> None:
    tell(output, [asdict(one) for one in asked], "\n".join(map(_line, asked)) or "no request was made")


def _line(asked: BudgetAnswer) -> str:
    request = f"request {asked.number} of {asked.time[:10]}, epsilon {asked.epsilon:g} more ({asked.purpose}):"
    if not asked.decision:
        return f"{request} waits for the operator"
    granted = f", epsilon {rounded(asked.granted, up=False)} granted" if asked.granted else ""
    return f"{request} {asked.decision}{granted}: {asked.reason}"
