"""Everything that happened to a data set, in order and in words: charges, refusals, requests and operators' acts."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpswd.private_curator.books.figures import GO_WITH_A_CHARGE
from dpswd.private_curator.books.operators import who
from dpswd.private_curator.books.register import Register, account_status
from dpswd.private_curator.books.renyi import RENYI
from dpswd.private_curator.core.ledger.accounts import Account
from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.private_curator.operator.rendering import sentence, texts
from dpswd.private_curator.storage.asks import Refusals
from dpswd.private_curator.storage.incidents import Incident
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.ledger.receipts import SignedEntry


class Category(enum.StrEnum):
    """What kind of thing happened."""

    CHARGE = "charge"  # a run was charged
    REFUSAL = "refusal"  # a client was refused
    REQUEST = "request"  # a client asked for budget
    ACT = "act"  # an operator did something
    INCIDENT = "incident"  # an unexpected error


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
        time: UTC, ISO 8601.
        category: what kind of thing.
        kind: the ledger's kind, or the reason of a refusal.
        who: the operator who acted, or the client who asked.
        client: whom it is about; empty where it is about the data set.
        text: what happened, in a sentence.
        why: the operator's reason, or the client's purpose.
        run: the run's id, where there is one.
        epsilon: of the run alone, or of the budget that was set; None where there is none.
        spent: of the data set, after it; None for what is not in the ledger.
        entry: its place in the ledger; 0 for what is not in it.
        count: how often, for refusals of one day that stand together.
    """

    time: str
    category: Category
    kind: str
    who: str
    client: str
    text: str
    why: str = ""
    run: str = ""
    epsilon: float | None = None
    spent: float | None = None
    entry: int = 0
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Point:
    """The data set's account after an entry that changed it.

    Attributes:
        time: UTC, ISO 8601.
        entry: its place in the ledger.
        kind: `Kind.RUN_OPENED`, or the act that changed the budget.
        spent: epsilon, at the budget's delta then.
        epsilon: the budget's.
        delta: the budget's.
        run: the run that was charged; empty for an act.
    """

    time: str
    entry: int
    kind: str
    spent: float
    epsilon: float
    delta: float
    run: str = ""


_TEXTS = texts("history.toml")
_MOVES = (Kind.DATA_SET_OPENED, Kind.RUN_OPENED, Kind.BUDGET_LOWERED, Kind.BUDGET_EXTENDED, Kind.COPIES_COUNTED)


@dataclass(frozen=True)
class Followed:
    """What the ledger's entries tell, one after the other.

    Attributes:
        events: the ledger's part of the history.
        points: the data set's account over time.
        increases: what each run added to the data set's epsilon, and to its client's share where it had one.
    """

    events: list[Event]
    points: list[Point]
    increases: dict[str, tuple[float, float | None]]


def followed(entries: Iterable[SignedEntry]) -> Followed:
    """Reads a ledger's entries, all but those of steps, in order from the first."""
    books, history = Register(RENYI), Followed([], [], {})
    for entry in entries:
        payload = entry.payload
        share, whole = books.shares.get(payload.get("client") or ""), books.data_set
        books.apply(entry)
        spent = _spent(books.account)
        if entry.kind in _MOVES:
            budget = books.account.budget
            point = Point(
                time=entry.time,
                entry=entry.seq,
                kind=entry.kind,
                spent=spent,
                epsilon=budget.epsilon,
                delta=budget.delta,
                run=payload.get("run", ""),
            )
            history.points.append(point)
        if entry.kind == Kind.RUN_OPENED and whole is not None:
            of_share = None if share is None else _spent(books.shares[payload["client"]]) - _spent(share)
            history.increases[payload["run"]] = spent - _spent(whole), of_share
        if entry.kind not in GO_WITH_A_CHARGE:
            history.events.append(_event(entry, spent=spent, before=None if whole is None else whole.budget.epsilon))
    return history


def _spent(account: Account) -> float:
    return account_status(account, closed=False).epsilon_spent


def _event(entry: SignedEntry, *, spent: float, before: float | None) -> Event:
    payload, kind = entry.payload, Kind(entry.kind)
    category = {Kind.RUN_OPENED: Category.CHARGE, Kind.BUDGET_REQUESTED: Category.REQUEST}.get(kind, Category.ACT)
    client = payload.get("client") or ""
    budget = payload.get("budget") or payload.get("share") or {}
    return Event(
        time=entry.time, category=category, kind=kind.value,
        who=who(payload.get("by")) if category is Category.ACT else client, client=client,
        text=sentence(_TEXTS[kind]).render(payload, before=before), why=_why(payload), run=payload.get("run", ""),
        epsilon=payload.get("epsilon", budget.get("epsilon")), spent=spent, entry=entry.seq,
    )  # fmt: skip


def _why(payload: Mapping[str, Any]) -> str:
    return payload.get("accepted") or payload.get("reason") or payload.get("purpose") or ""


def refused(refusals: Iterable[Refusals]) -> list[Event]:
    """The refusals of the book of asks."""
    return [
        Event(
            time=row.last,
            category=Category.REFUSAL,
            kind=row.reason,
            who=row.client or "somebody unknown",
            client=row.client,
            text=sentence(_TEXTS["refusal"]).render(vars(row)),
            why=row.purpose,
            epsilon=row.epsilon,
            count=row.count,
        )
        for row in refusals
    ]


def met(incidents: Iterable[Incident]) -> list[Event]:
    """The incidents of the curator's book."""
    return [
        Event(
            time=incident.time.replace("+00:00", "Z"),
            category=Category.INCIDENT,
            kind="incident",
            who=incident.client,
            client=incident.client,
            text=f"an unexpected error in {incident.operation}: incident {incident.number}",
        )
        for incident in incidents
    ]


def selected(
    events: Iterable[Event],
    *,
    categories: Sequence[Category] = (),
    client: str | None = None,
    who: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> list[Event]:
    """The part of a history that is asked for, in order.

    Args:
        events: in any order.
        categories: any of these; all by default.
        client: whom it is about.
        who: who acted or asked.
        since: the first day, YYYY-MM-DD, UTC.
        until: the last day.

    Raises:
        InvalidValue: a day is none.
    """
    for day in (since, until):
        _check_day(day)
    chosen = [
        event
        for event in events
        if (not categories or event.category in categories)
        and (client is None or event.client == client)
        and (who is None or event.who == who)
        and (since or "") <= event.time[:10] <= (until or "9999-12-31")
    ]
    return sorted(chosen, key=lambda event: (event.time[:19], event.entry))


def _check_day(day: str | None) -> None:
    try:
        if day is not None:
            dt.date.fromisoformat(day)
    except ValueError as error:
        raise InvalidValue(f"{day!r} is no day; write it as 2026-11-30") from error
