"""``settings``: what stands in dpswd-client.toml and the environment, explained."""

from __future__ import annotations

import click

from dpswd.public_client.cli.options import echo_json
from dpswd.public_client.settings import ClientSettings, load, settings_file
from dpswd.shared.configuration import explained, markdown


@click.command()
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="text for people, json for programs, markdown for docs/reference/settings.md.",
)
def settings(output: str) -> None:
    """Every setting: its value now, its default, unit and range, and what it means."""
    if output == "markdown":
        click.echo(markdown(ClientSettings))
        return
    rows = explained(ClientSettings, load())
    if output == "json":
        echo_json(rows)
        return
    absent = "" if settings_file().is_file() else " (not there)"
    click.echo(f"from {settings_file()}{absent} and the environment; --curator and --credentials override both")
    for row in rows:
        value = "none" if row["value"] is None else row["value"]
        facts = "; ".join(fact for fact in (f"default {row['default']}", row["unit"], row["allowed"]) if fact)
        click.echo(f"\n{row['name']} = {value}   [{facts}]\n  {row['description']}\n  {row['environment']}")
