"""``init`` and ``certificate``: the client's own key and certificate, from the first request to each renewal."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from dpswd.public_client.cli.options import CREDENTIALS_HELP, DIRECTORY, FILE, format_option, tell
from dpswd.public_client.curator.identity import Identity


@click.command()
@click.argument("name")
@click.option("--out", type=DIRECTORY, required=True, help="Credentials directory.")
@format_option
def init(name: str, out: Path, output: str) -> None:
    """Makes a private key and a certificate request for NAME; the operator signs the request."""
    from dpswd.public_client.curator.identity import make_identity
    from dpswd.shared.certificates import request_fingerprint

    request = make_identity(name, out)
    fingerprint = request_fingerprint(request.read_bytes())
    text = (
        f"{request}: send it to the curator's operator, who returns client.crt and ca.crt for {out}\n"
        f"fingerprint of the request: {fingerprint}\n"
        "tell it to the operator over another way, such as the telephone: approval asks for it"
    )
    tell(output, {"key": str(out / "client.key"), "request": str(request), "request_fingerprint": fingerprint}, text)


@click.command()
@click.option("--credentials", type=DIRECTORY, required=True, help=CREDENTIALS_HELP)
@click.option(
    "--renew",
    "renewing",
    is_flag=True,
    help="Makes a new key and a request that the present key signs, for the operator to approve; the present "
    "certificate goes on working. When it has expired, send client.csr instead.",
)
@click.option(
    "--install",
    "renewed",
    type=FILE,
    metavar="CLIENT.CRT",
    help="Puts the renewed certificate and its key in the place of the old pair, which is kept as *.previous.",
)
@format_option
def certificate(credentials: Path, renewing: bool, renewed: Path | None, output: str) -> None:
    """Name, expiry and fingerprint of your certificate; or renews it. Keys never leave this machine.

    Before there is a certificate: the fingerprint of the request.
    """
    from dpswd.public_client.curator.identity import CERTIFICATE, REQUEST, install, read_identity, renew
    from dpswd.shared.certificates import request_fingerprint

    if renewing and renewed is not None:
        raise click.UsageError("--renew and --install are two acts; between them the operator signs")
    request = credentials / REQUEST
    if renewing:
        path = renew(credentials)
        text = (
            f"{path}: send it to the curator's operator (dpswd-curator approve); with the client.crt that comes back: "
            f"dpswd-client certificate --install CLIENT.CRT --credentials {credentials}"
        )
        tell(output, {"renewal": str(path), "request": str(request)}, text)
    elif renewed is None and request.is_file() and not (credentials / CERTIFICATE).exists():
        digest = request_fingerprint(request.read_bytes())
        tell(output, {"request_fingerprint": digest}, f"no certificate yet; fingerprint of the request {digest}")
    else:
        _show(read_identity(credentials) if renewed is None else install(renewed, credentials), output)


def _show(identity: Identity, output: str) -> None:
    from dpswd.public_client.curator.identity import RENEW_BEFORE

    left = identity.expires - dt.datetime.now(dt.UTC)
    facts = {"name": identity.name, "fingerprint": identity.fingerprint, "expires": identity.expires.isoformat()}
    advice = "" if left > RENEW_BEFORE else "; renew it now with `dpswd-client certificate --renew`"
    text = f"{identity.name}, expires {identity.expires:%Y-%m-%d} ({left.days} days){advice}"
    tell(output, facts | {"days_left": left.days}, f"{text}\nfingerprint {identity.fingerprint}")
