"""Who is in front of the console, and what each role may do there."""

from __future__ import annotations

import enum
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from dpswd.private_curator.books.operators import Operator, checked_operator
from dpswd.private_curator.settings.groups import ConsoleSettings
from dpswd.shared.core.errors import InvalidValue

PEER = "peer"  # in a request's state: see `peer_of`


class Role(enum.StrEnum):
    """What somebody is at this hospital; one may be several."""

    VIEWER = "viewer"  # sees every page
    OPERATOR = "operator"  # acts as well
    SECOND = "second"  # does what an operator has proposed, and proposes nothing
    AUDITOR = "auditor"  # verifies the ledger and takes the report


ACTS: Mapping[str, set[Role]] = {
    **{path: {Role.OPERATOR, Role.AUDITOR} for path in ("/ledger/verify", "/ledger/export", "/report")},
    **{path: {Role.OPERATOR, Role.SECOND} for path in ("/budget/extend", "/clients/approve", "/report/state")},
    "/sign-out": set(Role),
}
"""Who may do what, by path or command; what is not named is an operator's alone, and every page is everybody's."""


class SignInRefused(InvalidValue):
    """Somebody is not let in; the text says why, and nothing that a provider or a browser said."""


@dataclass(frozen=True)
class Person:
    """Somebody whom a provider or a proxy vouches for, and the subject that their acts state: issuer, sub and name."""

    subject: Mapping[str, str]
    roles: frozenset[Role]

    @classmethod
    def of(cls, sub: str, values: Any, chosen: ConsoleSettings, *, name: str | None = None) -> Person:
        """From the issuer's sub, and the text or texts that stand for roles; raises SignInRefused where none does."""
        listed = {values} if isinstance(values, str) else set(values if isinstance(values, list) else ())
        roles = frozenset(role for role in Role if getattr(chosen, role) in listed)
        if not roles:
            raise SignInRefused("you have no role here; whoever gives roles at your provider gives one")
        try:
            named = {"sub": checked_operator(sub), "name": checked_operator(name or sub)}
        except InvalidValue as error:
            raise SignInRefused(f"what the provider calls you cannot stand in the ledger: {error}") from error
        return cls({"issuer": str(chosen.issuer), **named}, roles)

    def through(self, by: Operator) -> Operator:
        """This one's acts, through an operator."""
        return replace(by, subject=self.subject, seconds_only=Role.OPERATOR not in self.roles)


@dataclass(frozen=True)
class Proxy:
    """A proxy in front of the console, believed on a Unix socket whose other end this user, by number, holds."""

    chosen: ConsoleSettings
    user: int

    def person(self, scope: Scope) -> Person:
        """Whom the proxy names for this request; raises SignInRefused where another one asks, or nobody is named."""
        if scope.get("state", {}).get(PEER) != self.user:
            raise SignInRefused("the console believes its proxy on its own Unix socket alone")
        names = str(self.chosen.proxy_header), self.chosen.role_claim
        stated = [Headers(scope=scope).getlist(name) for name in names]
        if any(len(each) != 1 for each in stated):
            raise SignInRefused(f"the proxy sends {' and '.join(names)} once each, in the place of a browser's own")
        (sub,), (roles,) = stated
        return Person.of(sub, [role.strip() for role in roles.split(",")], self.chosen)


def peer_of(connected: socket.socket) -> int | None:
    """The number of the user at the other end, by the kernel's word; None on TCP."""
    if connected.family != socket.AF_UNIX:
        return None
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def claimed(claims: Any, name: str) -> Any:
    """A claim by its name, or by the names that lead to it with dots between; None where there is none."""
    if not isinstance(claims, Mapping) or name in claims or "." not in name:
        return claims.get(name) if isinstance(claims, Mapping) else None
    first, _, rest = name.partition(".")
    return claimed(claims.get(first), rest)
