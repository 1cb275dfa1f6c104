"""What pages say beyond the record's own values: sentences and the chart. Pure; templates call it as `views`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from dpswd.private_curator.books.figures import BudgetRequest
from dpswd.private_curator.operator.charts import SpentOverTime, spent_over_time
from dpswd.private_curator.operator.facts import ClientFacts, Overview
from dpswd.private_curator.operator.history import Point
from dpswd.shared.core.errors import rounded

_SIZES = {"wide": (1000.0, 300.0), "narrow": (320.0, 220.0)}
"""Width and height of a desktop's chart and of a phone's. A page holds both, the style sheet shows one."""


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
    places = {"extend": "/budget?{}#extend", "approve": "/clients?{}#approve", "state": "/report?{}#statement"}
    names, given = ("epsilon", "delta", "days", "item", "words"), noted["arguments"]
    filled = {name: given[name] for name in names if given.get(name)} | {"reason": noted["reason"]}
    return places.get(noted["act"], "").format(urlencode(filled))
