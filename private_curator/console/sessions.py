"""Who is signed in: a token that is good for one sign-in, and sessions that end by themselves.

The operator's own terminal is the only place where a token is ever shown; each sign-in uses it up and shows the next.
Nothing is kept on the disk: when the process ends, everybody is signed out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dpswd.private_curator.console.people import Person, Role

if TYPE_CHECKING:
    from dpswd.private_curator.operator.publishing import Preview
    from dpswd.shared.protocol.publications import Proposal

SESSION_S = 8 * 3600.0
"""A session ends after a working day, whatever happens in it."""
IDLE_S = 3600.0
"""And after an hour in which nobody asked for a page."""
MAX_SESSIONS = 16
"""Browsers that are signed in at the same time; the oldest is signed out for a further one."""


@dataclass
class Session:
    """One signed-in browser.

    Attributes:
        csrf: what every form of it carries.
        opened: when, by the clock.
        seen: when a page was last asked for.
        notices: what the next page says at its head, once.
        person: who signed in elsewhere; None for whoever read the token, who may do all.
        looked: the proposal whose price was looked at last, for which client, and what was shown.
    """

    csrf: str
    opened: float
    seen: float
    notices: list[str] = field(default_factory=list)
    person: Person | None = None
    looked: tuple[Proposal, str, Preview] | None = None

    @property
    def roles(self) -> frozenset[Role]:
        """What this one is here."""
        return frozenset(Role) if self.person is None else self.person.roles

    def carries(self, token: str) -> bool:
        """Whether a form's token is this session's."""
        return hmac.compare_digest(token.encode(), self.csrf.encode())

    def heard(self) -> list[str]:
        """What there is to say; it is said once."""
        said, self.notices = self.notices, []
        return said


class Sessions:
    """All of them; `announce` shows each new token to the operator alone, and is None where no token signs in."""

    def __init__(self, announce: Callable[[str], None] | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._announce = announce
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Session] = {}  # by SHA-256 of the cookie: comparing takes no secret's time
        self._token = ""
        self._new_token()

    def sign_in(self, token: str) -> str | None:
        """The cookie of a new session, and the token is used up; None for any other token."""
        with self._lock:
            if self._announce is None or not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            self._new_token()
            return self._new_session(None)

    def enter(self, person: Person, *, instead_of: str | None) -> str:
        """The cookie of a new session of somebody who is signed in elsewhere, and an older one of this browser ends."""
        self.sign_out(instead_of)
        with self._lock:
            return self._new_session(person)

    def of(self, cookie: str | None, *, looks: bool = True) -> Session | None:
        """The session of a cookie, as long as it lasts; it lasts longer where somebody looks."""
        with self._lock:
            session = self._living().get(_key(cookie))
            if session is not None and looks:
                session.seen = self._clock()
            return session

    def sign_out(self, cookie: str | None) -> None:
        """Ends a session."""
        with self._lock:
            self._open.pop(_key(cookie), None)

    def _new_session(self, person: Person | None) -> str:
        now, cookie, living = self._clock(), secrets.token_urlsafe(32), self._living()
        while len(living) >= MAX_SESSIONS:
            del living[next(iter(living))]
        living[_key(cookie)] = Session(csrf=secrets.token_urlsafe(32), opened=now, seen=now, person=person)
        return cookie

    def _new_token(self) -> None:
        self._token = secrets.token_urlsafe(32)
        if self._announce is not None:
            self._announce(self._token)

    def _living(self) -> dict[str, Session]:
        now = self._clock()
        for key, session in list(self._open.items()):
            if now - session.opened >= SESSION_S or now - session.seen >= IDLE_S:
                del self._open[key]
        return self._open


def _key(cookie: str | None) -> str:
    return hashlib.sha256((cookie or "").encode()).hexdigest()
