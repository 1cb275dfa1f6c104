"""Acts that two operators must want: the first notes it, the second does it by asking for the very same.

A guard against one person's mistake or haste, among persons who act under their own names. Whoever owns the curator's
directory can pass it; the ledger then says who did.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.files import write_private

WAITS = dt.timedelta(days=7)
"""How long a noted act waits; whoever meant it then notes it anew."""


@dataclass(frozen=True)
class Noted:
    """An act that waits for a second operator.

    Attributes:
        act: extend, approve or restore.
        arguments: of the act.
        by: who wants it.
        reason: why.
        time: UTC, ISO 8601.
    """

    act: str
    arguments: Mapping[str, Any]
    by: str
    reason: str
    time: str


@contextlib.contextmanager
def seconded(
    home: HomeDirectory, act: str, arguments: Mapping[str, Any], *, reason: str, now: dt.datetime | None = None
) -> Iterator[HomeDirectory]:
    """The home to act on: under both names where the settings want two operators for this act.

    Args:
        home: of the curator; its operator acts.
        act: one of those that ``operators.second`` may name.
        arguments: of the act, JSON.
        reason: why.
        now: the present.

    Raises:
        SettingsError: the act was noted, and waits for another operator.
    """
    if act not in configuration.load(home.path).operators.second:
        yield home
        return
    now = now or dt.datetime.now(dt.UTC)
    text = json.dumps([act, arguments], sort_keys=True)
    path = home.noted_acts / f"{act}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    first = _noted(path)
    if first is not None and dt.datetime.fromisoformat(first.time) + WAITS < now:
        first = None
    if first is None or first.by == home.operator:
        if first is None:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            noted = Noted(act, arguments, home.operator, reason, now.isoformat(timespec="seconds"))
            write_private(path, json.dumps(asdict(noted)).encode())
        raise SettingsError(
            f"noted for {home.operator} and not done: {act} takes two operators (operators.second). Another one does "
            f"it by giving the same command with the same values (--as NAME) within {WAITS.days} days"
        )
    yield HomeDirectory(home.path, operator=f"{first.by}, seconded by {home.operator}"[:100])
    path.unlink(missing_ok=True)


def waiting(home: HomeDirectory) -> list[Noted]:
    """The acts that wait for a second operator, the oldest first."""
    found = [noted for path in sorted(home.noted_acts.glob("*.json")) if (noted := _noted(path)) is not None]
    return sorted(found, key=lambda noted: noted.time)


def _noted(path: Path) -> Noted | None:
    try:
        return Noted(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
