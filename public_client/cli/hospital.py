"""``describe``, ``plan`` and ``init``: everything before a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from public_client.cli.options import connect, curator_options, echo_json, format_option


@click.command()
@curator_options(required=True)
@format_option
def describe(address: str, credentials: Path, output: str) -> None:
    """What a curator offers, and what is left of the budgets. Free."""
    with connect(address, credentials) as curator:
        description = curator.describe()
    if output == "json":
        echo_json(description.to_json())
    else:
        click.echo(description)


@click.command()
@curator_options(required=True)
@click.option("--epsilon", type=float, required=True, help="What the run may cost.")
@click.option("--steps", type=int, default=None, help="T.  [default: by the recipe]")
@click.option("--batch", "batch_size", type=int, default=None, help="b.  [default: by the recipe]")
@click.option("--directions", type=int, default=200, show_default=True, help="k.")
@click.option("--release", type=click.Choice(["quantiles", "rows"]), default="quantiles", show_default=True)
@click.option(
    "--parameters",
    type=click.Choice(["none", "adapters", "all"]),
    default=None,
    help="What receives a sanitized gradient.  [default: by the release]",
)
@click.option("--features", "feature_dimension", type=int, default=None, help="d; with --adapted, shows the noise.")
@click.option("--adapted", "gradient_parameters", type=int, default=None, help="Number of adapted parameters.")
@click.option("--ask", is_flag=True, help="Asks the ledger whether it fits, with the ready network for these records.")
@format_option
def plan(address: str, credentials: Path, ask: bool, output: str, **wishes: Any) -> None:
    """What a run would be and cost. Spends nothing."""
    from public_client.plans.plan import plan_json

    with connect(address, credentials) as curator:
        if ask:
            from public_client.data.files import ready_network

            description = curator.describe()
            wishes["extractor"], _ = ready_network(description.record_shape, max(1, description.classes))
        made = curator.plan(**wishes)
    click.echo(plan_json(made) if output == "json" else made)


@click.command()
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Credentials directory.")
@format_option
def init(name: str, out: Path, output: str) -> None:
    """Makes a private key and a certificate request for NAME; the operator signs the request."""
    from public_client.curator.identity import make_identity

    request = make_identity(name, out)
    if output == "json":
        echo_json({"key": str(out / "client.key"), "request": str(request)})
    else:
        click.echo(f"{request}: send it to the curator's operator, who returns client.crt and ca.crt for {out}")
