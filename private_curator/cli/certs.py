"""``dpswd-curator cert``: the curator's authority, and approving what clients ask for."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import click

from private_curator.cli.budgets import budget_of
from private_curator.cli.clients import hand_out
from private_curator.cli.common import format_option, home_option, reason_option, show
from private_curator.ledger import Ledger
from private_curator.operator.home_directory import Home
from private_curator.serving import renewals
from private_curator.serving.certificates import DEFAULT_NAMES, LEAF_DAYS
from private_curator.serving.renewals import Asked
from private_curator.settings import tree as configuration
from shared.errors import CredentialsInvalid, SettingsError

_san_option = click.option(
    "--san", "names", multiple=True, help="Name or address of the server; repeat.  [default: localhost 127.0.0.1]"
)


@click.group()
def cert() -> None:
    """Certificates: the authority, clients' requests and renewals, expiry, withdrawal."""


@cert.command("init")
@home_option
@_san_option
def init(home: Home, names: tuple[str, ...]) -> None:
    """Makes the authority and the server's certificate of a home that has none; `init` does so for a new curator.

    For a home whose certificates were lost: every client then needs a new certificate (`cert approve --renew`).
    """
    home.authority.create(names=names or DEFAULT_NAMES, data_set=configuration.load(home.path).records.name)
    click.echo(f"new authority and server certificate for {' '.join(names or DEFAULT_NAMES)}")


@cert.command("renew-server")
@home_option
@_san_option
def renew_server(home: Home, names: tuple[str, ...]) -> None:
    """Makes a new server key and certificate; a running curator takes them after a restart."""
    home.authority.renew_server(names=names or DEFAULT_NAMES)
    click.echo(f"new server certificate for {' '.join(names or DEFAULT_NAMES)}; restart the curator")


@cert.command("approve")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@home_option
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where the credentials go."
)
@click.option("--days", type=click.IntRange(1, 3650), default=LEAF_DAYS, show_default=True, help="Validity.")
@click.option("--epsilon", type=float, default=None, help="A new client's own share of the budget.")
@click.option("--delta", type=float, default=None, help="The share's delta.  [default: the data set's]")
@click.option("--renew", is_flag=True, help="A plain request is for a client that exists: you have made sure who asks.")
@format_option
def approve(
    file: Path,
    home: Home,
    out: Path,
    days: int,
    epsilon: float | None,
    delta: float | None,
    renew: bool,
    output: str,
) -> None:
    """Signs FILE: a new client's request (client.csr), or a client's renewal (client.renewal).

    A renewal is signed under the identity that it renews, which proves who asks. The certificate that it renews goes on
    counting until it expires, or `cert revoke` withdraws it.
    """
    if not file.is_file():
        raise SettingsError(f"{file} does not exist; the client makes it with `dpswd-client cert request` or `renew`")
    if delta is not None and epsilon is None:
        raise SettingsError("--delta without --epsilon sets no share; give both, or neither")
    asked = renewals.read(file.read_bytes(), home.authority, now=dt.datetime.now(dt.UTC))
    with home.open_ledger() as ledger:
        known = _is_known(ledger, asked, renew=renew)
        if known and epsilon is not None:
            raise SettingsError(f"{asked.name} is a client already; change its share with `dpswd-curator client share`")
        share = None if epsilon is None else budget_of(ledger, epsilon=epsilon, delta=delta)
        issued = home.authority.sign_request(asked.request, name=asked.name, days=days)
        if known:
            ledger.add_certificate(asked.name, issued.fingerprint)
        else:
            ledger.add_client(asked.name, issued.fingerprint, share)
    title = f"Client {asked.name} has a further certificate" if known else f"Client {asked.name} added"
    hand_out(home, issued, None, out=out, output=output, title=title)


@cert.command("revoke")
@click.argument("name")
@click.argument("fingerprint")
@home_option
@reason_option
def revoke(name: str, fingerprint: str, home: Home, reason: str) -> None:
    """Withdraws one certificate of NAME; its others go on. `client revoke` shuts the client out altogether."""
    with home.open_ledger() as ledger:
        ledger.revoke_certificate(name, fingerprint, reason=reason)
    click.echo(f"the certificate {fingerprint} of {name} is withdrawn; a running curator refuses its next call")


@cert.command("list")
@home_option
@format_option
def list_certificates(home: Home, output: str) -> None:
    """Every certificate that counts, with its expiry."""
    rows: list[dict[str, Any]] = []
    now = dt.datetime.now(dt.UTC)
    with home.open_ledger() as ledger:
        for client in ledger.clients():
            for fingerprint in client.fingerprints:
                expires = home.authority.expires(fingerprint)
                state = "revoked" if client.revoked else "expired" if expires and expires < now else "valid"
                rows.append(
                    {
                        "name": client.name,
                        "state": state if expires else f"{state}, expiry unknown",
                        "expires": None if expires is None else expires.isoformat(),
                        "fingerprint": fingerprint,
                    }
                )
    show(rows, output, title="Certificates of clients")


def _is_known(ledger: Ledger, asked: Asked, *, renew: bool) -> bool:
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
