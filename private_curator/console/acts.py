"""What an operator does here: the same functions of the ledger as the command line's, under the same name.

Each act opens the ledger with its key, does one thing and closes it; looking at pages never does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dpswd.private_curator.console.pages import Pages, download
from dpswd.private_curator.operator import acts
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.report import report_page, signed_page
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import InvalidValue

_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,12})?(e-[0-9]{1,2})?")
_ENTRY = re.compile("[0-9]{1,18}")  # what a database can hold; Python reads no number of 5,000 digits


class Acts:
    """The acts of one console, by the operator of its home; pages show what an act has found."""

    def __init__(self, home: HomeDirectory, *, pages: Pages) -> None:
        self._home, self._pages = home, pages

    def routes(self) -> dict[str, Callable[[Request, FormData], Response]]:
        """Every act by its path."""
        return {
            "/freeze": self._plain("freeze", "/budget", "The data set is frozen: nothing new is released."),
            "/unfreeze": self._plain("unfreeze", "/budget", "The data set is open again."),
            "/budget/extend": self._extend,
            "/clients/approve": self._approve,
            "/clients/pause": self._plain("pause_client", "/clients", "{} is paused: nothing new is released to it."),
            "/clients/resume": self._plain("resume_client", "/clients", "{} may go on."),
            "/clients/share": self._share,
            "/clients/cap": self._cap,
            "/requests/{number}": self._decide,
            "/ledger/verify": self._verify,
            "/publication": self._pages.price,
            "/publication/make": self._publish,
            "/report": self._report,
            "/report/state": self._state,
        }

    def _at(self, request: Request) -> HomeDirectory:
        """The home, under the name of whoever signed in."""
        person = request.state.session.person
        acting = self._home.acting if person is None else person.through(self._home.acting)
        return HomeDirectory(self._home.path, operator=acting)

    def _plain(self, act: str, path: str, said: str) -> Callable[[Request, FormData], Response]:
        """An act of the ledger that takes a reason, and a client where what is said of it names one."""

        def done(request: Request, form: FormData) -> Response:
            client = [field(form, "client")] if "{}" in said else []
            with self._at(request).open_ledger() as books:
                getattr(books, act)(*client, reason=field(form, "reason"))
            return _done(request, path, said.format(*client))

        return done

    def _extend(self, request: Request, form: FormData) -> Response:
        """Shown with its effect first, and done with the words that a doubtful one takes."""
        epsilon, reason = number(form, "epsilon"), field(form, "reason")
        delta = number(form, "delta") if form.get("delta") else None
        if "shown" not in form:
            preview = acts.extension(self._at(request), epsilon=epsilon, delta=delta)
            asked = {"epsilon": epsilon, "delta": delta, "reason": reason}
            return self._pages.show("effect", request, None, effect=preview, asked=asked)
        typed = str(form.get("typed", ""))
        acts.extend_budget(self._at(request), epsilon=epsilon, delta=delta, reason=reason, typed=typed)
        return _done(request, "/budget", f"The budget is extended to epsilon {epsilon:g}.")

    def _approve(self, request: Request, form: FormData) -> Response:
        """A share of its own only where one is given, as on the command line."""
        file = form.get("request")
        if not isinstance(file, UploadFile) or not file.filename:
            raise InvalidValue("no request was chosen; choose its file. Nothing was done")
        issued, renewed = acts.approve_certificate(
            self._at(request),
            file.file.read(),
            days=int(number(form, "days")),  # as the command line: what a second operator repeats is the very same
            epsilon=number(form, "epsilon") if form.get("epsilon") else None,
            fingerprint=str(form.get("fingerprint", "")),
        )
        said = "has a further certificate" if renewed else "is added"
        return _done(request, "/clients", f"{issued.name} {said}: send it the files under Certificates below.")

    def _share(self, request: Request, form: FormData) -> Response:
        client, epsilon = field(form, "client"), number(form, "epsilon")
        with self._at(request).open_ledger() as books:
            books.set_share(client, acts.budget_of(books, epsilon=epsilon), reason=field(form, "reason"))
        return _done(request, "/clients", f"The share of {client} is epsilon {epsilon:g}.")

    def _cap(self, request: Request, form: FormData) -> Response:
        client, epsilon, year = field(form, "client"), number(form, "epsilon"), "year" in form
        with self._at(request).open_ledger() as books:
            books.set_cap(client, epsilon or None, reason=field(form, "reason"), year=year)
        cap = f"at most epsilon {epsilon:g}" if epsilon else "as much as its budget has"
        return _done(request, "/clients", f"{client} may spend {cap} {'a year' if year else 'a day'}.")

    def _publish(self, request: Request, form: FormData) -> Response:
        """The file itself, to be kept; the session holds the proposal whose price was looked at."""
        from dpswd.private_curator.operator.publishing import CONFIRMATION, Preview, Publishing, released

        looked = request.state.session.looked
        if looked is None or looked[0].digest != field(form, "proposal"):
            raise InvalidValue("look at the proposal's price first; nothing was charged")
        if field(form, "typed") != CONFIRMATION:
            raise InvalidValue(f"type {CONFIRMATION} to charge and release it; nothing was charged")
        proposal, client, shown = looked

        def agreed(preview: Preview) -> None:
            if (preview.epsilon, preview.spent, preview.remaining) != (shown.epsilon, shown.spent, shown.remaining):
                raise InvalidValue("the budget has changed since the price was shown: look again; nothing was charged")

        made, _ = released(
            Publishing(self._at(request), proposal, client), purpose=field(form, "purpose"), agreed=agreed
        )
        return download(made.to_file(), f"{client}-{proposal.digest[:8]}.dpswd", "application/octet-stream")

    def _decide(self, request: Request, form: FormData) -> Response:
        number_of, decision = request.path_params["number"], field(form, "decision")
        if not _ENTRY.fullmatch(number_of):
            raise HTTPException(404)
        granted = 0.0 if decision == "deny" else number(form, "epsilon")
        if decision != ("approve" if granted > 0.0 else "deny"):
            raise InvalidValue("a grant is more than 0; to grant nothing, deny the request")
        with self._at(request).open_ledger() as books:
            decided = books.decide_request(int(number_of), granted=granted, reason=field(form, "reason"))
        said = f"{decided.client}'s request is {decided.decision}"
        return _done(request, "/requests", f"{said}: epsilon {granted:g} is added." if granted else f"{said}.")

    def _verify(self, request: Request, _form: FormData) -> Response:
        report = acts.verify_ledger(self._at(request))
        said = "verifies" if report.ok else f"DOES NOT VERIFY: {len(report.findings)} findings"
        return _done(request, "/ledger", f"The ledger {said}; {report.entries} entries were read.")

    def _state(self, request: Request, form: FormData) -> Response:
        acts.state(self._at(request), field(form, "item"), field(form, "words"))
        return _done(request, "/report", "It is stated, and stands in the ledger.")

    def _report(self, _request: Request, form: FormData) -> Response:
        """The signed page, to be kept: a browser that showed it here would hold it to this console's policy."""
        record = Record(self._home)
        since, until = (field(form, name) if form.get(name) else None for name in ("since", "until"))
        page = report_page(record, since=since, until=until)
        signed = signed_page(page, sign=self._home.read_ledger_key().sign)
        return download(signed, f"report-{record.now:%Y-%m-%d}.html", "text/html; charset=utf-8")


def field(form: FormData, name: str) -> str:
    """A text field of a form; raises InvalidValue: it is missing or empty."""
    value = form.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(f"the field {name!r} is empty; nothing was done")
    return value.strip()


def number(form: FormData, name: str) -> float:
    """A number of a form; raises InvalidValue: it is none."""
    text = field(form, name)
    if not _NUMBER.fullmatch(text):
        raise InvalidValue(f"{name} is {text[:20]!r}; write a number such as 0.5")
    return float(text)


def _done(request: Request, path: str, text: str) -> Response:
    """Back to a page, which says what was done: a form that was sent once is not sent again by reloading."""
    request.state.session.notices.append(text)
    return RedirectResponse(quote(path), status_code=303)
