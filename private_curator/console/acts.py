"""What an operator does here: the same functions of the ledger as the command line's, under the same name.

Each act opens the ledger with its key, does one thing and closes it; looking at pages never does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dpswd.private_curator.console.pages import Pages, download
from dpswd.private_curator.operator.acts import verify_ledger
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.report import report_page, signed_page
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import InvalidValue


class _EntryNumber(IntegerConvertor):
    """What a database can hold; Python reads no number of 5,000 digits."""

    regex = "[0-9]{1,18}"


register_url_convertor("entry", _EntryNumber())
_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,12})?")


class Acts:
    """The acts of one console.

    Args:
        home: the curator's directory; its operator's name is what the ledger's entries get.
        pages: shows what an act has found.
    """

    def __init__(self, home: HomeDirectory, *, pages: Pages) -> None:
        self._home = home
        self._pages = pages

    def routes(self) -> dict[str, Callable[[Request, FormData], Response]]:
        """Every act by its path."""
        return {
            "/freeze": self._freeze,
            "/unfreeze": self._unfreeze,
            "/teams/pause": self._pause,
            "/teams/resume": self._resume,
            "/requests/{number:entry}": self._decide,
            "/ledger/verify": self._verify,
            "/publication": self._pages.price,
            "/report": self._report,
        }

    def _freeze(self, request: Request, form: FormData) -> Response:
        with self._home.open_ledger() as books:
            books.freeze(reason=field(form, "reason"))
        return _done(request, "/", "The data set is frozen: nothing new is released.")

    def _unfreeze(self, request: Request, form: FormData) -> Response:
        with self._home.open_ledger() as books:
            books.unfreeze(reason=field(form, "reason"))
        return _done(request, "/", "The data set is open again.")

    def _pause(self, request: Request, form: FormData) -> Response:
        team = field(form, "team")
        with self._home.open_ledger() as books:
            books.pause_client(team, reason=field(form, "reason"))
        return _done(request, "/teams", f"{team} is paused: nothing new is released to it.")

    def _resume(self, request: Request, form: FormData) -> Response:
        team = field(form, "team")
        with self._home.open_ledger() as books:
            books.resume_client(team, reason=field(form, "reason"))
        return _done(request, "/teams", f"{team} may go on.")

    def _decide(self, request: Request, form: FormData) -> Response:
        decision = field(form, "decision")
        if decision not in ("approve", "deny"):
            raise InvalidValue(f"a decision is approve or deny, not {decision!r}")
        granted = 0.0 if decision == "deny" else number(form, "epsilon")
        if decision == "approve" and granted <= 0.0:
            raise InvalidValue("a grant is more than 0; to grant nothing, deny the request")
        with self._home.open_ledger() as books:
            decided = books.decide_request(request.path_params["number"], granted=granted, reason=field(form, "reason"))
        said = f"{decided.client}'s request is {decided.decision}"
        return _done(request, "/requests", f"{said}: epsilon {granted:g} is added." if granted else f"{said}.")

    def _verify(self, request: Request, _form: FormData) -> Response:
        report = verify_ledger(self._home)
        said = "verifies" if report.ok else f"DOES NOT VERIFY: {len(report.findings)} findings"
        return _done(request, "/ledger", f"The ledger {said}; {report.entries} entries were read.")

    def _report(self, _request: Request, form: FormData) -> Response:
        """The signed page, to be kept: a browser that showed it here would hold it to this console's policy."""
        record = Record(self._home)
        since, until = (field(form, name) if form.get(name) else None for name in ("since", "until"))
        page = report_page(record, since=since, until=until)
        signed = signed_page(page, sign=self._home.read_ledger_key().sign)
        return download(signed, f"report-{record.now:%Y-%m-%d}.html", "text/html; charset=utf-8")


def field(form: FormData, name: str) -> str:
    """A text field of a form.

    Raises:
        InvalidValue: it is missing or empty.
    """
    value = form.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(f"the field {name!r} is empty; nothing was done")
    return value.strip()


def number(form: FormData, name: str) -> float:
    """A number of a form.

    Raises:
        InvalidValue: it is none.
    """
    text = field(form, name)
    if not _NUMBER.fullmatch(text):
        raise InvalidValue(f"{name} is {text[:20]!r}; write a number such as 0.5")
    return float(text)


def _done(request: Request, path: str, text: str) -> Response:
    """Back to a page, which says what was done: a form that was sent once is not sent again by reloading."""
    request.state.session.say(text)
    return RedirectResponse(quote(path), status_code=303)
