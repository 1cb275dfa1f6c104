"""The console put together: the door, the pages, the acts. Nothing else makes these objects."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from dpswd.private_curator.console.acts import Acts
from dpswd.private_curator.console.door import ANSWER, COOKIE, MAX_FORM_BYTES, SIGN_IN, Door
from dpswd.private_curator.console.pages import Pages
from dpswd.private_curator.console.people import ACTS, Person, Proxy, Role, SignInRefused
from dpswd.private_curator.console.rendering import page
from dpswd.private_curator.console.sessions import SESSION_S, Sessions
from dpswd.private_curator.operator.seconding import ActNoted
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import DpswdError, SettingsError
from dpswd.shared.core.wire.limits import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from dpswd.private_curator.console.provider import Provider

_log = logging.getLogger(__name__)

LEAVE = "/sign-in/leave"
FLOW = "dpswd-sign-in"
_FILES = Path(__file__).with_name("static")
_STATIC = ("/console.css", "/console.js", "/favicon.svg")  # every file that is served: no other name is looked for
_MOST_FIELDS = 16
_TOO_LARGE = "the request is too large, or was not sent to its end\n"

_WRONG = "This token is not, or no longer, good: each is good once. The console's terminal shows the one that is."
Act = Callable[[Request, FormData], Response]


def console(
    home: HomeDirectory, *, origins: frozenset[str], announce: Callable[[str], None], on_socket: bool = False
) -> Door:
    """The console of one curator, to be served by any ASGI server; raises SettingsError where its settings cannot work.

    Args:
        home: the curator's directory.
        origins: under which a browser sees it, see `origins_of`.
        announce: shows a token to the operator alone, where nobody else signs people in.
        on_socket: whether it listens on a Unix socket.
    """
    vouching = who_vouches(home, on_socket=on_socket)
    sessions = Sessions(announce if vouching is None else None)
    pages = Pages(home)
    acts = Acts(home, pages=pages)
    routes = [
        *(Route(path, lambda request: FileResponse(_FILES / request.url.path[1:])) for path in _STATIC),
        *_signing(sessions, home.operator, vouching, origins),
        *(Route(path, look) for path, look in pages.routes().items()),
        *(Route(path, _checked(act, path), methods=["POST"]) for path, act in acts.routes().items()),
    ]
    application = Starlette(
        routes=routes,
        exception_handlers={
            SignInRefused: lambda _, error: _sign_in_page(wrong=str(error), status=403),
            DpswdError: pages.refused,
            ActNoted: pages.noted,
            HTTPException: pages.not_there,
            ClientDisconnect: lambda *_: PlainTextResponse(_TOO_LARGE, status_code=413),
            Exception: _failed,
        },
    )
    return Door(
        pages=application,
        sessions=sessions,
        origins=origins,
        unlocked=frozenset({SIGN_IN, LEAVE, ANSWER, *_STATIC}),
        proxy=vouching if isinstance(vouching, Proxy) else None,
        # As large as a proposal may be, whose module would load tensors: pages need none.
        room={"/publication": 2 * MAX_MESSAGE_BYTES + MAX_FORM_BYTES},
    )


def _checked(act: Act, path: str) -> Callable[[Request], object]:
    """An act behind its form, which one of this session's pages has made, and behind the role that it takes."""

    async def endpoint(request: Request) -> Response:
        async with request.form(max_files=1, max_fields=_MOST_FIELDS, max_part_size=MAX_FORM_BYTES) as form:
            token = form.get("csrf")
            if not isinstance(token, str) or not request.state.session.carries(token):
                raise HTTPException(403, "this form is not of this session; nothing was done. Open the page again")
            roles = request.state.session.roles
            if not roles & ACTS.get(path, {Role.OPERATOR}):
                raise HTTPException(403, f"the role {' and '.join(sorted(roles))} does not do this; nothing was done")
            return await run_in_threadpool(act, request, form)

    return endpoint


def who_vouches(home: HomeDirectory, *, on_socket: bool) -> Provider | Proxy | None:
    """Who signs people in; None where a token does."""
    chosen = configuration.load(home.path).console
    if chosen.proxy_header is None and chosen.client_id is None:
        return None
    if chosen.issuer is None or (chosen.proxy_header and chosen.client_id):
        raise SettingsError("console.issuer stands beside one of console.client_id and console.proxy_header")
    if chosen.proxy_header is None:
        try:
            from dpswd.private_curator.console.provider import Provider
        except ImportError as error:
            raise SettingsError(f"console.client_id needs {error.name}; install dpswd[oidc]") from error
        return Provider(chosen, home=home.path)
    if not on_socket:
        raise SettingsError("console.proxy_header is believed on a Unix socket alone: give --socket")
    return Proxy(chosen, os.geteuid())


def _sign_in_page(*, status: int = 200, **values: Any) -> Response:
    return page("sign-in", status=status, **{"operator": "", "by_token": False, "token": "", "wrong": "", **values})


def _signing(
    sessions: Sessions, operator: str, vouching: Provider | Proxy | None, origins: frozenset[str]
) -> list[Route]:
    """The way in, by a token or over whoever vouches, and the way out."""
    door = functools.partial(_sign_in_page, operator=operator, by_token=vouching is None)
    # Not on a loopback address: it has no TLS, and nothing on the way that could listen.
    secure = all(origin.startswith("https:") for origin in origins)

    def with_cookie(reply: Response, cookie: str) -> Response:
        reply.set_cookie(
            COOKIE, cookie, max_age=int(SESSION_S), path="/", httponly=True, samesite="strict", secure=secure
        )
        return reply

    def let_in(request: Request, person: Person) -> Response:
        # A page and no redirect: what it asks for next is its own request, which gets the strict cookie.
        reply = page("signed-in", name=person.subject["name"])
        return with_cookie(reply, sessions.enter(person, instead_of=request.cookies.get(COOKIE)))

    async def look(request: Request) -> Response:
        if request.state.session is not None:
            return RedirectResponse("/", status_code=303)
        return door(token=request.query_params.get("token", ""))

    async def by_token(request: Request) -> Response:
        async with request.form(max_files=0, max_fields=_MOST_FIELDS, max_part_size=MAX_FORM_BYTES) as form:
            token = form.get("token")
        cookie = sessions.sign_in(token.strip()) if isinstance(token, str) else None
        if cookie is None:
            return door(wrong=_WRONG, status=403)
        return with_cookie(RedirectResponse("/", status_code=303), cookie)

    async def leave(request: Request) -> Response:
        if isinstance(vouching, Proxy):
            return let_in(request, vouching.person(request.scope))
        assert vouching is not None
        origin = next(each for each in origins if each.partition("//")[2] == request.headers["host"])
        reply, cookie = await vouching.leave(request, back=f"{origin}{ANSWER}")
        # Lax: the browser comes back from the provider's page.
        reply.set_cookie(FLOW, cookie, path=SIGN_IN, httponly=True, samesite="lax", secure=secure)
        return reply

    async def answer(request: Request) -> Response:
        assert vouching is not None
        assert not isinstance(vouching, Proxy)
        return let_in(request, await vouching.enter(request, request.cookies.get(FLOW)))

    def sign_out(request: Request, _form: FormData) -> Response:
        sessions.sign_out(request.cookies.get(COOKIE))
        reply = RedirectResponse(SIGN_IN, status_code=303)
        reply.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return reply

    return [
        Route(SIGN_IN, look, methods=["GET"]),
        Route(SIGN_IN, by_token, methods=["POST"]),
        Route("/sign-out", _checked(sign_out, "/sign-out"), methods=["POST"]),
        *([] if vouching is None else [Route(LEAVE, leave)]),
        *([] if vouching is None or isinstance(vouching, Proxy) else [Route(ANSWER, answer)]),
    ]


def _failed(_request: Request, error: Exception) -> Response:
    """An error that nobody foresaw: its text may quote what it should not, so the page has none of it."""
    _log.error("a page failed with %s", type(error).__qualname__)
    return PlainTextResponse("the console failed at this page; its terminal says where\n", status_code=500)
