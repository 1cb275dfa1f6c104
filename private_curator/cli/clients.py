"""``dpswd-curator clients`` and ``add``: who may connect, and how much each may spend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dpswd.private_curator.cli.budgets import share_of
from dpswd.private_curator.cli.common import chosen_act, full_id, home_option, reason_option, record_of
from dpswd.private_curator.cli.showing import explain, format_option, show, table_options
from dpswd.private_curator.operator.acts import budget_of, register
from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER, ClientFacts
from dpswd.private_curator.storage.certificates import LEAF_DAYS, ClientCertificate, check_no_key
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import GrantNotHeld
from dpswd.shared.files import write_public

LEDGER_KEY_FILE = "ledger.pub"
"""The ledger's public key, 64 hexadecimal digits: the client holds receipts and the curator against it."""
_SHORT = ("name", "state", "share", "epsilon_spent", "epsilon_remaining", "runs", "last_seen")


def credentials_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--out`` and ``--days`` of the credentials that a client gets, and ``--replace``."""
    note = "The client's old certificates stop counting at once: a key may have leaked."
    command = click.option("--replace", is_flag=True, help=note)(command)
    days = click.option("--days", type=click.IntRange(1, 3650), default=LEAF_DAYS, show_default=True, help="Validity.")
    directory = click.Path(path_type=Path, file_okay=False)
    return click.option("--out", required=True, type=directory, help="Where the credentials go.")(days(command))


def share_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--epsilon`` and ``--delta`` of a new client's own share."""
    delta = click.option("--delta", type=float, help="The share's delta.  [default: the data set's]")
    return click.option("--epsilon", type=float, help="A new client's own share of the budget.")(delta(command))


@click.command()
@click.argument("name")
@home_option
@credentials_options
@share_options
@click.option(
    "--renew", is_flag=True, help="A further certificate for a client that exists; what it spent stays spent."
)
@format_option
def add(
    name: str, home: HomeDirectory, out: Path, days: int, epsilon: float | None, delta: float | None, replace: bool,
    renew: bool,
) -> None:  # fmt: skip
    """Registers a client under NAME with a key that is made here: for a first try on one machine.

    Writes ca.crt, client.crt, client.key and ledger.pub into --out. A team elsewhere makes its key itself, and its
    request is signed with `approve`.
    """
    if replace and not renew:
        raise click.UsageError("--replace is of --renew: a new client has no certificate to replace")
    if renew and epsilon is not None:
        raise click.UsageError("--epsilon is a new client's; `clients NAME --share` changes one")
    with home.open_ledger() as ledger:
        share = share_of(ledger, epsilon=epsilon, delta=delta)
        check_no_key(out)
        issued, key = home.authority.make_client(name=name, days=days)
        register(ledger, name, issued.fingerprint, share, exists=renew, replace=replace)
    title = f"Client {name} has a further certificate" if renew else f"Client {name} added"
    hand_out(home, issued, key, out=out, title=title)


@click.command()
@click.argument("name", required=False)
@home_option
@click.option("--pause", is_flag=True, help="Releases nothing new to NAME; what was released before is sent again.")
@click.option("--resume", is_flag=True, help="Releases to NAME again.")
@click.option("--share", type=float, metavar="EPSILON", help="What NAME may use up of the data set's budget.")
@click.option("--delta", type=float, help="Of --share.  [default: the data set's]")
@click.option(
    "--cap",
    type=click.FloatRange(min=0),
    metavar="EPSILON",
    help="The most that its runs may cost together on one day (UTC), a brake for a stolen key; 0 takes the cap away.",
)
@click.option("--year", is_flag=True, help="--cap is of a year, which begins today: for a team that watches its model.")
@click.option("--revoke", is_flag=True, help="Shuts NAME out for good; what it spent stays spent.")
@click.option("--revoke-certificate", metavar="FINGERPRINT", help="Withdraws one certificate; its others go on.")
@reason_option
@table_options
def clients(
    name: str | None, home: HomeDirectory, pause: bool, resume: bool, share: float | None, delta: float | None,
    cap: float | None, year: bool, revoke: bool, revoke_certificate: str | None, reason: str | None,
) -> None:  # fmt: skip
    """Shows every client, or NAME; or changes what NAME may do: a running curator obeys at its next call."""
    ends = {"revoke": revoke, "revoke_certificate": revoke_certificate}
    act = chosen_act(pause=pause, resume=resume, share=share, cap=cap, **ends, reason=reason)
    if act is None or reason is None:
        _show(home, name)
        return
    if name is None:
        raise click.UsageError(f"{act} needs the client's NAME")
    if (delta is not None and share is None) or (year and cap is None):
        raise click.UsageError("--delta is of --share, and --year of --cap")
    with home.open_ledger() as books:
        if pause:
            books.pause_client(name, reason=reason)
            message = f"client {name} is paused: nothing new is released to it"
        elif resume:
            books.resume_client(name, reason=reason)
            message = f"client {name} is active again"
        elif share is not None:
            books.set_share(name, budget_of(books, epsilon=share, delta=delta), reason=reason)
            message = f"the share of {name} is set"
        elif cap is not None:
            # By the curator's clock: it promises nothing to the persons in the data set.
            books.set_cap(name, cap or None, reason=reason, year=year)
            each = "year" if year else "day"
            message = f"{name} may spend epsilon {cap:g} a {each}" if cap else f"{name} has no cap for a {each}"
        elif revoke_certificate is not None:
            counting = [each for client in books.clients() if client.name == name for each in client.fingerprints]
            revoke_certificate = full_id(revoke_certificate, counting)
            books.revoke_certificate(name, revoke_certificate, reason=reason)
            message = f"the certificate {revoke_certificate} of {name} is withdrawn"
        else:
            books.revoke_client(name, reason=reason)
            message = f"client {name} is revoked"
    click.echo(message)


def _show(home: HomeDirectory, name: str | None) -> None:
    rows = [_row(client) for client in record_of(home).clients]
    if name is None:
        show(
            rows,
            title="Clients; without a share of its own a client is limited by the data set's budget alone",
            short=_SHORT,
        )
    else:
        row = next((row for row in rows if row["name"] == name), None)
        if row is None:
            raise GrantNotHeld(f"no client {name!r} was ever added; `dpswd-curator clients` shows who was")
        show(row, title=f"Client {name}")
    explain(WHY_COUNTS_DIFFER)


def _row(client: ClientFacts) -> dict[str, Any]:
    return {
        "name": client.name, "state": client.state, "share": client.share, "share_delta": client.share_delta,
        "epsilon_spent": client.spent, "epsilon_remaining": client.remaining, "runs": client.runs,
        **{f"cap_{each}": client.caps.get(each, (None, 0.0))[0] for each in ("day", "year")},
        **{f"spent_{each}": of[1] for each, of in client.caps.items()}, "refusals": client.refusals,
        "last_seen": client.last_seen,
        "fingerprint": client.certificates[-1].fingerprint if client.certificates else "",
    }  # fmt: skip


def hand_out(home: HomeDirectory, issued: ClientCertificate, key: bytes | None, *, out: Path, title: str) -> None:
    """Writes ca.crt, client.crt, ledger.pub and, if it was made here, client.key; tells what was done."""
    home.authority.write_credentials(issued, out, key_pem=key)
    write_public(out / LEDGER_KEY_FILE, home.read_ledger_keys().to_text().encode())
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
