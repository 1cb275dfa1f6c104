"""``dpswd-curator certificates`` and ``approve``: the curator's authority, and signing what clients ask for."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import click

from dpswd.private_curator.cli.clients import credentials_options, hand_out, share_options
from dpswd.private_curator.cli.common import FILE, chosen_act, fingerprint_option, home_option, san_option
from dpswd.private_curator.cli.showing import format_option, show, table_options
from dpswd.private_curator.operator import acts
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError


@click.command()
@click.argument("file", type=FILE)
@home_option
@credentials_options
@share_options
@fingerprint_option
@click.option("--renew", is_flag=True, help="A plain request is for a client that exists: you have made sure who asks.")
@format_option
def approve(
    file: Path,
    home: HomeDirectory,
    out: Path,
    days: int,
    epsilon: float | None,
    delta: float | None,
    replace: bool,
    fingerprint: str | None,
    renew: bool,
) -> None:
    """Signs FILE: a new client's request (client.csr), or a client's renewal (client.renewal).

    A plain request proves nothing: the team tells its fingerprint over another way, and --fingerprint gives it here.
    A renewal is signed under the identity that it renews, which proves who asks. The certificate that it renews goes on
    counting until it expires, is withdrawn (`clients NAME --revoke-certificate`), or with --replace at once no more.
    """
    if not file.is_file():
        raise SettingsError(f"{file} does not exist; the client makes it with `dpswd-client init`, or `certificate`")
    if fingerprint is None and sys.stdin.isatty() and file.read_bytes().lstrip().startswith(b"-----BEGIN"):
        fingerprint = str(click.prompt("The request's fingerprint, as the team told it over another way", err=True))
    issued, renewed = acts.approve_certificate(
        home,
        file.read_bytes(),
        days=days,
        epsilon=epsilon,
        delta=delta,
        renew=renew,
        replace=replace,
        fingerprint=fingerprint,
    )
    title = f"Client {issued.name} has a further certificate" if renewed else f"Client {issued.name} added"
    hand_out(home, issued, None, out=out, title=title)


@click.command()
@home_option
@click.option("--renew-server", is_flag=True, help="Makes a new server key and certificate; restart the curator then.")
@click.option(
    "--make",
    is_flag=True,
    help="Makes the authority and the server's certificate anew where they were lost: every client then needs a new "
    "certificate (`approve --renew`).",
)
@click.option("--rotate-ledger-key", "reason", metavar="REASON", help="Lets a new key sign the ledger; clients follow.")
@san_option
@table_options
def certificates(
    home: HomeDirectory, renew_server: bool, make: bool, reason: str | None, names: tuple[str, ...]
) -> None:
    """Shows every client's certificate that counts, with its expiry; or makes the curator's own, and its keys."""
    if chosen_act(renew_server=renew_server, make=make, rotate_ledger_key=reason) is None:
        _show(home)
        return
    home.acting.propose()
    if reason is not None:
        click.echo(f"{home.rotate_ledger_key(reason=reason)} signs the ledger now: keep it safe, and make a backup")
    elif make:
        home.authority.create(names=names, data_set=configuration.load(home.path).records.name)
        click.echo(f"new authority and server certificate for {' '.join(names)}")
    else:
        home.authority.renew_server(names=names)
        click.echo(f"new server certificate for {' '.join(names)}; restart the curator")


def _show(home: HomeDirectory) -> None:
    rows = []
    for client in home.read_ledger().books.clients.values():
        for fingerprint in client.fingerprints:
            expires = home.authority.expires(fingerprint)
            expired = expires is not None and expires < dt.datetime.now(dt.UTC)
            state = "revoked" if client.revoked else "expired" if expired else "valid"
            rows.append({
                "name": client.name, "state": state if expires else f"{state}, expiry unknown",
                "expires": expires and expires.isoformat(), "fingerprint": fingerprint,
            })  # fmt: skip
    show(rows, title="Certificates of clients")
