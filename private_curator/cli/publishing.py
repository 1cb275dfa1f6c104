"""``dpswd-curator describe`` and ``publish``: a hospital that nobody can connect to, and its releases as files."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpswd.private_curator.cli.common import FILE, home_option
from dpswd.private_curator.cli.showing import chosen_format, format_option, show
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError, rounded
from dpswd.shared.files import write_public

if TYPE_CHECKING:
    from dpswd.private_curator.operator.publishing import Preview, Publishing

_client_option = click.option("--client", required=True, help="The registered name that is charged.")


@click.command()
@home_option
@_client_option
@click.option("--out", type=FILE, help="[default: standard output]")
def describe(home: HomeDirectory, client: str, out: Path | None) -> None:
    """What `dpswd-client describe` would be told, as JSON: a team prepares its proposal with it. Spends nothing."""
    from dpswd.private_curator.operator.publishing import description_json
    from dpswd.private_curator.serving.server import CuratorServer
    from dpswd.shared.core.wire.v1 import curator_pb2 as pb

    if out is not None and out.exists():
        raise SettingsError(f"{out} exists, and nothing is ever overwritten; choose another file")
    with CuratorServer(home, configuration.load(home.path)) as server:
        description = description_json(server.service.ask("Describe", pb.DescribeRequest(), client=client))
    text = json.dumps(description, indent=1, sort_keys=True)
    if out is None:
        click.echo(text)
        return
    write_public(out, f"{text}\n".encode())
    click.echo(f"described in {out}")


@click.command()
@click.argument("proposal", type=FILE)
@home_option
@_client_option
@click.option("--purpose", required=True, help="Why, in one line; it stands in the file.")
@click.option("--out", required=True, type=FILE, help="The signed file.")
@click.option("--yes", is_flag=True, help="Charges without asking.")
@format_option
def publish(proposal: Path, home: HomeDirectory, client: str, purpose: str, out: Path, yes: bool) -> None:
    """Releases what PROPOSAL asks, once, as one signed file for any number of readers. Needs no network.

    Shows first what will be released and charged. A repeat of the command, after a crash too, costs nothing and gives
    the same file.
    """
    from dpswd.private_curator.operator.publishing import Publishing, check_out, released, write_out
    from dpswd.shared.protocol.publications import Proposal

    if chosen_format() == "json" and not yes:
        raise click.UsageError("--format json shows no preview to confirm; give --yes as well")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold records and keys
    asked = Publishing(home, Proposal.read(proposal), client)
    if check_out(out, asked.read_copy(), purpose=purpose):
        click.echo(f"{out} is there already; nothing was charged")
        return
    made, charged = released(
        asked, purpose=purpose, agreed=lambda preview: _confirm(preview, asked, purpose=purpose, confirmed=yes)
    )
    write_out(out, made)
    show(
        {
            "file": str(out),
            "alone": made.message.run.epsilon,
            "delta": made.message.description.data_set_budget.delta,
            "charged_now": charged,
            "run": made.message.run.run_id,
            "ledger_public_key": made.message.description.ledger_public_key.hex(),
        },
        title="Published; who reads it needs the ledger's public key over another way",
    )


def _confirm(preview: Preview, asked: Publishing, *, purpose: str, confirmed: bool) -> None:
    """Shows what is about to be released, and waits for the operator's word; what does not fit is refused later."""
    from dpswd.private_curator.operator.publishing import CONFIRMATION

    if chosen_format() == "text":
        share = preview.adds_to_share
        rows = {
            "everybody will read": f"{preview.releases}, of all {preview.records} records",
            "epsilon alone": f"{rounded(preview.epsilon, up=True)} at delta {preview.delta:g}",
            "adds to the data set": rounded(preview.adds, up=True),
            **({} if share is None else {f"adds to {asked.client}'s share": rounded(share, up=True)}),
            "epsilon that the team expected": rounded(preview.expected, up=True),
            "spent so far, by all": rounded(preview.spent, up=True),
            f"left to {asked.client} now": rounded(preview.remaining, up=False),
            f"left to {asked.client} afterwards": rounded(preview.afterwards, up=False),
            "fits": preview.fits,
            "charged to": asked.client,
            "purpose": purpose,
            "the team's words": asked.proposal.purpose,
        }
        show(rows, title="What will be released, to any number of readers, and what it costs")
    if preview.fits and not confirmed:
        word = click.prompt(f"Nothing is ever given back. Type {CONFIRMATION} to charge and release it", err=True)
        if word.strip() != CONFIRMATION:
            raise click.Abort
