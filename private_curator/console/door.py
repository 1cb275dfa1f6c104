"""What every request must be before a page sees it, and what every reply carries.

A browser on the operator's machine also runs other people's pages. They may send requests to a loopback address
(CSRF), make a name of theirs lead to it (DNS rebinding), frame it, or load it as an image. So a request must name this
console in `Host`, must not come from another origin, must be small, and must belong to somebody who signed in; what is
refused is refused here, in one place, before any page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpswd.private_curator.console.people import Proxy, SignInRefused
from dpswd.private_curator.console.sessions import Session, Sessions
from dpswd.shared.core.errors import SettingsError

COOKIE = "dpswd-console"
SIGN_IN = "/sign-in"
ANSWER = "/sign-in/answer"
"""Where the provider sends a browser back to; registered there, behind each origin of the console."""
LIVE = "live"
"""In the query of what a page asks by itself."""
MAX_FORM_BYTES = 64 * 1024
"""A form's text fields; a path may have its own bound."""
METHODS = ("GET", "HEAD", "POST")

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""The only hosts that a browser may know the console by: no name that somebody else's name server could give away."""

HEADERS = {
    # One script, which is served here; no frame, no other origin; forms go home only. Nothing is inline.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer browsers would send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Door:
    """An ASGI application in front of the pages.

    Attributes:
        pages: what is behind it.
        sessions: who is signed in; a page finds its session in the scope's state.
        origins: under which browsers see the console, such as ``http://127.0.0.1:8466``.
        proxy: signs people in, request for request; None where none stands in front.
        unlocked: paths that need no session.
        room: bytes of a request's body by path, where it is not `MAX_FORM_BYTES`.
    """

    pages: ASGIApp
    sessions: Sessions
    origins: frozenset[str]
    unlocked: frozenset[str]
    room: Mapping[str, int]
    proxy: Proxy | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":  # no web sockets, and nothing is done at the process's start and end
            return
        room = self.room.get(scope["path"], MAX_FORM_BYTES)
        await (self._refusal(scope, room) or self.pages)(scope, _bounded(receive, room), _dressed(send))

    def _refusal(self, scope: Scope, room: int) -> Response | None:
        """Why a request gets no further; None where it may. Puts the session into the scope's state."""
        headers, method = Headers(scope=scope), scope["method"]
        if headers.getlist("host") not in [[urlsplit(origin).netloc] for origin in self.origins]:
            return _refused(421, "this console is not known by that name")
        if method not in METHODS:
            return _refused(405, f"allowed are {', '.join(METHODS)}", Allow=", ".join(METHODS))
        if not self._at_home(headers, method):
            return _refused(403, "the request comes from another page than this console's")
        length = headers.get("content-length", "0")
        if not (length.isdecimal() and len(length) <= 18 and int(length) <= room):
            return _refused(413, "the request is too large")
        if "content-length" in headers and "transfer-encoding" in headers:  # which of the two ends it?
            return _refused(400, "a request has one length: Content-Length or Transfer-Encoding", Connection="close")
        connection = HTTPConnection(scope)
        # What a page asks by itself is no look of anybody's: it keeps no session.
        session = self.sessions.of(connection.cookies.get(COOKIE), looks=LIVE not in connection.query_params)
        if session is not None and not self._is_still(session, scope):
            session = None
        scope.setdefault("state", {})["session"] = session
        if session is None and scope["path"] not in self.unlocked:
            if method == "POST":
                return _refused(403, "you are not signed in; nothing was done")
            return RedirectResponse(SIGN_IN, status_code=303)
        return None

    def _is_still(self, session: Session, scope: Scope) -> bool:
        """Whether a proxy, if there is one, names for this request whom it named at the sign-in."""
        try:
            return self.proxy is None or self.proxy.person(scope) == session.person
        except SignInRefused:
            return False

    def _at_home(self, headers: Headers, method: str) -> bool:
        """Whether no other site's page has sent it; a link from elsewhere opens a page, without a cookie."""
        origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
        if any(origin not in self.origins for origin in origins):
            return False
        if method == "POST":
            return len(origins) == 1 and sites in ([], ["same-origin"])
        embedded = headers.get("sec-fetch-mode", "navigate") != "navigate"
        return not (embedded and any(site not in ("same-origin", "none") for site in sites))


def _bounded(receive: Receive, room: int) -> Receive:
    """A request's body, cut off where it is longer than it may be."""

    async def receive_some() -> Message:
        nonlocal room
        message = await receive()
        room -= len(message.get("body", b""))
        return message if room >= 0 else {"type": "http.disconnect"}

    return receive_some


def origins_of(address: str, further: Iterable[str] = (), *, by_tls: bool = False) -> frozenset[str]:
    """Every origin of a console that listens on a loopback address.

    Args:
        address: host:port; of each spelling of the loopback host one origin is made.
        further: origins under which a browser sees it through a tunnel or a published port.
        by_tls: whether one may be https, of any host: a proxy's, or where a provider signs people in.

    Raises SettingsError where a further origin is none, or not on the loopback.
    """
    port = address.rpartition(":")[2]
    made = {f"http://{host}:{port}" for host in LOOPBACK} if port else set()
    for origin in further:
        parts = urlsplit(origin)
        host, _, number = parts.netloc.rpartition(":")
        secure = by_tls and parts.netloc and f"https://{parts.netloc}" == origin
        if not secure and (f"http://{parts.netloc}" != origin or host not in LOOPBACK or not number.isdigit()):
            raise SettingsError(
                f"--origin is {origin!r}; write what the browser shows, http://HOST:PORT with a HOST of "
                f"{', '.join(LOOPBACK)}"
            )
        made.add(origin)
    return frozenset(made)


def _dressed(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return with_headers


def _refused(status: int, text: str, **headers: Any) -> Response:
    return PlainTextResponse(f"{text}\n", status_code=status, headers=headers)
