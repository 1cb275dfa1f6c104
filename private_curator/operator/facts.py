"""What an operator can look at, as plain values; `dpswd.private_curator.operator.record` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpswd.private_curator.books.figures import BudgetRequest
from dpswd.private_curator.operator.history import Point
from dpswd.private_curator.storage.checks import Check
from dpswd.shared.core.errors import rounded
from dpswd.shared.watching import Change

WHY_COUNTS_DIFFER = (
    "A run's own epsilon, a client's count and the data set's increase differ, and each is right. Epsilon does not add "
    "up: the first run costs most, and each later one adds less than it would cost alone. A client's count is of its "
    "own runs, the data set's of everybody's together; each is counted in a filter of its own. The data set's figure "
    "is the promise to the persons; the others say who used how much of it."
)
"""Shown wherever a client's count stands beside the data set's."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Where spending leads.

    Attributes:
        next_spent: epsilon of the data set after one more run like the last; None before the first run.
        next_fits: whether that run would be admitted to the data set's budget.
        exhausted_on: the day (YYYY-MM-DD) on which the budget ends at the rate so far; None where none can be told, or
            spending began less than a week ago.
    """

    next_spent: float | None
    next_fits: bool
    exhausted_on: str | None


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The data set and its budget.

    Attributes:
        name: public.
        records: n, public.
        records_per_person: k, how many of them one person has at most; public.
        state: open, frozen or ended.
        promise: what the budget promises, in a sentence.
        epsilon: of the budget in force.
        delta: the same.
        relation: the neighbouring relation.
        spent: epsilon, at the budget's delta.
        remaining: the same; 0 where nothing may be spent.
        runs: how many were charged.
        steps_charged: of all runs.
        steps_used: steps that were begun.
        steps_repeated: attempts beyond a step's first.
        points: the account over time; the first is the opening. `Kind.BUDGET_EXTENDED` marks extensions.
        forecast: where spending leads.
    """

    name: str
    records: int
    records_per_person: int
    state: str
    promise: str
    epsilon: float
    delta: float
    relation: str
    spent: float
    remaining: float
    runs: int
    steps_charged: int
    steps_used: int
    steps_repeated: int
    points: tuple[Point, ...]
    forecast: Forecast


def ahead(overview: Overview) -> tuple[str, ...]:
    """Where spending leads, in sentences."""
    forecast = overview.forecast
    if forecast.next_spent is None:
        return ("Nothing was spent yet, so there is no rate to go by.",)
    if overview.state != "open":
        first = "Nothing is released now, so nothing is spent."
    elif overview.remaining <= 0.0:
        first = "The budget is exhausted: extend it first, if more is to be released."
    elif forecast.exhausted_on is None:
        first = "When the budget ends cannot be told: of less than a week of spending no rate is taken."
    else:
        since = "one run" if overview.runs == 1 else f"{overview.runs} runs"
        first = f"At the rate so far ({since}) the budget is exhausted on {forecast.exhausted_on}."
    left = rounded(max(0.0, overview.epsilon - forecast.next_spent), up=False)
    second = (
        f"The next run like the last leaves epsilon {left}."
        if forecast.next_fits
        else "Another run like the last is not admitted as things stand."
    )
    return first, second


@dataclass(frozen=True, kw_only=True)
class CertificateFacts:
    """One certificate of a client that counts.

    Attributes:
        fingerprint: SHA-256, hexadecimal.
        expires: UTC, ISO 8601; None where no copy was kept.
        expired: whether it has.
        last_seen: UTC, ISO 8601; None where it was never used, or not since the book of asks began.
        last_peer: the address that it was last used from; empty where it was not.
    """

    fingerprint: str
    expires: str | None
    expired: bool
    last_seen: str | None
    last_peer: str


@dataclass(frozen=True, kw_only=True)
class ClientFacts:
    """One client.

    Attributes:
        name: of the client.
        state: active, paused or revoked.
        share: epsilon of its own share; None where only the data set's budget limits it.
        share_delta: the share's delta; None without one.
        spent: what its own runs cost together, in epsilon: of its share, or else in the data set's filter.
        remaining: of its share; None without one.
        runs: how many it was charged.
        caps: by "day" and "year" (UTC), where there is one: epsilon, and what its runs of now cost of it.
        certificates: those that count, the oldest first.
        last_seen: UTC, ISO 8601; None where it never was.
        refusals: how many requests of its were refused, of those that the book of asks keeps.
        waiting: its request for budget that nobody has decided; None where there is none.
        watched: of each model that it evaluated again, by its weights' digest: the last time beside the first.
    """

    name: str
    state: str
    share: float | None
    share_delta: float | None
    spent: float
    remaining: float | None
    runs: int
    caps: dict[str, tuple[float, float]]
    certificates: tuple[CertificateFacts, ...]
    last_seen: str | None
    refusals: int
    waiting: BudgetRequest | None
    watched: dict[str, Change]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One run that was charged.

    Attributes:
        run_id: 32 hexadecimal digits.
        client: who was charged.
        opened: UTC, ISO 8601.
        purpose: why, in the client's words; may be empty.
        mechanism: the name of what a step releases.
        release: how many numbers leave in a step, in words for whoever decides.
        exactly: what they are, in the words of the priced event.
        noise: the standard deviations of its noises, in words.
        batch: b, records of one step's sample.
        records: n.
        steps: T, charged.
        steps_used: begun.
        state: "open", "finished" (every step is used), or "closed" (the operator has discarded its replies).
        epsilon: of the run alone, at the data set's delta.
        increase: what it added to the data set's epsilon.
        client_increase: what it added to the client's share; None without one then.
        price: each account's price, canonical JSON; by account.
        graph: SHA-256 of the extractor's graph.
        weights: SHA-256 of its weights.
        request_id: of the client.
        entry: its place in the ledger.
        receipt: the signed charge, a line that `dpswd-client check` reads.
    """

    run_id: str
    client: str
    opened: str
    purpose: str
    mechanism: str
    release: str
    exactly: str
    noise: str
    batch: int
    records: int
    steps: int
    steps_used: int
    state: str
    epsilon: float
    increase: float
    client_increase: float | None
    price: Mapping[str, str]
    graph: str
    weights: str
    request_id: str
    entry: int
    receipt: str


@dataclass(frozen=True, kw_only=True)
class Health:
    """The ledger.

    Attributes:
        place: file or database.
        ledger_id: 32 hexadecimal digits.
        public_key: Ed25519, hexadecimal.
        entries: its length.
        head: SHA-256 of the last entry.
        head_time: when that was made, UTC.
        head_signed: whether its signature is by the ledger's own key.
        witness: what the curator's note of the last entry says: in words.
        witness_holds: whether the ledger holds the noted entry; None where nothing is noted.
        verified: the last verification; None where none was noted.
        backed_up: the last backup; None where none was noted.
        incidents: how many unexpected errors are in the book.
        serving: host:port, where a curator serves; empty where none does.
    """

    place: str
    ledger_id: str
    public_key: str
    entries: int
    head: str
    head_time: str
    head_signed: bool
    witness: str
    witness_holds: bool | None
    verified: Check | None
    backed_up: Check | None
    incidents: int
    serving: str
