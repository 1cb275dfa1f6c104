"""``cert``: the client's own key and certificate, from the first request to each renewal."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from dpswd.public_client.cli.hospital import init
from dpswd.public_client.cli.options import CREDENTIALS_HELP, DIRECTORY, FILE, format_option, tell
from dpswd.public_client.curator.identity import Identity

_credentials_option = click.option("--credentials", type=DIRECTORY, required=True, help=CREDENTIALS_HELP)


@click.group()
def cert() -> None:
    """The client's key and certificate; keys never leave this machine."""


cert.add_command(init, "request")


@cert.command("renew")
@_credentials_option
@format_option
def renew(credentials: Path, output: str) -> None:
    """Makes a new key and a request that the present key signs, for the operator to approve.

    The present certificate goes on working. When it has expired, send client.csr instead: the operator then has to make
    sure who asks.
    """
    from dpswd.public_client.curator.identity import REQUEST, renew

    path = renew(credentials)
    text = (
        f"{path}: send it to the curator's operator (dpswd-curator cert approve); with the client.crt that comes back: "
        f"dpswd-client cert install CLIENT.CRT --credentials {credentials}"
    )
    tell(output, {"renewal": str(path), "request": str(credentials / REQUEST)}, text)


@cert.command("install")
@click.argument("certificate", type=FILE)
@_credentials_option
@format_option
def install(certificate: Path, credentials: Path, output: str) -> None:
    """Puts the renewed CERTIFICATE and its key in the place of the old pair, which is kept as *.previous."""
    from dpswd.public_client.curator.identity import install

    _show(install(certificate, credentials), output)


@cert.command("show")
@_credentials_option
@format_option
def show(credentials: Path, output: str) -> None:
    """Name, expiry and fingerprint of the certificate; before there is one, the fingerprint of the request."""
    from dpswd.public_client.curator.identity import CERTIFICATE, REQUEST, read_identity
    from dpswd.shared.certificates import request_fingerprint

    request = credentials / REQUEST
    if request.is_file() and not (credentials / CERTIFICATE).exists():
        told = request_fingerprint(request.read_bytes())
        tell(output, {"request_fingerprint": told}, f"no certificate yet; fingerprint of the request {told}")
        return
    _show(read_identity(credentials), output)


def _show(identity: Identity, output: str) -> None:
    from dpswd.public_client.curator.identity import RENEW_BEFORE

    left = identity.expires - dt.datetime.now(dt.UTC)
    known = {"name": identity.name, "fingerprint": identity.fingerprint, "expires": identity.expires.isoformat()}
    advice = "" if left > RENEW_BEFORE else "; renew it now with `dpswd-client cert renew`"
    text = f"{identity.name}, expires {identity.expires:%Y-%m-%d} ({left.days} days){advice}"
    tell(output, known | {"days_left": left.days}, f"{text}\nfingerprint {identity.fingerprint}")
