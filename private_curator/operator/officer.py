"""What an officer looks for: the 23 items of the report, each from the ledger, the software or an operator's statement.

What is said stands in ``officer.toml``; here are the values. Renderers print `items` and add nothing.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.resources
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from dpswd.private_curator.core.ledger.statements import Kind
from dpswd.private_curator.operator.facts import RunFacts
from dpswd.private_curator.operator.record import Record
from dpswd.private_curator.operator.rendering import sentence, texts
from dpswd.shared.accounting.odds import PrivacyCurve, composed
from dpswd.shared.accounting.persons import promised_to_person
from dpswd.shared.core.errors import InvalidValue, rounded
from dpswd.shared.core.privacy.events import RunEvent

TEXTS = texts("officer.toml")
"""What is said, see ``officer.toml``."""
STATEMENTS: Mapping[str, str] = TEXTS["statements"]
"""What an operator can state, by the name of the item."""
EARLIER = "earlier-budgets"

AUDITED_ON = "2026-11-27"
AUDITED: Mapping[str, str] = {
    "class_statistics": "claimed 1, proved 0.96",
    "evaluation": "claimed 1, proved 0.96",
    "feature_sums": "claimed 1, proved 0.92",
    "labelled_quantiles": "claimed 1, proved 0.96",
    "quantiles": "claimed 1, proved 0.96",
    "score_statistics": "claimed 1, proved 0.97",
    "rows": "claimed 1.513, proved 0.00 by 800 trials",
    "gradient": "claimed 1.869, proved 0.61 by 800 trials",
    "labelled_rows": "claimed 2.014, proved 0.00 by 400 trials",
    "sinkhorn": "claimed 1.869, proved 0.15 by 200 trials",
    "labelled_gradient": "claimed 1.869, proved 0.00 by 200 trials",
}
"""The least bound of ten runs of canaries, or those by trials, as docs/privacy/audit-mechanisms.md and audit.md say."""

MOST_GROUPS = 6
"""Rows of releases on the page; the annex has each."""
_SHOWN = 70  # characters of a purpose, a reason or a name
_DIFFERING = 3  # packages that are named
_BUDGET = re.compile(r"epsilon ([0-9.]+(?:e-?[0-9]+)?), delta ([0-9.]+(?:e-?[0-9]+)?)")
_OVERRIDES = (Kind.STATE_ACCEPTED, Kind.RESTORED, Kind.COPIES_COUNTED)


@dataclass(frozen=True)
class Answer:
    """Something that is known, or that nobody has stated.

    Attributes:
        text: for a reader; how it is stated, where it is not.
        source: where it comes from; empty where nobody has stated it.
    """

    text: str
    source: str


@dataclass(frozen=True)
class Item:
    """Something that an officer looks for.

    Attributes:
        number: 1 to 23.
        title: of it.
        terms: where an officer knows it from.
        answers: what is known.
        heads: of a table below; empty for none.
        rows: of the table.
    """

    number: int
    title: str
    terms: str
    answers: tuple[Answer, ...]
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def items(record: Record) -> tuple[Item, ...]:
    """The 23 items of a curator, in order."""
    values = _values(record)
    tables = {"odds": _odds, "releases": _releases, "unprotected": _unprotected}
    made = []
    for number, each in enumerate(TEXTS["items"], start=1):
        answers = tuple(
            stated(record, one["stated"])
            if "stated" in one
            else Answer(sentence(one["text"]).render(values), one["source"])
            for one in each["answers"]
        )
        table = tables[each["table"]](record) if "table" in each else ((), ())
        made.append(Item(number, each["title"], each["terms"], answers, *table))
    return tuple(made)


def checked_statement(item: str, words: str) -> str:
    """The words of a statement as the ledger takes them.

    Raises:
        InvalidValue: there is no such item, or the words name no budget where budgets are asked for.
    """
    if item not in STATEMENTS:
        raise InvalidValue(f"nothing is stated of {item!r}; an operator states {', '.join(STATEMENTS)}")
    if item == EARLIER and words.strip() != "none" and not _BUDGET.search(words):
        raise InvalidValue(f"{item} is {STATEMENTS[item]}; not {words!r}")
    return words.strip()


def stated(record: Record, item: str) -> Answer:
    """An operator's statement, or how it is made."""
    statement, what = record.reading.books.stated.get(item), item.replace("-", " ").capitalize()
    if statement is None:
        return Answer(f"{what}: not stated (dpswd-curator report --state {item} WORDS)", "")
    return Answer(f"{what}: {statement.words}", f"{_short(statement.by, 40)}, {statement.time[:10]}")


def person_in_all(record: Record) -> tuple[float, float]:
    """Epsilon and delta of a person who was in this ledger and in all earlier ones that an operator has stated."""
    seen, statement = record.overview, record.reading.books.stated.get(EARLIER)
    epsilon, delta = promised_to_person(seen.epsilon, seen.delta, seen.records_per_person)
    for more, chance in _BUDGET.findall(statement.words if statement else ""):
        epsilon, delta = epsilon + float(more), delta + float(chance)
    return epsilon, min(1.0, delta)


def _values(record: Record) -> dict[str, object]:
    """What the texts name."""
    seen, books = record.overview, record.reading.books
    k = seen.records_per_person
    epsilon, delta = promised_to_person(seen.epsilon, seen.delta, k)
    acts = Counter(event.kind for event in record.history)
    overridden = [f"{kind.replace('-', ' ')}: {acts[kind]}" for kind in _OVERRIDES if acts[kind]]
    extension = next((event for event in reversed(record.history) if event.kind == Kind.BUDGET_EXTENDED), None)
    if extension is not None:
        overridden.insert(0, f"Extended by {_short(extension.who)} on {extension.time[:10]}: {_short(extension.why)}")
    return {
        "seen": seen,
        "health": record.health,
        "settings": record.settings,
        "operators": books.operators,
        "k": k,
        "epsilon": epsilon,
        "delta": delta,
        "spent": promised_to_person(seen.spent, seen.delta, k)[0],
        "in_all": person_in_all(record),
        "core": _core()[:32],
        "beats": list(books.quanta.values()),
        "extended": acts[Kind.BUDGET_EXTENDED],
        "audited_on": AUDITED_ON,
        "audited": AUDITED,
        "released": sorted({run.mechanism for run in record.runs}),
        "version": importlib.metadata.version("dpswd"),
        "dependencies": dependencies(),
        "overridden": overridden,
    }


_Table = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]


def _odds(record: Record) -> _Table:
    seen = record.overview
    k = seen.records_per_person
    most = max(seen.epsilon, seen.spent)  # what copies released is charged beyond the budget as well
    whole = PrivacyCurve.promised(*promised_to_person(most, seen.delta, k)).odds()
    until = composed(_released(record)).odds(records=k)
    heads = ("", "Attacker's advantage", "Sure, from 50%", "Sure, from 1%", "Finds, at 0.1% false positives")
    return heads, tuple(
        (name, *map(_percent, (each.advantage, each.posterior(0.5), each.posterior(0.01), each.true_positives)))
        for name, each in (("Released until now", until), ("All of the budget", whole))
    )


def _released(record: Record) -> Iterator[RunEvent]:
    """The runs of the ledger, and those that copies of it released, which are charged from receipts."""
    yield from (run.event for run in record.reading.runs)
    for entry in record.reading.entries:
        if entry.kind == Kind.COPIES_COUNTED:
            for run in entry.payload["runs"]:
                yield from repeat(record.reading.books.accounting.event_from_json(run["event"]), run["times"])


def _percent(share: float) -> str:
    """Rounded up, so that nobody reads of a smaller risk than there is."""
    return f"{math.ceil(share * 1e4 - 1e-9) / 100:.2f}%"


def _releases(record: Record) -> _Table:
    groups: dict[tuple[str, str, str], list[RunFacts]] = {}
    for run in record.runs:
        groups.setdefault((run.client, run.mechanism, run.purpose), []).append(run)
    ordered = sorted(groups.items(), key=lambda group: -sum(run.increase for run in group[1]))
    rows = [
        _group(_short(client), mechanism, _short(purpose) or "not stated", runs)
        for (client, mechanism, purpose), runs in ordered[:MOST_GROUPS]
    ]
    if others := [run for _, runs in ordered[MOST_GROUPS:] for run in runs]:
        rows.append(_group("others", "see the annex", "see the annex", others))
    return ("To", "Mechanism", "Noise (deviation)", "For", "Runs", "Adds epsilon") if rows else (), tuple(rows)


def _group(client: str, mechanism: str, purpose: str, runs: Sequence[RunFacts]) -> tuple[str, ...]:
    noises = sorted({run.noise for run in runs})
    noise = noises[0] + (f" and {len(noises) - 1} more" if len(noises) > 1 else "")
    return client, mechanism, noise, purpose, str(len(runs)), rounded(sum(run.increase for run in runs), up=True)


def _unprotected(_record: Record) -> _Table:
    return ("What", "What it tells"), tuple((each["name"], each["why"]) for each in TEXTS["unprotected"])


def _short(text: str, most: int = _SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


@functools.cache
def _core() -> str:
    """SHA-256 over the installed files of core and mechanisms, by name."""
    whole, root = hashlib.sha256(), Path(str(importlib.resources.files("dpswd")))
    for part in ("shared/core", "private_curator/core", "shared/published_mechanisms"):
        for file in sorted((root / part).rglob("*.py")):
            whole.update(f"{file.relative_to(root)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


@functools.cache
def dependencies() -> str:
    """Which list of dependencies the release came with, and what is installed otherwise than it says."""
    data = importlib.resources.files("dpswd").joinpath("dependencies.cdx.json").read_bytes()
    listed = {part["name"]: part["version"] for part in json.loads(data)["components"]}
    installed = {re.sub(r"[-_.]+", "-", d.name).lower(): d.version for d in importlib.metadata.distributions()}
    others = [
        f"{name} {own}" for name, own in sorted(installed.items()) if own.partition("+")[0] != listed.get(name, own)
    ]
    differing = ", ".join([*others[:_DIFFERING], "..."] if len(others) > _DIFFERING else others)
    return hashlib.sha256(data).hexdigest()[:32] + (f"; installed in other versions: {differing}" if others else "")
