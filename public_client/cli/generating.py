"""``generate``: labelled records that nobody has, drawn from a generator that was fitted to noised releases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from public_client.cli.options import (
    CREDENTIALS_HELP,
    DIRECTORY,
    FILE,
    connect,
    echo_json,
    format_option,
    from_settings,
    key_values,
    tell,
)
from shared.errors import SettingsError, rounded

if TYPE_CHECKING:
    from public_client.curator.stub import Curator
    from public_client.generation import GenerationMethod


@click.command()
@click.option("--method", "name", help="One of --list-methods.  [default: the first of them]")
@click.option(
    "--setting", "settings", multiple=True, metavar="KEY=VALUE", help="One of the method's own; repeat it for several."
)
@click.option("--list-methods", is_flag=True, help="Prints the methods with their settings, and ends.")
@click.option("--curator", "address", help="The curator's host:port.  [setting: curator.address]")
@click.option("--credentials", type=DIRECTORY, help=f"{CREDENTIALS_HELP}  [setting: curator.credentials]")
@click.option("--epsilon", type=float, help="What the whole run may cost.")
@click.option("--steps", type=int, help="T; by default the method's.")
@click.option("--batch", type=int, help="Records of each secret sample; by default the method's.")
@click.option("--plan", "only_plan", is_flag=True, help="Only says what it would release and cost; spends nothing.")
@click.option(
    "--dry-run",
    "description",
    type=FILE,
    help="Asks no server and spends nothing: a mock of the curator that this file of `describe --format json` tells.",
)
@click.option("--from", "given", type=FILE, help="Draws from this generator's file; asks nobody, costs nothing.")
@click.option("--rows", type=int, default=0, help="Also draws so many labelled records; with --records.")
@click.option("--records", type=FILE, help="Where the drawn records are written: an .npz with x and y.")
@click.option("--out", type=FILE, help="The generator's file.")
@click.option("--purpose", default="", help="Why, in one line; kept in the generator's file and its data card.")
@click.option(
    "--directory",
    type=DIRECTORY,
    help="Keeps requests, answers and receipts; repeated with the same directory, the run is not charged again.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the client's random choices.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@format_option
def generate(
    name: str | None,
    settings: tuple[str, ...],
    list_methods: bool,
    address: str | None,
    credentials: Path | None,
    epsilon: float | None,
    steps: int | None,
    batch: int | None,
    only_plan: bool,
    description: Path | None,
    given: Path | None,
    rows: int,
    records: Path | None,
    out: Path | None,
    purpose: str,
    directory: Path | None,
    seed: int,
    device: str,
    output: str,
) -> None:
    """Fits a generator of labelled records to a hospital's noised releases, and draws from it.

    The run is charged once, when it opens. Rows are free: draw more from the file (--from) whenever they are needed.
    """
    from public_client.generation.generating import generate as fitted
    from public_client.generation.generating import plan_generator
    from public_client.generation.generator import load_generator

    if list_methods:
        _list_methods()
        return
    _check(rows, records, out, given)
    written = []
    if given is not None:
        generator = load_generator(given)
    else:
        if epsilon is None:
            raise click.UsageError("Missing option '--epsilon'; or draw from a file with '--from'")
        if out is None and not only_plan:
            raise click.UsageError("Missing option '--out', the generator's file; or only ask with '--plan'")
        method = _method(name, settings)
        with _curator(address, credentials, description, directory) as curator:
            plan, quote = plan_generator(curator, method, epsilon=epsilon, steps=steps, batch_size=batch)
            if only_plan:
                counted = f"  {'ledger':<9} counts epsilon {rounded(quote.epsilon, up=True)} for it alone"
                known = {"quote": {"epsilon": quote.epsilon, "fits": quote.fits}}
                tell(output, plan.to_json() | known, f"{plan}\n{counted}")
                return
            if output == "text":
                click.echo(plan, err=True)
            generator = fitted(
                curator,
                plan,
                seed=seed,
                device=device,
                directory=directory,
                progress=output == "text",
                purpose=purpose,
            )
        assert out is not None, "checked above"
        generator.save(out)
        written.append(out)
    if records is not None:
        import numpy as np

        x, y = generator.sample(rows, seed=seed)
        np.savez_compressed(records, x=x.numpy(), y=y.numpy())
        written.append(records)
    if output == "json":
        echo_json({"facts": dict(generator.facts), "files": [str(file) for file in written], "rows": rows})
        return
    cost = generator.facts.get("guarantee", {})
    if description is not None:
        click.echo("DRY RUN: no server was asked and nothing was spent; the records were made, so it draws nonsense.")
    if cost:
        click.echo(
            f"epsilon {rounded(cost['epsilon'], up=True)} at delta {cost['delta']:g}, {cost['neighbours']}: "
            f"{generator.facts['releases']}"
        )
    for file in written:
        click.echo(f"wrote {file}")


def _check(rows: int, records: Path | None, out: Path | None, given: Path | None) -> None:
    """Finds what would end the command after the budget is spent.

    Raises:
        SettingsError: files cannot be written, or options do not belong together.
    """
    if (records is None) != (rows == 0):
        raise SettingsError("--rows and --records belong together: how many records, and the file that gets them")
    if rows < 0:
        raise SettingsError(f"--rows is {rows}; give a positive number")
    if given is not None and out is not None:
        raise SettingsError("--from draws from a file that exists; leave out --out, which writes a new one")
    if records is not None and records.suffix != ".npz":
        raise SettingsError(f"{records} must end in .npz")
    for file in (out, records):
        if file is not None and file.exists():
            raise SettingsError(f"{file} exists, and nothing is ever overwritten; choose another file")
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)


def _method(name: str | None, settings: tuple[str, ...]) -> GenerationMethod:
    """The method by its name, with its settings.

    Raises:
        SettingsError: there is none of this name.
        InvalidValue: a setting is unknown or out of range.
    """
    from public_client.generation import GENERATION_METHODS

    chosen = next(iter(GENERATION_METHODS)) if name is None else name
    if chosen not in GENERATION_METHODS:
        raise SettingsError(f"there is no method {chosen!r}; allowed: {', '.join(GENERATION_METHODS)}")
    return GENERATION_METHODS[chosen].from_json({"name": chosen} | key_values("--setting", settings))


def _list_methods() -> None:
    from dataclasses import fields

    from public_client.generation import GENERATION_METHODS

    for name, method in GENERATION_METHODS.items():
        told = (method.__doc__ or "").splitlines()[0]
        click.echo(f"{name:<12} {told}")
        own = ", ".join(f"{field.name}={field.default}" for field in fields(method))
        if own:
            click.echo(f"{'':<12} settings: {own}")


@contextmanager
def _curator(
    address: str | None, credentials: Path | None, description: Path | None, directory: Path | None
) -> Iterator[Curator]:
    """The curator that is asked; a mock of a described one in a dry run."""
    if description is not None:
        from public_client.curator.description import Description
        from public_client.testing.mock import MockCurator

        try:
            told: Any = json.loads(description.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"{description} cannot be read: {error}") from error
        yield MockCurator(Description.from_json(told))
        return
    where = from_settings("address", "--curator", address)
    keys = from_settings("credentials", "--credentials", credentials)
    with connect(where, keys, run_directory=directory) as hospital:
        yield hospital.curator
