"""Acts that two operators must want: the first signs the wish, the second does it by asking for the very same.

Two operators are two credentials that the ledger enrols; names that somebody types are none. Who may write to the
curator's directory may change the program, but signs for nobody else, and the ledger remembers ``operators.second``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpswd.private_curator.books.operators import WISH, Enrolled, person
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.files import write_private

WAITS = dt.timedelta(days=7)
"""How long a noted act waits; whoever meant it then notes it anew."""


class ActNoted(SettingsError):
    """An act that waits for a second operator: it was not done."""


@contextlib.contextmanager
def seconded(
    home: HomeDirectory,
    act: str,
    arguments: Mapping[str, Any],
    *,
    reason: str,
    enrolled: Callable[[], Enrolled] | None = None,
    now: dt.datetime | None = None,
) -> Iterator[HomeDirectory]:
    """The home to act on: under both credentials where the settings want two operators for this act.

    Args:
        home: of the curator; its operator acts.
        act: one of those that ``operators.second`` may name; ``enrol`` and ``remove``, of operators themselves, take
            two as soon as any act does and two are enrolled.
        arguments: of the act, JSON.
        reason: why.
        enrolled: reads the operators where the home's ledger is not to be asked.
        now: the present.

    Raises:
        ActNoted: the act waits for another operator.
        SettingsError: two are wanted who are not enrolled.
    """
    by, roster = home.acting, (enrolled or (lambda: home.read_ledger().books.operators))()
    chosen = {*configuration.load(home.path).operators.second, *roster.second}
    if act not in chosen and not (chosen and act in ("enrol", "remove") and len(roster.keys) > 1):
        by.propose()
        yield home
        return
    if (by.subject is None and len(roster.keys) < 2) or not roster.counts(by.name, by.credential):
        raise SettingsError(
            f"{act} takes two operators (operators.second), each with a credential: {len(roster.keys)} are enrolled, "
            f"and {by.name!r} has shown {'none' if by.credential is None else 'another one'}. Make one (`dpswd-curator "
            "operators --make`), enrol it (`operators --add`), and give it (--credential FILE)"
        )
    name, now = (by.subject or {}).get("name", by.name), now or dt.datetime.now(dt.UTC)
    text = json.dumps([act, arguments], sort_keys=True)
    path = home.noted_acts / f"{act}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    first = _noted(path)
    if first is not None and (
        (first["act"], first["arguments"]) != (act, json.loads(json.dumps(arguments)))
        or dt.datetime.fromisoformat(first["time"]) + WAITS < now
        or (person(first) != person(by.named) and roster.problem(first, by.named))
    ):
        first = None
    if first is None or person(first) == person(by.named):
        if first is None:
            by.propose()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            time = now.isoformat(timespec="seconds")
            noted = by.wish(act, arguments, reason=reason, ledger=roster.ledger, time=time)
            write_private(path, json.dumps(noted).encode())
        raise ActNoted(
            f"noted for {name} and not done: {act} takes two operators (operators.second). Another one does it by "
            f"giving the same command with the same values and another --credential within {WAITS.days} days"
        )
    yield HomeDirectory(home.path, operator=replace(by, first=first))
    path.unlink(missing_ok=True)


def waiting(home: HomeDirectory) -> list[Mapping[str, Any]]:
    """The acts that wait for a second operator, the oldest first."""
    acts = [noted for path in sorted(home.noted_acts.glob("*.json")) if (noted := _noted(path)) is not None]
    return sorted(acts, key=lambda noted: str(noted["time"]))


def _noted(path: Path) -> dict[str, Any] | None:
    try:
        noted: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        dt.datetime.fromisoformat(noted["time"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return noted if set(noted) == WISH else None
