"""What pages say beyond the record's own values: sentences, pills and the chart. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from dpswd.private_curator.books.figures import BudgetRequest
from dpswd.private_curator.operator.charts import SpentOverTime, spent_over_time
from dpswd.private_curator.operator.facts import ClientFacts, Health, Overview
from dpswd.private_curator.operator.history import Category, Point
from dpswd.private_curator.settings.groups import LedgerSettings
from dpswd.shared.core.errors import rounded

_SIZES = {"wide": (1000.0, 300.0), "narrow": (320.0, 220.0)}
"""Width and height of a desktop's chart and of a phone's. A page holds both, the style sheet shows one."""


class Pill(NamedTuple):
    """A word with a colour, which never says more: good, warn, bad, or none."""

    text: str
    tone: str = ""


STATES = {"active": "good", "paused": "warn", "revoked": "bad"}
TONES = {Category.REFUSAL: "bad", Category.INCIDENT: "bad", Category.REQUEST: "warn", Category.CHARGE: "info"}


def charts(overview: Overview, *, now: dt.datetime) -> dict[str, SpentOverTime]:
    """The account over time, for a desktop and for a phone."""
    return {name: spent_over_time(overview, size=size, now=now) for name, size in _SIZES.items()}


def chart_in_words(overview: Overview) -> str:
    """What the chart shows, for whoever does not see it."""
    opened, *later = overview.points
    acts = [f"{what_of(point)} on {point.time[:10]}" for point in later if not point.run]
    begun = f"Opened on {opened.time[:10]} with a budget of epsilon {opened.epsilon:g}"
    runs = "1 run" if overview.runs == 1 else f"{overview.runs} runs"
    spent = f"{runs} spent epsilon {rounded(overview.spent, up=True)} of {overview.epsilon:g}."
    return f"{'; '.join([begun, *acts])}. Until now {spent}"


def what_of(point: Point) -> str:
    """What a point of the account is about."""
    if point.run:
        return f"run {point.run[:8]}"
    return f"{point.kind.replace('-', ' ')} to {point.epsilon:g}" if point.entry > 1 else "opened"


def bar(client: ClientFacts, *, whole: float) -> tuple[float, str]:
    """What a client's bar is of, and its figures in words."""
    spent = rounded(client.spent, up=True)
    if client.share is None:
        return whole, f"epsilon {spent} spent; no share of its own, the data set's {whole:g} limits it"
    assert client.remaining is not None
    left = rounded(client.remaining, up=False)
    return client.share, f"epsilon {spent} spent of its share of {client.share:g}; {left} left"


def effect(request: BudgetRequest, client: ClientFacts, overview: Overview) -> str:
    """What granting all of a request would do."""
    allowed = (client.spent if client.share is None else client.share) + request.epsilon
    left = rounded(overview.remaining, up=False)
    text = f"{client.name} may spend epsilon {allowed:.4g} in all; the data set has {left} left"
    if allowed > overview.epsilon:
        return f"{text}. That is more than its budget of {overview.epsilon:g}: grant less, or extend it first"
    return text


def again(noted: Mapping[str, Any]) -> str:
    """The page on which a second operator does what a first one has noted, filled in; empty where there is none."""
    place = {"extend": "/budget?{}#extend", "approve": "/clients?{}#approve", "state": "/report?{}#statement"}.get(
        noted["act"], ""
    )
    given = {
        name: value
        for name, value in noted["arguments"].items()
        if name in ("epsilon", "delta", "days", "item", "words") and value
    }
    return place.format(urlencode({**given, "reason": noted["reason"]}))


def witness(health: Health) -> Pill:
    """Whether what was noted outside of the ledger agrees with it."""
    if health.witness_holds is None:
        return Pill("nothing noted", "warn")
    return Pill("agrees", "good") if health.witness_holds else Pill("DISAGREES", "bad")


def heads(settings: LedgerSettings) -> str:
    """Where the ledger's last entry is told besides the curator's own note."""
    places = [f"the file {settings.heads_file}"] if settings.heads_file else []
    places += [f"the program {settings.heads_command[0]}"] if settings.heads_command else []
    return ", ".join(places) or "nobody; ledger.heads_file and heads_command do"
