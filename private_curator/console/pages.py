"""What is looked at: each page reads the record anew, without the ledger's key and without the records.

A page is a template of its record; what a template cannot work out by itself is worked out here.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from dpswd.private_curator.console.door import LIVE, SIGN_IN
from dpswd.private_curator.console.rendering import PLACES, ROWS, page
from dpswd.private_curator.operator import seconding
from dpswd.private_curator.operator.history import Category, selected
from dpswd.private_curator.operator.record import Record, changes
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import DataInvalid, DpswdError, GrantNotHeld, LedgerError

_Look = Callable[[Request], Response]
_Values = dict[str, Any]
_WorkedOut = Callable[[Record, Request], _Values]


class Pages:
    """The pages of one console."""

    def __init__(self, home: HomeDirectory) -> None:
        self._home = home

    def routes(self) -> dict[str, _Look]:
        """Every page by its path."""
        return {
            "/": self._looks("overview"),
            "/budget": self._looks("budget"),
            "/changes": lambda _: PlainTextResponse(changes(self._home)),  # another word after anything has changed
            "/clients": self._looks("clients"),
            "/clients/{fingerprint}/credentials.zip": self._credentials,
            "/runs": self._looks("runs", _runs),
            "/runs/{run_id}": self._looks("run", _run),
            "/runs/{run_id}/receipt.json": self._receipt,
            "/requests": self._looks("requests"),
            "/history": self._looks("history", _history),
            "/ledger": self._looks("ledger"),
            "/publication": self._looks("publication", lambda *_: {"chosen": "", "preview": None}),
            "/report": self._looks("report"),
        }

    def refused(self, request: Request, error: Exception) -> Response:
        """The page of an error that says what to do: nothing was done."""
        status = 503 if isinstance(error, LedgerError) else 404 if isinstance(error, GrantNotHeld) else 409
        return self.show("refused", request, None, status=status, text=str(error), heading="That was not possible")

    def not_there(self, request: Request, error: Exception) -> Response:
        """The page of an address that leads nowhere, or of a form that is not to be trusted."""
        assert isinstance(error, HTTPException)
        if request.state.session is None:
            return RedirectResponse(SIGN_IN, status_code=303)
        status, there = error.status_code, error.status_code != 404
        text, heading = (error.detail, "Refused") if there else ("There is no such page.", "Not found")
        return self.show("refused", request, None, status=status, text=text, heading=heading)

    def noted(self, request: Request, error: Exception) -> Response:
        """Where an act that waits for a second operator stands."""
        request.state.session.notices.append(str(error))
        return RedirectResponse("/requests", status_code=303)

    def price(self, request: Request, form: FormData) -> Response:
        """What a proposal would release and cost; charges nothing and keeps nothing."""
        # What it needs also computes releases: it is loaded when somebody asks, and takes a second.
        from dpswd.private_curator.operator.pricing import priced
        from dpswd.shared.protocol.publications import Proposal

        record, upload, client = Record(self._home), form.get("proposal"), form.get("client")
        if not isinstance(upload, UploadFile) or not isinstance(client, str):
            raise HTTPException(400, "Choose a proposal's file and the client that is charged.")
        with tempfile.NamedTemporaryFile(prefix="proposal-", suffix=".dpswd") as copy:
            shutil.copyfileobj(upload.file, copy)
            copy.flush()
            try:
                proposal = Proposal.read(Path(copy.name))
            except DataInvalid as error:
                raise DataInvalid(str(error).replace(copy.name, "the file")) from error
        books, day = record.reading.books, record.now.date().isoformat()
        preview = priced(proposal, client=client, books=books, settings=record.settings, day=day)
        request.state.session.looked = proposal, client, preview
        more: _Values = {"words": proposal.purpose, "digest": proposal.digest}
        return self.show("publication", request, record, chosen=client, preview=preview, **more)

    def _credentials(self, request: Request) -> Response:
        """What a client needs beside its key, none of it secret."""
        record, chosen = Record(self._home), request.path_params["fingerprint"]
        name = next((one.name for one in record.clients for c in one.certificates if c.fingerprint == chosen), None)
        if name is None:
            raise GrantNotHeld("no certificate that counts has this fingerprint")
        files = self._home.authority.credentials(chosen)
        files["ledger.pub"] = record.reading.books.keys.to_text().encode()
        with io.BytesIO() as made:
            with zipfile.ZipFile(made, "w") as archive:
                for file, content in files.items():
                    archive.writestr(file, content)
            return download(made.getvalue(), f"{name}.zip", "application/zip")

    def _receipt(self, request: Request) -> Response:
        run = Record(self._home).run(request.path_params["run_id"])
        return download(f"{run.receipt}\n".encode("ascii"), f"receipt-{run.run_id}.jsonl", "application/jsonl")

    def _looks(self, template: str, worked_out: _WorkedOut = lambda *_: {}) -> _Look:
        def look(request: Request) -> Response:
            record = Record(self._home)
            return self.show(template, request, record, **worked_out(record, request))

        return look

    def show(
        self, template: str, request: Request, record: Record | None, *, status: int = 200, **values: Any
    ) -> Response:
        """A page in its frame; without a record, as after an error, the frame says less."""
        session, path, live = request.state.session, request.url.path, LIVE in request.query_params
        places = (place for place, _ in PLACES if path == place or (place != "/" and path.startswith(f"{place}/")))
        frame: _Values = {
            "operator": self._home.operator if session.person is None else session.person.subject["name"],
            "csrf": session.csrf,
            "here": next(places, ""),
            "notices": () if live else session.heard(),  # what is said once
        }
        if record is None:
            frame |= {"data_set": "", "state": "", "waiting": 0, "live": "", "mark": "", "now": dt.datetime.now(dt.UTC)}
            with contextlib.suppress(DpswdError):  # the page is about another error, or about this one
                frame["data_set"] = configuration.load(self._home.path).records.name
        else:
            noted = seconding.waiting(self._home)
            values |= {"record": record, "noted": noted, "asked_for": request.query_params}
            frame |= {"data_set": record.overview.name, "state": record.overview.state}
            frame |= {
                "waiting": sum(asked.decision is None for asked in record.requests) + len(noted),
                # The address that shows the page anew; none where it would show another one.
                "live": "" if request.method == "POST" else f"{path}?{_query(request, **{LIVE: 1})}",
                "mark": record.mark,
                "now": record.now,
            }
        return page(template, status=status, frame=frame, **values)


def _runs(record: Record, request: Request) -> _Values:
    chosen = request.query_params.get("client", "")
    return {"chosen": chosen, **_paged([run for run in reversed(record.runs) if chosen in ("", run.client)], request)}


def _run(record: Record, request: Request) -> _Values:
    run = record.run(request.path_params["run_id"])
    receipt = next(each.receipt.entry for each in record.reading.runs if each.run_id == run.run_id)
    return {"run": run, "entry": receipt, "signed": receipt.signed_by(record.reading.books.keys)}


def _history(record: Record, request: Request) -> _Values:
    chosen = {name: request.query_params.get(name, "") for name in ("kind", "client", "since")}
    events = selected(
        record.history,
        categories=[Category(chosen["kind"])] if chosen["kind"] in list(Category) else [],
        client=chosen["client"] or None,
        since=chosen["since"] or None,
    )
    return {"kinds": [category.value for category in Category], "chosen": chosen, **_paged(events[::-1], request)}


def _query(request: Request, **further: object) -> str:
    """An address's query with further fields, as a person's."""
    return urlencode({name: value for name, value in request.query_params.items() if name != LIVE} | further)


def _paged(rows: Sequence[object], request: Request) -> _Values:
    """The rows of the page that the address asks for, how many there are, and the addresses of its neighbours."""
    text = request.query_params.get("page", "0")
    number = min(int(text) if text.isdecimal() and len(text) < 9 else 0, max(0, len(rows) - 1) // ROWS)
    begin = number * ROWS
    newer = f"?{_query(request, page=number - 1)}" if number else None
    older = f"?{_query(request, page=number + 1)}" if begin + ROWS < len(rows) else None
    return {"rows": rows[begin : begin + ROWS], "total": len(rows), "newer": newer, "older": older}


def download(data: bytes, name: str, kind: str) -> Response:
    """A file that a browser keeps and does not show."""
    return Response(data, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
