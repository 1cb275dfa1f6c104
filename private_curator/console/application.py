"""The console put together: the door, the pages, the acts. Nothing else makes these objects."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import resources

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from dpswd.private_curator.console.acts import Acts
from dpswd.private_curator.console.door import COOKIE, MAX_FORM_BYTES, SIGN_IN, Door
from dpswd.private_curator.console.pages import Pages
from dpswd.private_curator.console.rendering import page
from dpswd.private_curator.console.sessions import SESSION_S, Sessions
from dpswd.private_curator.operator.seconding import ActNoted
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import DpswdError
from dpswd.shared.core.wire.limits import MAX_MESSAGE_BYTES

_log = logging.getLogger(__name__)

PUBLICATION = "/publication"
_STATIC = {
    "/console.css": "text/css; charset=utf-8",
    "/console.js": "text/javascript; charset=utf-8",
    "/favicon.svg": "image/svg+xml",
}
"""Every file that is served, by its path: no other name is looked for."""
_MOST_FIELDS = 16

Act = Callable[[Request, FormData], Response]


def console(home: HomeDirectory, *, origins: frozenset[str], announce: Callable[[str], None]) -> Door:
    """The console of one curator, to be served by any ASGI server.

    Args:
        home: the curator's directory.
        origins: under which a browser sees it, see `origins_of`.
        announce: shows a token to the operator alone.
    """
    sessions = Sessions(announce)
    pages = Pages(home)
    acts = Acts(home, pages=pages)
    routes = [
        *(Route(path, _file(path, kind)) for path, kind in _STATIC.items()),
        *_signing(sessions, home.operator),
        *(Route(path, look) for path, look in pages.routes().items()),
        *(Route(path, _checked(act), methods=["POST"]) for path, act in acts.routes().items()),
    ]
    application = Starlette(
        routes=routes,
        exception_handlers={
            DpswdError: pages.refused,
            ActNoted: pages.noted,
            HTTPException: pages.not_there,
            ClientDisconnect: _too_large,
            Exception: _failed,
        },
    )
    return Door(
        pages=application,
        sessions=sessions,
        origins=origins,
        unlocked=frozenset({SIGN_IN, *_STATIC}),
        # As large as a proposal may be, whose module would load tensors: pages need none.
        room={PUBLICATION: 2 * MAX_MESSAGE_BYTES + MAX_FORM_BYTES},
    )


def _checked(act: Act) -> Callable[[Request], object]:
    """An act behind its form: nothing is done unless the form is one that this session's pages made."""

    async def endpoint(request: Request) -> Response:
        async with request.form(max_files=1, max_fields=_MOST_FIELDS, max_part_size=MAX_FORM_BYTES) as form:
            token = form.get("csrf")
            if not isinstance(token, str) or not request.state.session.carries(token):
                raise HTTPException(403, "this form is not of this session; nothing was done. Open the page again")
            return await run_in_threadpool(act, request, form)

    return endpoint


def _signing(sessions: Sessions, operator: str) -> list[Route]:
    """The way in and the way out."""

    async def look(request: Request) -> Response:
        if request.state.session is not None:
            return RedirectResponse("/", status_code=303)
        return page("sign-in", operator=operator, token=request.query_params.get("token", ""), wrong=False)

    async def sign_in(request: Request) -> Response:
        async with request.form(max_files=0, max_fields=_MOST_FIELDS, max_part_size=MAX_FORM_BYTES) as form:
            token = form.get("token")
        cookie = sessions.sign_in(token.strip()) if isinstance(token, str) else None
        if cookie is None:
            return page("sign-in", status=403, operator=operator, token="", wrong=True)
        reply = RedirectResponse("/", status_code=303)
        # Not Secure: a loopback address has no TLS, and nothing on the way that could listen.
        reply.set_cookie(COOKIE, cookie, max_age=int(SESSION_S), path="/", httponly=True, samesite="strict")
        return reply

    def sign_out(request: Request, _form: FormData) -> Response:
        sessions.sign_out(request.cookies.get(COOKIE))
        reply = RedirectResponse(SIGN_IN, status_code=303)
        reply.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return reply

    return [
        Route(SIGN_IN, look, methods=["GET"]),
        Route(SIGN_IN, sign_in, methods=["POST"]),
        Route("/sign-out", _checked(sign_out), methods=["POST"]),
    ]


def _file(path: str, kind: str) -> Callable[[Request], object]:
    content = resources.files("dpswd.private_curator.console").joinpath("static", path.removeprefix("/")).read_bytes()

    async def endpoint(_request: Request) -> Response:
        return Response(content, media_type=kind)

    return endpoint


def _too_large(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("the request is too large, or was not sent to its end\n", status_code=413)


def _failed(_request: Request, error: Exception) -> Response:
    """An error that nobody foresaw: its text may quote what it should not, so the page has none of it."""
    _log.error("a page failed with %s", type(error).__qualname__)
    return PlainTextResponse("the console failed at this page; its terminal says where\n", status_code=500)
