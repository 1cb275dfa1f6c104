"""``dpswd-curator cert``: the curator's authority, and approving what clients ask for."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from private_curator.cli.budgets import share_of
from private_curator.cli.clients import credentials_options, hand_out, share_options
from private_curator.cli.common import FILE, format_option, home_option, ledger_command, reason_option, san_option, show
from private_curator.ledger.ledger import Ledger
from private_curator.serving import renewals
from private_curator.serving.renewals import SigningRequest
from private_curator.settings import tree as configuration
from private_curator.storage.home_directory import HomeDirectory
from shared.errors import CredentialsInvalid, SettingsError


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
@click.option("--renew", is_flag=True, help="A plain request is for a client that exists: you have made sure who asks.")
@format_option
def approve(
    file: Path, home: HomeDirectory, out: Path, days: int, epsilon: float | None, delta: float | None, renew: bool
) -> None:
    """Signs FILE: a new client's request (client.csr), or a client's renewal (client.renewal).

    A renewal is signed under the identity that it renews, which proves who asks. The certificate that it renews goes on
    counting until it expires, or `cert revoke` withdraws it.
    """
    if not file.is_file():
        raise SettingsError(f"{file} does not exist; the client makes it with `dpswd-client cert request` or `renew`")
    asked = renewals.read(file.read_bytes(), home.authority, now=dt.datetime.now(dt.UTC))
    with home.open_ledger() as ledger:
        known = _is_known(ledger, asked, renew=renew)
        if known and epsilon is not None:
            raise SettingsError(f"{asked.name} is a client already; change its share with `dpswd-curator client share`")
        share = share_of(ledger, epsilon=epsilon, delta=delta)
        issued = home.authority.sign_request(asked.request, name=asked.name, days=days)
        if known:
            ledger.add_certificate(asked.name, issued.fingerprint)
        else:
            ledger.add_client(asked.name, issued.fingerprint, share)
    title = f"Client {asked.name} has a further certificate" if known else f"Client {asked.name} added"
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


def _is_known(ledger: Ledger, asked: SigningRequest, *, renew: bool) -> bool:
    """Whether the request is for a client that exists, and may be granted.

    Raises:
        CredentialsInvalid: the old certificate of a renewal does not count, or a plain request asks for a known name.
        SettingsError: ``--renew`` for a client that does not exist.
    """
    client = next((known for known in ledger.clients() if known.name == asked.name), None)
    if asked.proven_by is not None:
        if client is None or client.revoked or asked.proven_by not in client.fingerprints:
            raise CredentialsInvalid(
                f"the certificate that {asked.name!r} renews does not count here: it was never added, or was withdrawn"
            )
        return True
    if client is None:
        if renew:
            raise SettingsError(f"there is no client {asked.name!r} to renew; leave --renew out to add it")
        return False
    if not renew:
        raise CredentialsInvalid(
            f"{asked.name!r} is a client already, and a plain request does not prove who made it; ask for a renewal "
            "(`dpswd-client cert renew`), or make sure who asks and give --renew"
        )
    return True
