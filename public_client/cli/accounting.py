"""``calibrate``: the accountant from the command line, without a curator."""

from __future__ import annotations

import click

from dpswd.public_client.cli.options import echo_json, format_option
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.privacy.events import RowProjections, RunEvent, StepEvent

_BOUNDS = [bound.value for bound in Bound]


@click.command()
@click.option("--features", type=int, required=True, help="d, dimension of the features.")
@click.option("--directions", type=int, required=True, help="k, random directions of each step.")
@click.option("--records", type=int, required=True, help="n, records of the data set.")
@click.option("--batch", type=int, required=True, help="b, records of each secret sample.")
@click.option("--steps", type=int, required=True, help="T, steps of the run.")
@click.option("--delta", type=float, required=True, help="Probability that the bound may fail with.")
@click.option("--bound", type=click.Choice(_BOUNDS), default="auto", show_default=True, help="How to price the run.")
@click.option("--epsilon", type=float, help="What the run may cost: gives the noise for it.")
@click.option("--sigma", type=float, help="Or the standard deviation of the noise on each projection: gives its cost.")
@format_option
def calibrate(*, bound: str, epsilon: float | None, sigma: float | None, delta: float, output: str, **run: int) -> None:
    """Noise of a run of noisy projections (DP-SWD, row by row) for a given epsilon, or the other way round."""
    if (epsilon is None) == (sigma is None):
        raise click.UsageError("give --epsilon for the noise, or --sigma for the cost")
    if sigma is None and epsilon is not None:
        sigma = calibrate_sigma(lambda sigma: _rows(sigma, **run), epsilon=epsilon, delta=delta, bound=Bound(bound))
    assert sigma is not None
    _show(sigma, _rows(sigma, **run), delta, Bound(bound), output)


def _rows(sigma: float, *, features: int, directions: int, records: int, batch: int, steps: int) -> RunEvent:
    part = RowProjections(feature_dimension=features, directions=directions, sigma=sigma)
    return RunEvent(step=StepEvent(records=records, batch=batch, parts=(part,)), steps=steps)


def _show(sigma: float, run: RunEvent, delta: float, bound: Bound, output: str) -> None:
    cost = epsilon_of(run, delta, bound)
    if output == "json":
        echo_json({"sigma": sigma, "epsilon": cost, "delta": delta, "bound": bound.value})
        return
    click.echo(f"sigma    {sigma:.6g}")
    click.echo(f"epsilon  {cost:.6g} at delta {delta:g} by {bound.value}")
