"""``dpswd-curator cluster``: sums over every record on several machines (docs/operator/cluster.md)."""

from __future__ import annotations

from pathlib import Path

import click

from dpswd.private_curator.cli.common import FILE, san_option
from dpswd.private_curator.observability import logs
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.certificates import make_cluster_members

_FOLDER = click.Path(path_type=Path, file_okay=False)
_certificates = click.option(
    "--certificates", required=True, type=_FOLDER, help="This member's folder: ca.crt, member.crt and member.key."
)


@click.group()
def cluster() -> None:
    """Several machines for sums over every record: certificates, the scheduler, the nodes."""


@cluster.command("certificates")
@click.option("--out", required=True, type=_FOLDER, help="Where the members' folders go; must not exist.")
@click.option("--node", "nodes", multiple=True, default=("node",), show_default=True, help="A node's name; repeat.")
@san_option
def certificates(out: Path, nodes: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Makes an authority for this cluster alone, and a folder for the scheduler, for the curator and for each node.

    The authority's key is thrown away: a new member means new folders for all.
    """
    members = make_cluster_members(out, nodes=nodes, names=names)
    click.echo(f"certificates for {', '.join(members)} in {out}; copy each folder to its machine and nowhere else")


@cluster.command("scheduler")
@click.option("--address", default="127.0.0.1:8786", show_default=True, help="host:port to listen on.")
@_certificates
def scheduler(address: str, certificates: Path) -> None:
    """Gives shards to nodes until SIGTERM; holds neither records nor keys."""
    from dpswd.private_curator.cluster.engine import schedule

    schedule(address, certificates)


@cluster.command("node")
@click.option("--settings", "file", required=True, type=FILE, help="A copy of the curator's curator.toml.")
@click.option("--scheduler", "address", required=True, help="tls://host:port of the scheduler.")
@click.option("--host", default=None, help="The interface or address under which the others reach this node.")
@_certificates
def node(file: Path, address: str, host: str | None, certificates: Path) -> None:
    """Computes shards from the records where they lie, in confined workers, until SIGTERM.

    Reads all records once to know that they are the curator's. Needs no ledger and no key of the curator's.
    """
    from dpswd.private_curator.cluster import node as serving

    chosen = configuration.load(file.resolve().parent)
    logs.configure(chosen.log)
    serving.serve(file.resolve().parent, chosen, scheduler=address, certificates=certificates, host=host)
