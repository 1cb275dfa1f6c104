"""``generate``: labelled records that nobody has, drawn from a generator that was fitted to noised releases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpswd.public_client.cli.options import (
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
from dpswd.shared.core.errors import SettingsError, rounded

if TYPE_CHECKING:
    from dpswd.public_client.curator.stub import Curator
    from dpswd.public_client.generation import GenerationMethod, Generator


@click.command()
@click.option("--method", "name", help="One of --list-methods.  [default: the first of them; tabular with --schema]")
@click.option(
    "--setting", "settings", multiple=True, metavar="KEY=VALUE", help="One of the method's own; repeat it for several."
)
@click.option("--schema", type=FILE, help="The public columns of a table, as JSON; for --method tabular.")
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
@click.option(
    "--records", type=FILE, help="Where they are written: .npz, .parquet, or a folder of images; with a card."
)
@click.option("--grid", type=FILE, help="A PNG with ten drawn images of each class; redrawn while a long fit goes on.")
@click.option("--report", type=FILE, help="An HTML page: samples, what was released beside what is drawn, price.")
@click.option("--out", type=FILE, help="The generator's file.")
@click.option("--purpose", default="", help="Why, in one line; in ledger, receipts, file, data card.")
@click.option(
    "--directory",
    type=DIRECTORY,
    help="Keeps requests, answers and receipts; repeated with the same directory, the run is not charged again.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the client's random choices.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@format_option
def generate(
    name: str | None, settings: tuple[str, ...], schema: Path | None, list_methods: bool, address: str | None,
    credentials: Path | None, epsilon: float | None, steps: int | None, batch: int | None, only_plan: bool,
    description: Path | None, given: Path | None, rows: int, records: Path | None, grid: Path | None, report: Path |
    None, out: Path | None, purpose: str, directory: Path | None, seed: int, device: str, output: str,
) -> None:  # fmt: skip
    """Fits a generator of labelled records to a hospital's noised releases, and draws from it.

    The run is charged once, when it opens. Rows are free: draw more from the file (--from) whenever they are needed.
    """
    if list_methods:
        _list_methods()
        return
    from dpswd.public_client.generation.generating import generate as fitted
    from dpswd.public_client.generation.generating import plan_generator
    from dpswd.public_client.generation.generator import load_generator
    from dpswd.public_client.generation.pictures import write_sheet

    files = _Files(rows, records, grid, report, seed)
    files.check(out, given)
    if given is not None:
        _tell(load_generator(given, device=device), files, [], output)
        return
    if epsilon is None:
        raise click.UsageError("Missing option '--epsilon'; or draw from a file with '--from'")
    if out is None and not only_plan:
        raise click.UsageError("Missing option '--out', the generator's file; or only ask with '--plan'")
    method = _method(name, settings, schema)
    with _curator(address, credentials, description, directory, purpose) as curator:
        plan, quote = plan_generator(curator, method, epsilon=epsilon, steps=steps, batch_size=batch)
        if out is None or only_plan:
            counted = f"  {'ledger':<9} counts epsilon {rounded(quote.epsilon, up=True)} alone"
            price = {"quote": {"epsilon": quote.epsilon, "fits": quote.fits}}
            tell(output, plan.to_json() | price, f"{plan}\n{counted}")
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
            preview=None if grid is None else lambda shown: write_sheet(shown, grid, seed=seed),
        )
    generator.save(out)
    if description is not None and output == "text":
        click.echo("DRY RUN: no server was asked and nothing was spent; the records were made, so it draws nonsense.")
    _tell(generator, files, [out], output)


@dataclass(frozen=True)
class _Files:
    """What is drawn and written, besides the generator."""

    rows: int
    records: Path | None
    grid: Path | None
    report: Path | None
    seed: int

    def check(self, out: Path | None, given: Path | None) -> None:
        """Finds what would end the command after the budget is spent.

        Raises:
            SettingsError: files cannot be written, or options do not belong together.
        """
        if (self.records is None) != (self.rows == 0):
            raise SettingsError("--rows and --records belong together: how many records, and the file that gets them")
        if self.rows < 0:
            raise SettingsError(f"--rows is {self.rows}; give a positive number")
        if given is not None and out is not None:
            raise SettingsError("--from draws from a file that exists; leave out --out, which writes a new one")
        if self.records is not None:
            from dpswd.public_client.generation.export import check_export

            check_export(self.records)
        for file in (out, self.records, self.grid, self.report):
            if file is not None and file.exists():
                raise SettingsError(f"{file} exists, and nothing is ever overwritten; choose another file")
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)

    def write(self, generator: Generator) -> list[Path]:
        """Writes what was asked for, and says which files."""
        from dpswd.public_client.generation.export import export
        from dpswd.public_client.generation.pictures import write_sheet
        from dpswd.public_client.generation.report import write_report

        written = []
        if self.records is not None:
            written += export(generator, self.records, rows=self.rows, seed=self.seed)
        if self.grid is not None:
            write_sheet(generator, self.grid, seed=self.seed)
            written.append(self.grid)
        if self.report is not None:
            write_report(generator, self.report, seed=self.seed)
            written.append(self.report)
        return written


def _tell(generator: Generator, files: _Files, written: list[Path], output: str) -> None:
    """Writes the files and says what there is."""
    written = [*written, *files.write(generator)]
    if output == "json":
        facts = {"facts": dict(generator.facts), "files": [str(file) for file in written], "rows": files.rows}
        echo_json(facts)
        return
    if cost := generator.facts.get("guarantee"):
        like = generator.facts["data_set"]
        click.echo(f"You have a generator of records like {like}'s; what is drawn from it costs nothing more.")
        text = f"epsilon {rounded(cost['epsilon'], up=True)} at delta {cost['delta']:g}, {cost['neighbours']}"
        click.echo(f"{text}: {generator.facts['releases']}")
    else:
        click.echo("This generator states no guarantee: treat what it draws as private.")
    for file in written:
        click.echo(f"wrote {file}")


def _method(name: str | None, settings: tuple[str, ...], schema: Path | None) -> GenerationMethod:
    """The method by its name, with its settings.

    Raises:
        SettingsError: there is none of this name.
        InvalidValue: a setting is unknown or out of range.
    """
    from dpswd.public_client.generation import Schema, Tabular, generation_kinds

    kinds = generation_kinds()
    first = next(iter(kinds)) if schema is None else Tabular.name
    chosen = first if name is None else name
    if chosen not in kinds:
        raise SettingsError(f"there is no method {chosen!r}; allowed: {', '.join(kinds)}")
    own = {"name": chosen} | key_values("--setting", settings)
    if schema is not None:
        if chosen != Tabular.name:
            raise SettingsError(f"--schema is of --method {Tabular.name}; {chosen} takes none")
        own["schema"] = Schema.read(schema).to_json()
    return kinds[chosen].from_json(own)


def _list_methods() -> None:
    from dataclasses import fields

    from dpswd.public_client.generation import generation_kinds

    for name, method in generation_kinds().items():
        summary = (method.__doc__ or "").splitlines()[0]
        click.echo(f"{name:<12} {summary}")
        own = ", ".join(f"{field.name}={field.default}" for field in fields(method))
        if own:
            click.echo(f"{'':<12} settings: {own}")


@contextmanager
def _curator(
    address: str | None, credentials: Path | None, description: Path | None, directory: Path | None, purpose: str
) -> Iterator[Curator]:
    """The curator that is asked; a mock of a described one in a dry run."""
    if description is not None:
        from dpswd.public_client.curator.description import Description
        from dpswd.public_client.testing.mock import MockCurator

        try:
            values: Any = json.loads(description.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"{description} cannot be read: {error}") from error
        mock = MockCurator(Description.from_json(values))
        mock.purpose = purpose
        yield mock
        return
    where = from_settings("address", "--curator", address)
    keys = from_settings("credentials", "--credentials", credentials)
    with connect(where, keys, run_directory=directory, purpose=purpose) as hospital:
        yield hospital.curator
