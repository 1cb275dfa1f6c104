"""``calibrate`` and ``epsilon``: the accountant from the command line, without a curator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dpswd.public_client.cli.options import echo_json, format_option
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.privacy.events import RowProjections, RunEvent, StepEvent

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
def calibrate(*, bound: str, epsilon: float, delta: float, output: str, **run: int) -> None:
    """Noise of a run of noisy projections (DP-SWD, row by row) for a given epsilon.

    clt, bernstein and bernstein-published reproduce published recipes and are no guarantees.
    """
    sigma = calibrate_sigma(lambda sigma: _rows(sigma, **run), epsilon=epsilon, delta=delta, bound=Bound(bound))
    _show(sigma, _rows(sigma, **run), delta, Bound(bound), output)


@click.command()
@_run_options
@click.option("--sigma", type=float, required=True, help="Standard deviation of the noise on each projection.")
@format_option
def epsilon(*, bound: str, sigma: float, delta: float, output: str, **run: int) -> None:
    """Cost of a run of noisy projections with given noise: the inverse of calibrate."""
    _show(sigma, _rows(sigma, **run), delta, Bound(bound), output)


def _rows(sigma: float, *, features: int, directions: int, records: int, batch: int, steps: int) -> RunEvent:
    part = RowProjections(feature_dimension=features, directions=directions, sigma=sigma)
    return RunEvent(step=StepEvent(records=records, batch=batch, parts=(part,)), steps=steps)


def _show(sigma: float, run: RunEvent, delta: float, bound: Bound, output: str) -> None:
    cost, guarantee = epsilon_of(run, delta, bound), bound.is_guarantee
    if output == "json":
        echo_json({"sigma": sigma, "epsilon": cost, "delta": delta, "bound": bound.value, "guarantee": guarantee})
        return
    note = "" if guarantee else "  (a published recipe, not a guarantee)"
    click.echo(f"sigma    {sigma:.6g}")
    click.echo(f"epsilon  {cost:.6g} at delta {delta:g} by {bound.value}{note}")
