"""``calibrate`` and ``epsilon``: the accountant from the command line, without a curator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from public_client.cli.options import echo_json, format_option
from shared.privacy.bounds import Bound
from shared.privacy.calibration import RunCost, calibrate_rows, epsilon_rows

_Command = TypeVar("_Command", bound=Callable[..., Any])
_BOUNDS = [bound.value for bound in Bound]


def _run_options(command: _Command) -> _Command:
    for option in reversed(
        (
            click.option("--features", type=int, required=True, help="d, dimension of the features."),
            click.option("--directions", type=int, required=True, help="k, random directions of each step."),
            click.option("--records", type=int, required=True, help="n, records of the data set."),
            click.option("--batch", type=int, required=True, help="b, records of each secret sample."),
            click.option("--steps", type=int, required=True, help="T, steps of the run."),
            click.option("--delta", type=float, required=True, help="Probability that the bound may fail with."),
            click.option(
                "--bound", type=click.Choice(_BOUNDS), default="auto", show_default=True, help="How to price the run."
            ),
        )
    ):
        command = option(command)
    return command


@click.command()
@_run_options
@click.option("--epsilon", type=float, required=True, help="What the run may cost.")
@format_option
def calibrate(*, bound: str, output: str, **numbers: Any) -> None:
    """Noise of a run of noisy projections (DP-SWD, row by row) for a given epsilon.

    clt, bernstein and bernstein-published reproduce published recipes and are no guarantees.
    """
    _show(calibrate_rows(bound=Bound(bound), **numbers), output)


@click.command()
@_run_options
@click.option("--sigma", type=float, required=True, help="Standard deviation of the noise on each projection.")
@format_option
def epsilon(*, bound: str, output: str, **numbers: Any) -> None:
    """Cost of a run of noisy projections with given noise: the inverse of calibrate."""
    _show(epsilon_rows(bound=Bound(bound), **numbers), output)


def _show(cost: RunCost, output: str) -> None:
    if output == "json":
        echo_json(asdict(cost) | {"bound": cost.bound.value})
        return
    note = "" if cost.guarantee else "  (a published recipe, not a guarantee)"
    click.echo(f"sigma    {cost.sigma:.6g}")
    click.echo(f"epsilon  {cost.epsilon:.6g} at delta {cost.delta:g} by {cost.bound.value}{note}")
