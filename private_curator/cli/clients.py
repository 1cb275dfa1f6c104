"""``dpswd-curator client``: who may connect, and how much each may spend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.cli.budgets import share_of
from dpswd.private_curator.cli.common import (
    FILE,
    explain,
    fingerprint_option,
    format_option,
    home_option,
    ledger_command,
    reason_option,
    record_command,
    show,
)
from dpswd.private_curator.operator.acts import budget_of, check_told
from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER
from dpswd.private_curator.storage.certificates import LEAF_DAYS, ClientCertificate, check_no_key
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.files import write_public

if TYPE_CHECKING:
    from dpswd.private_curator.operator.record import Record

LEDGER_KEY_FILE = "ledger.pub"
"""The ledger's public key, 64 hexadecimal digits: the client holds receipts and the curator against it."""

_name = click.argument("name")
_request_option = click.option(
    "--request",
    type=FILE,
    help="The client's certificate request: its key stays with it. Without one the key is made here, for a first "
    "try on one machine.",
)
_cap_option = click.option("--epsilon", type=click.FloatRange(min=0), required=True, help="Of one day; 0 for no cap.")
_share_delta_option = click.option("--delta", type=float, help="The share's delta.  [default: the data set's]")
_share_epsilon_option = click.option("--epsilon", type=float, required=True, help="The client's share of the budget.")


def credentials_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--out`` and ``--days`` of the credentials that a client gets."""
    days = click.option("--days", type=click.IntRange(1, 3650), default=LEAF_DAYS, show_default=True, help="Validity.")
    directory = click.Path(path_type=Path, file_okay=False)
    return click.option("--out", required=True, type=directory, help="Where the credentials go.")(days(command))


def share_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--epsilon`` and ``--delta`` of a new client's own share."""
    epsilon = click.option("--epsilon", type=float, help="A new client's own share of the budget.")
    return epsilon(_share_delta_option(command))


@click.group()
def client() -> None:
    """Clients: certificates and shares of the budget."""


@client.command("add")
@_name
@home_option
@credentials_options
@_request_option
@fingerprint_option
@share_options
@format_option
def add(
    name: str,
    home: HomeDirectory,
    out: Path,
    request: Path | None,
    told: str | None,
    days: int,
    epsilon: float | None,
    delta: float | None,
) -> None:
    """Registers a client under NAME and issues its certificate.

    Writes ca.crt, client.crt, ledger.pub and, without --request, client.key into --out.
    """
    if request is not None and request.is_file():
        check_told(request.read_bytes(), told)
    with home.open_ledger() as ledger:
        share = share_of(ledger, epsilon=epsilon, delta=delta)
        issued, key = _issue(home, name=name, request=request, out=out, days=days)
        ledger.add_client(name, issued.fingerprint, share)
    hand_out(home, issued, key, out=out, title=f"Client {name} added")


@client.command("renew")
@_name
@home_option
@credentials_options
@_request_option
@click.option("--replace", is_flag=True, help="The old certificates stop counting at once: a key may have leaked.")
@format_option
def renew(name: str, home: HomeDirectory, out: Path, request: Path | None, days: int, replace: bool) -> None:
    """Issues a new certificate to NAME; the old ones count until they expire or are withdrawn (`cert revoke`).

    What was spent stays spent. A client renews by itself with `dpswd-client cert renew` and `cert approve` here.
    """
    with home.open_ledger() as ledger:
        issued, key = _issue(home, name=name, request=request, out=out, days=days)
        if replace:
            ledger.renew_client(name, issued.fingerprint)
        else:
            ledger.add_certificate(name, issued.fingerprint)
    hand_out(home, issued, key, out=out, title=f"Client {name} has a new certificate")


@ledger_command(client, "revoke", _name, reason_option)
def revoke(name: str, books: Ledger, reason: str) -> None:
    """Shuts NAME out for good; a running curator refuses its next call. What it spent stays spent."""
    books.revoke_client(name, reason=reason)
    click.echo(f"client {name} is revoked")


@ledger_command(client, "share", _name, _share_epsilon_option, _share_delta_option, reason_option)
def share(name: str, books: Ledger, epsilon: float, delta: float | None, reason: str) -> None:
    """Raises or lowers what NAME may use up of the data set's budget."""
    books.set_share(name, budget_of(books, epsilon=epsilon, delta=delta), reason=reason)
    click.echo(f"the share of {name} is set")


@ledger_command(client, "pause", _name, reason_option)
def pause(name: str, books: Ledger, reason: str) -> None:
    """Releases nothing new to NAME until resume; what was released before is still sent again."""
    books.pause_client(name, reason=reason)
    click.echo(f"client {name} is paused: nothing new is released to it")


@ledger_command(client, "resume", _name, reason_option)
def resume(name: str, books: Ledger, reason: str) -> None:
    """Releases to NAME again."""
    books.resume_client(name, reason=reason)
    click.echo(f"client {name} is active again")


@ledger_command(client, "cap", _name, _cap_option, reason_option)
def cap(name: str, books: Ledger, epsilon: float, reason: str) -> None:
    """Sets the most that the runs of NAME may cost together on one day (UTC); 0 takes the cap away.

    A brake for a stolen key, by the curator's clock. It promises nothing to the persons in the data set.
    """
    books.set_cap(name, epsilon or None, reason=reason)
    click.echo(f"{name} may spend epsilon {epsilon:g} a day" if epsilon else f"the daily cap of {name} is taken away")


@record_command(client, "list", format_option)
def list_clients(record: Record) -> None:
    """Every client with its share, what it spent with or without one, and when it was last seen."""
    rows = [
        {
            "name": known.name,
            "state": known.state,
            "epsilon": known.share,
            "delta": known.share_delta,
            "epsilon_spent": known.spent,
            "epsilon_remaining": known.remaining,
            "runs": known.runs,
            "daily_cap": known.daily_cap,
            "spent_today": known.spent_today,
            "refusals": known.refusals,
            "last_seen": known.last_seen,
            "fingerprint": known.certificates[-1].fingerprint if known.certificates else "",
        }
        for known in record.clients
    ]
    show(rows, title="Clients; without a share of its own a client is limited by the data set's budget alone")
    explain(WHY_COUNTS_DIFFER)


def _issue(
    home: HomeDirectory, *, name: str, request: Path | None, out: Path, days: int
) -> tuple[ClientCertificate, bytes | None]:
    """The new certificate, and its key where it was made here; what would fail to be written fails here."""
    if request is None:
        check_no_key(out)
        return home.authority.make_client(name=name, days=days)
    if not request.is_file():
        raise SettingsError(f"{request} does not exist; the client makes it with `dpswd-client init`")
    return home.authority.sign_request(request.read_bytes(), name=name, days=days), None


def hand_out(home: HomeDirectory, issued: ClientCertificate, key: bytes | None, *, out: Path, title: str) -> None:
    """Writes ca.crt, client.crt, ledger.pub and, if it was made here, client.key; tells what was done."""
    home.authority.write_credentials(issued, out, key_pem=key)
    ledger_key = home.read_ledger_key().public_key().public_bytes_raw()
    write_public(out / LEDGER_KEY_FILE, f"{ledger_key.hex()}\n".encode())
    show(
        {
            "name": issued.name,
            "credentials": str(out),
            "key": "made here; move the directory to the client over a safe way" if key else "stays with the client",
            "expires": issued.expires.isoformat(),
            "fingerprint": issued.fingerprint,
        },
        title=title,
    )
