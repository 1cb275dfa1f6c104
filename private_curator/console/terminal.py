"""Sign-in for commands: in a browser anywhere, and a note of who came, which ends with the working day.

An operator on a server has the browser elsewhere, so its answer comes to this machine's loopback or is pasted: that
works with every provider, and keeps PKCE and the nonce, which the device grant (RFC 8628) has not.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from starlette.requests import Request

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.console.door import ANSWER
from dpswd.private_curator.console.people import ACTS, Person, Proxy, Role, SignInRefused
from dpswd.private_curator.console.sessions import FLOW_S, SESSION_S
from dpswd.private_curator.settings.groups import ConsoleSettings
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import LedgerError, SettingsError
from dpswd.shared.core.ledger.receipts import canonical_json
from dpswd.shared.files import write_private

_KIND = b"dpswd-1 sign-in\0"  # in front of what the ledger's key signs here


class _Listener(BaseHTTPRequestHandler):
    """Takes the browser's answer, and writes no line: the code would be in it."""

    timeout = 5

    def __init__(self, answers: list[str], *arguments: Any) -> None:
        self._answers = answers
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answers the browser."""
        path, _, query = self.path.partition("?")
        self.send_response(200 if path == ANSWER else 404)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.end_headers()
        if path == ANSWER:
            self._answers.append(query)
            self.wfile.write(b"The terminal says whether you are signed in; this page may be closed.\n")

    def log_message(self, *_: object) -> None:
        """Writes nothing."""


def sign_in(
    home: HomeDirectory, *, port: int, show: Callable[[str], None], ask: Callable[[], str] | None
) -> tuple[Person, dt.datetime]:
    """Who has come back from the provider, and until when this is remembered.

    Args:
        home: of the curator.
        port: of 127.0.0.1, to which the browser comes back; 0 takes a free one.
        show: is given the provider's address.
        ask: the address at which the browser ended; None where it reaches the port.

    Raises:
        SignInRefused: the provider vouches for nobody, or nobody came in time.
        SettingsError: the settings name no provider or cannot work, or the port is taken.
    """
    from dpswd.private_curator.console.application import who_vouches

    answers: list[str] = []
    provider = who_vouches(home, on_socket=True)
    if provider is None or isinstance(provider, Proxy):
        raise SettingsError("no provider signs people in here; console.issuer and console.client_id would name one")
    try:
        server = HTTPServer(("127.0.0.1", port), functools.partial(_Listener, answers))
    except OSError as error:
        raise SettingsError(f"port {port} cannot be listened on ({error.strerror}); choose another --port") from error

    async def flow() -> Person:
        back = f"http://127.0.0.1:{server.server_port}{ANSWER}"
        away, cookie = await provider.leave(_request(), back=back)
        show(away.headers["location"])
        query = _heard(server, answers) if ask is None else urlsplit(ask().strip()).query
        return await provider.enter(_request(query), cookie)

    with server:
        person = asyncio.run(flow())
    until = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=SESSION_S)
    fields = {**_bound(home), **person.subject, "roles": sorted(person.roles), "until": until.isoformat()}
    signature = home.read_ledger_key().sign(_KIND + canonical_json(fields)).hex()
    _note(home).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(_note(home), json.dumps({**fields, "signature": signature}).encode())
    return person, until


def sign_out(home: HomeDirectory) -> bool:
    """Forgets who signed in; says whether anybody had."""
    with contextlib.suppress(FileNotFoundError):
        _note(home).unlink()
        return True
    return False


def remembered(home: HomeDirectory, chosen: ConsoleSettings, act: str) -> Operator:
    """Whoever acts where a provider signs people in: the one who did, or an operator enrolled as a person.

    Args:
        home: of the curator, whose operator is the credential or the name that was given.
        chosen: its settings.
        act: a path of `ACTS`, or any other for an operator's or a second one's.

    Raises:
        SettingsError: nobody has signed in, it has ended, or the role does not do this.
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
    begin = "sign in with `dpswd-curator sign-in`; nothing was done"
    try:
        fields = json.loads(_note(home).read_bytes())
        signature = bytes.fromhex(fields.pop("signature"))
        home.read_ledger_key().public_key().verify(signature, _KIND + canonical_json(fields))
        until = dt.datetime.fromisoformat(fields["until"])
    except FileNotFoundError:
        raise SettingsError(f"here {chosen.issuer} says who acts, and you have not signed in: {begin}") from None
    except (InvalidSignature, ValueError, KeyError, TypeError, AttributeError):
        raise SettingsError(f"{_note(home)} is no sign-in of this curator: {begin}") from None
    if {**fields, **_bound(home), "issuer": chosen.issuer} != fields:
        raise SettingsError(f"{_note(home)} is of another home, account or provider: {begin}")
    if until <= dt.datetime.now(dt.UTC):
        raise SettingsError(f"your sign-in has ended, at {until:%Y-%m-%d %H:%M} UTC: {begin}")
    subject = {name: fields[name] for name in ("issuer", "sub", "name")}
    return Person(subject, frozenset(map(Role, fields["roles"])))


def _bound(home: HomeDirectory) -> dict[str, Any]:
    return {"home": str(home.path), "user": os.geteuid()}


def _note(home: HomeDirectory) -> Path:
    states = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return states / "dpswd" / f"sign-in-{hashlib.sha256(str(home.path).encode()).hexdigest()[:16]}.json"


def _heard(server: HTTPServer, answers: list[str]) -> str:
    until = time.monotonic() + FLOW_S
    while not answers:
        server.timeout = until - time.monotonic()
        if server.timeout <= 0.0:
            raise SignInRefused(f"nobody came back in {FLOW_S // 60} minutes; begin again")
        server.handle_request()
    return answers[0]


def _request(query: str = "") -> Request:
    return Request({"type": "http", "method": "GET", "path": ANSWER, "headers": [], "query_string": query.encode()})
