"""What is looked at: each page reads the record anew, without the ledger's key and without the records."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from dpswd.private_curator.books.operators import who
from dpswd.private_curator.console import views
from dpswd.private_curator.console.door import LIVE
from dpswd.private_curator.console.rendering import PLACES, Frame, page
from dpswd.private_curator.operator import seconding
from dpswd.private_curator.operator.facts import WHY_COUNTS_DIFFER, ahead
from dpswd.private_curator.operator.guards import Effect
from dpswd.private_curator.operator.history import Category, selected
from dpswd.private_curator.operator.officer import STATEMENTS, items
from dpswd.private_curator.operator.record import Record, changes
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.certificates import LEAF_DAYS
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import DataInvalid, DpswdError, GrantNotHeld, LedgerError

ROWS = 100
"""Rows of one page of a table."""

_Row = TypeVar("_Row")
_Look = Callable[[Request], Response]


class Pages:
    """The pages of one console."""

    def __init__(self, home: HomeDirectory) -> None:
        self._home = home

    def routes(self) -> dict[str, _Look]:
        """Every page by its path."""
        return {
            "/": self._overview,
            "/budget": self._budget,
            "/changes": self._changes,
            "/clients": self._clients,
            "/clients/{fingerprint}/credentials.zip": self._credentials,
            "/runs": self._runs,
            "/runs/{run_id}": self._run,
            "/runs/{run_id}/receipt.json": self._receipt,
            "/requests": self._requests,
            "/history": self._history,
            "/ledger": self._ledger,
            "/publication": self._publication,
            "/report": self._report,
        }

    def refused(self, request: Request, error: Exception) -> Response:
        """The page of an error that says what to do: nothing was done."""
        status = 503 if isinstance(error, LedgerError) else 404 if isinstance(error, GrantNotHeld) else 409
        return self._show("refused", request, None, status=status, text=str(error), heading="That was not possible")

    def not_there(self, request: Request, error: Exception) -> Response:
        """The page of an address that leads nowhere, or of a form that is not to be trusted."""
        assert isinstance(error, HTTPException)
        if request.state.session is None:
            return RedirectResponse("/sign-in", status_code=303)
        text = "There is no such page." if error.status_code == 404 else error.detail
        heading = "Not found" if error.status_code == 404 else "Refused"
        return self._show("refused", request, None, status=error.status_code, text=text, heading=heading)

    def noted(self, request: Request, error: Exception) -> Response:
        """Where an act that waits for a second operator stands."""
        request.state.session.say(str(error))
        return RedirectResponse("/requests", status_code=303)

    def effect(self, request: Request, effect: Effect, asked: dict[str, Any]) -> Response:
        """What extending the budget changes, before it is done."""
        return self._show("effect", request, None, effect=effect, asked=asked)

    def _changes(self, _request: Request) -> Response:
        """Another word after anything that a page shows has changed."""
        return PlainTextResponse(changes(self._home))

    def _budget(self, request: Request) -> Response:
        record, asked = Record(self._home), request.query_params
        given = {name: asked.get(name, "") for name in ("epsilon", "delta", "reason")}
        return self._show("budget", request, record, overview=record.overview, given=given)

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

    def _overview(self, request: Request) -> Response:
        record = Record(self._home)
        overview = record.overview
        points = [
            {"time": dt.datetime.fromisoformat(point.time), "what": views.what_of(point), "point": point}
            for point in reversed(overview.points[-ROWS:])
        ]
        return self._show(
            "overview", request, record, overview=overview, ahead=ahead(overview), points=points,
            charts=views.charts(overview, now=record.now), chart_text=views.chart_in_words(overview),
        )  # fmt: skip

    def _clients(self, request: Request) -> Response:
        record = Record(self._home)
        whole = record.overview.epsilon
        clients = [(client, *views.bar(client, whole=whole)) for client in record.clients]
        given = {
            "epsilon": request.query_params.get("epsilon", ""),
            "days": request.query_params.get("days", LEAF_DAYS),
        }
        return self._show(
            "clients", request, record, clients=clients, states=views.STATES, why=WHY_COUNTS_DIFFER, given=given
        )

    def _runs(self, request: Request) -> Response:
        record, chosen = Record(self._home), request.query_params.get("client", "")
        runs = [run for run in reversed(record.runs) if chosen in ("", run.client)]
        shown, paging = _paged(runs, request)
        return self._show(
            "runs", request, record, runs=shown, total=len(runs), chosen=chosen, clients=_names(record), paging=paging
        )

    def _run(self, request: Request) -> Response:
        record = Record(self._home)
        run = record.run(request.path_params["run_id"])
        receipt = next(each.receipt.entry for each in record.reading.runs if each.run_id == run.run_id)
        signed = receipt.signed_by(record.reading.books.keys)
        return self._show("run", request, record, run=run, entry=receipt, signed=signed, why=WHY_COUNTS_DIFFER)

    def _receipt(self, request: Request) -> Response:
        run = Record(self._home).run(request.path_params["run_id"])
        return download(f"{run.receipt}\n".encode("ascii"), f"receipt-{run.run_id}.jsonl", "application/jsonl")

    def _requests(self, request: Request) -> Response:
        record = Record(self._home)
        clients = {client.name: client for client in record.clients}
        waiting = [
            (asked, clients[asked.client], views.effect(asked, clients[asked.client], record.overview))
            for asked in record.requests
            if asked.decision is None
        ]
        decided = [asked for asked in reversed(record.requests) if asked.decision is not None]
        noted = [(act, who(act), views.again(act)) for act in seconding.waiting(self._home)]
        return self._show("requests", request, record, waiting=waiting, decided=decided[:ROWS], noted=noted)

    def _history(self, request: Request) -> Response:
        record, asked = Record(self._home), request.query_params
        kind, client, since = (asked.get(name, "") for name in ("kind", "client", "since"))
        events = selected(
            record.history,
            categories=[Category(kind)] if kind in list(Category) else [],
            client=client or None,
            since=since or None,
        )
        shown, paging = _paged(events[::-1], request)
        return self._show(
            "history", request, record, events=shown, total=len(events),
            kinds=[category.value for category in Category], clients=_names(record), tones=views.TONES,
            chosen={"kind": kind, "client": client, "since": since}, paging=paging,
        )  # fmt: skip

    def _ledger(self, request: Request) -> Response:
        record = Record(self._home)
        return self._show(
            "ledger", request, record, health=record.health, witness=views.witness(record.health),
            heads=views.heads(record.settings.ledger),
        )  # fmt: skip

    def _publication(self, request: Request) -> Response:
        record = Record(self._home)
        return self._show("publication", request, record, clients=_names(record), chosen="", preview=None)

    def price(self, request: Request, form: FormData) -> Response:
        """What a proposal would release and cost; charges nothing and keeps nothing."""
        # What it needs also computes releases: it is loaded when somebody asks, and takes a second.
        from dpswd.private_curator.operator.pricing import priced
        from dpswd.shared.protocol.publications import Proposal

        record, upload, client = Record(self._home), form.get("proposal"), form.get("client")
        if not isinstance(upload, UploadFile) or not isinstance(client, str):
            raise HTTPException(400, "Choose a proposal's file and the client that is charged.")
        with tempfile.NamedTemporaryFile(prefix="proposal-", suffix=".dpswd") as copy:
            while part := upload.file.read(1 << 20):
                copy.write(part)
            copy.flush()
            try:
                proposal = Proposal.read(Path(copy.name))
            except DataInvalid as error:
                raise DataInvalid(str(error).replace(copy.name, "the file")) from error
        preview = priced(
            proposal,
            client=client,
            books=record.reading.books,
            settings=record.settings,
            day=record.now.date().isoformat(),
        )
        request.state.session.looked = proposal, client, preview
        return self._show(
            "publication", request, record, clients=_names(record), chosen=client, preview=preview,
            words=proposal.purpose, digest=proposal.digest,
        )  # fmt: skip

    def _report(self, request: Request) -> Response:
        record, asked = Record(self._home), request.query_params
        given = {name: asked.get(name, "") for name in ("item", "words")}
        return self._show("report", request, record, items=items(record), statements=STATEMENTS, given=given)

    def _waiting(self, record: Record) -> int:
        return sum(asked.decision is None for asked in record.requests) + len(seconding.waiting(self._home))

    def _show(
        self, template: str, request: Request, record: Record | None, *, status: int = 200, **values: Any
    ) -> Response:
        """A page in its frame; without a record, as after an error, the frame says less."""
        session, path, live = request.state.session, request.url.path, LIVE in request.query_params
        if record is None:
            with contextlib.suppress(DpswdError):  # the page is about another error, or about this one
                values.setdefault("data_set", configuration.load(self._home.path).records.name)
        frame = Frame(
            data_set=values.pop("data_set", "") if record is None else record.overview.name,
            operator=self._home.operator if session.person is None else session.person.subject["name"],
            csrf=session.csrf,
            here=max((place for place, _ in PLACES if _within(path, place)), key=len, default=""),
            now=dt.datetime.now(dt.UTC) if record is None else record.now,
            state="" if record is None else record.overview.state,
            waiting=0 if record is None else self._waiting(record),
            notices=() if live else session.heard(),
            live="" if record is None or request.method == "POST" else f"{path}?{_query(request, **{LIVE: 1})}",
            mark="" if record is None else record.mark,
        )
        return page(template, status=status, frame=frame, **values)


def _query(request: Request, **further: object) -> str:
    """An address's query with further fields, as a person's."""
    return urlencode({name: value for name, value in request.query_params.items() if name != LIVE} | further)


def _within(path: str, place: str) -> bool:
    return path == place or (place != "/" and path.startswith(f"{place}/"))


def _names(record: Record) -> list[str]:
    return [client.name for client in record.clients]


def _paged(rows: Sequence[_Row], request: Request) -> tuple[Sequence[_Row], dict[str, str | None]]:
    """The rows of the page that the address asks for, and the addresses of its neighbours."""
    text = request.query_params.get("page", "0")
    number = min(int(text) if text.isdecimal() and len(text) < 9 else 0, max(0, len(rows) - 1) // ROWS)
    begin = number * ROWS

    def link(other: int) -> str:
        return f"?{_query(request, page=other)}"

    older = link(number + 1) if begin + ROWS < len(rows) else None
    return rows[begin : begin + ROWS], {"newer": link(number - 1) if number else None, "older": older}


def download(data: bytes, name: str, kind: str) -> Response:
    """A file that a browser keeps and does not show."""
    return Response(data, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
