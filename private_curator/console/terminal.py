"""Sign-in for commands: in a browser anywhere, and a note of who came, which ends with the working day.

An operator on a server has the browser elsewhere, so the address at which it ends is pasted: that works over ssh and
with every provider, and keeps PKCE and the nonce, which the device grant (RFC 8628) has not.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from starlette.requests import Request

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.console.door import ANSWER
from dpswd.private_curator.console.people import ACTS, Person, Proxy, Role
from dpswd.private_curator.console.sessions import SESSION_S
from dpswd.private_curator.settings.groups import ConsoleSettings
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import LedgerError, SettingsError
from dpswd.shared.core.ledger.receipts import canonical_json
from dpswd.shared.files import write_private

_KIND = b"dpswd-1 sign-in\0"  # in front of what the ledger's key signs here
_BEGIN = "sign in with `dpswd-curator operators --sign-in`; nothing was done"


def sign_in(home: HomeDirectory, address: str, *, ask: Callable[[str], str]) -> tuple[Person, dt.datetime]:
    """Who has come back from the provider, and until when the note of it counts.

    Args:
        home: of the curator.
        address: host:port at which the browser ends; nothing need listen there.
        ask: shows the provider's address, and returns the whole one at which the browser has ended.

    Raises SignInRefused where the provider vouches for nobody, SettingsError where there is none.
    """
    from dpswd.private_curator.console.application import who_vouches

    provider = who_vouches(home, on_socket=True)
    if provider is None or isinstance(provider, Proxy):
        raise SettingsError("no provider signs people in here; console.issuer and console.client_id would name one")

    async def flow() -> Person:
        away, cookie = await provider.leave(_request(), back=f"http://{address}{ANSWER}")
        return await provider.enter(_request(urlsplit(ask(away.headers["location"]).strip()).query), cookie)

    person = asyncio.run(flow())
    until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=SESSION_S)
    fields = {**_bound(home), **person.subject, "roles": sorted(person.roles), "until": until.isoformat()}
    signature = home.read_ledger_key().sign(_KIND + canonical_json(fields)).hex()
    note_of(home).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(note_of(home), json.dumps({**fields, "signature": signature}).encode())
    return person, until


def note_of(home: HomeDirectory) -> Path:
    """The file, in this account's own directory, that says who signed in to a home."""
    states = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return states / "dpswd" / f"sign-in-{hashlib.sha256(str(home.path).encode()).hexdigest()[:16]}.json"


def remembered(home: HomeDirectory, chosen: ConsoleSettings, act: str) -> Operator:
    """Whoever acts where a provider signs people in: the one who did, or an operator enrolled as a person.

    The home's operator is the credential or the name that was given; an act that `ACTS` does not name is an operator's
    or a second one's. Raises SettingsError where nobody has signed in, it has ended, or the role does not do this.
    """
    by = home.acting
    if by.key is not None:
        with contextlib.suppress(LedgerError):  # one that cannot be read says nothing of credentials
            roster = home.read_ledger().books.operators
            if roster.counts(by.name, by.credential) and by.name not in roster.issuers:
                return by
    person = _read(home, chosen)
    if not person.roles & ACTS.get(act, {Role.OPERATOR, Role.SECOND}):
        raise SettingsError(f"the role {' and '.join(sorted(person.roles))} does not do this; nothing was done")
    return person.through(by)


def _read(home: HomeDirectory, chosen: ConsoleSettings) -> Person:
    try:
        fields = json.loads((note := note_of(home)).read_bytes())
        signature = bytes.fromhex(fields.pop("signature"))
        home.read_ledger_key().public_key().verify(signature, _KIND + canonical_json(fields))
    except FileNotFoundError:
        raise SettingsError(f"here {chosen.issuer} says who acts, and you have not signed in: {_BEGIN}") from None
    except (InvalidSignature, ValueError, KeyError, TypeError, AttributeError):
        raise SettingsError(f"{note} is no sign-in of this curator: {_BEGIN}") from None
    if {**fields, **_bound(home), "issuer": chosen.issuer} != fields:
        raise SettingsError(f"{note} is of another home, account or provider: {_BEGIN}")
    if fields["until"] <= dt.datetime.now(dt.UTC).isoformat():
        raise SettingsError(f"your sign-in has ended: {_BEGIN}")
    return Person({name: fields[name] for name in ("issuer", "sub", "name")}, frozenset(map(Role, fields["roles"])))


def _bound(home: HomeDirectory) -> dict[str, Any]:
    return {"home": str(home.path), "user": os.geteuid()}


def _request(query: str = "") -> Request:
    return Request({"type": "http", "method": "GET", "path": ANSWER, "headers": [], "query_string": query.encode()})
