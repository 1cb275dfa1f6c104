"""``dpswd-curator cert``: the curator's authority, and approving what clients ask for."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import click

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.cli.clients import credentials_options, hand_out, share_options
from dpswd.private_curator.cli.common import (
    FILE,
    fingerprint_option,
    format_option,
    home_option,
    ledger_command,
    reason_option,
    san_option,
    show,
)
from dpswd.private_curator.operator import acts
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError


@click.group()
def cert() -> None:
    """Certificates: the authority, clients' requests and renewals, expiry, withdrawal."""


@cert.command("init")
@home_option
@san_option
def init(home: HomeDirectory, names: tuple[str, ...]) -> None:
    """Makes the authority and the server's certificate of a home that has none; `init` does so for a new curator.

    For a home whose certificates were lost: every client then needs a new certificate (`cert approve --renew`).
    """
    home.authority.create(names=names, data_set=configuration.load(home.path).records.name)
    click.echo(f"new authority and server certificate for {' '.join(names)}")


@cert.command("renew-server")
@home_option
@san_option
def renew_server(home: HomeDirectory, names: tuple[str, ...]) -> None:
    """Makes a new server key and certificate; a running curator takes them after a restart."""
    home.authority.renew_server(names=names)
    click.echo(f"new server certificate for {' '.join(names)}; restart the curator")


@cert.command("approve")
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
    told: str | None,
    renew: bool,
) -> None:
    """Signs FILE: a new client's request (client.csr), or a client's renewal (client.renewal).

    A plain request proves nothing: the team tells its fingerprint over another way, and --fingerprint gives it here.
    A renewal is signed under the identity that it renews, which proves who asks. The certificate that it renews goes on
    counting until it expires, or `cert revoke` withdraws it.
    """
    if not file.is_file():
        raise SettingsError(f"{file} does not exist; the client makes it with `dpswd-client cert request` or `renew`")
    if told is None and sys.stdin.isatty() and file.read_bytes().lstrip().startswith(b"-----BEGIN"):
        told = str(click.prompt("The request's fingerprint, as the team told it over another way", err=True))
    issued, known = acts.approve_certificate(
        home, file.read_bytes(), days=days, epsilon=epsilon, delta=delta, renew=renew, told=told
    )
    title = f"Client {issued.name} has a further certificate" if known else f"Client {issued.name} added"
    hand_out(home, issued, None, out=out, title=title)


@ledger_command(cert, "revoke", click.argument("name"), click.argument("fingerprint"), reason_option)
def revoke(name: str, fingerprint: str, books: Ledger, reason: str) -> None:
    """Withdraws one certificate of NAME; its others go on. `client revoke` shuts the client out altogether."""
    books.revoke_certificate(name, fingerprint, reason=reason)
    click.echo(f"the certificate {fingerprint} of {name} is withdrawn; a running curator refuses its next call")


@cert.command("list")
@home_option
@format_option
def list_certificates(home: HomeDirectory) -> None:
    """Every certificate that counts, with its expiry."""
    with home.open_ledger() as ledger:
        issued = [(client, fingerprint) for client in ledger.clients() for fingerprint in client.fingerprints]
    rows = []
    for client, fingerprint in issued:
        expires = home.authority.expires(fingerprint)
        expired = expires is not None and expires < dt.datetime.now(dt.UTC)
        state = "revoked" if client.revoked else "expired" if expired else "valid"
        rows.append(
            {
                "name": client.name,
                "state": state if expires else f"{state}, expiry unknown",
                "expires": expires and expires.isoformat(),
                "fingerprint": fingerprint,
            }
        )
    show(rows, title="Certificates of clients")
