"""Several sites asked side by side; one that is slow holds the others up for a bounded time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dpswd.shared.core.errors import CuratorUnavailable, DpswdError, InvalidValue, SettingsError

_Answer = TypeVar("_Answer")


def ask_each(
    names: Sequence[str],
    ask: Callable[[str], _Answer],
    *,
    parallel: bool = True,
    straggler_s: float | None = None,
    to_the_end: bool = False,
) -> tuple[dict[str, _Answer], dict[str, DpswdError]]:
    """Answers and errors by name; settings that cannot work are the caller's and end it at once.

    Args:
        names: of the sites.
        ask: asks one.
        parallel: one thread for each.
        straggler_s: once half of the sites have answered, the others have as long again and so many seconds more; a
            site that takes longer is given up, with `CuratorUnavailable`. Without it all are waited for.
        to_the_end: also the caller's own mistake is raised only when no thread asks any more.
    """

    def attempt(name: str) -> _Answer | DpswdError:
        try:
            return ask(name)
        except SettingsError:
            raise
        except DpswdError as error:
            return error

    if parallel and len(names) > 1:
        outcomes = _side_by_side(names, attempt, straggler_s, to_the_end=to_the_end)
    else:
        outcomes = {name: attempt(name) for name in names}
    lost = {name: value for name, value in outcomes.items() if isinstance(value, DpswdError)}
    return {name: value for name, value in outcomes.items() if not isinstance(value, DpswdError)}, lost


@dataclass(frozen=True)
class _Raised:
    """What ended a thread, and is the caller's."""

    error: BaseException


def _side_by_side(
    names: Sequence[str], attempt: Callable[[str], _Answer | DpswdError], straggler_s: float | None, *, to_the_end: bool
) -> dict[str, _Answer | DpswdError]:
    """The outcomes by name. The threads of stragglers are left behind; what they still bring, nobody hears."""
    heard: queue.SimpleQueue[tuple[str, _Answer | DpswdError | _Raised]] = queue.SimpleQueue()

    def run(name: str) -> None:
        try:
            heard.put((name, attempt(name)))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            heard.put((name, _Raised(error)))

    begun = time.monotonic()
    for name in names:
        threading.Thread(target=run, args=(name,), name=f"site {name}", daemon=True).start()
    outcomes: dict[str, _Answer | DpswdError] = {}
    raised: list[BaseException] = []
    answered, until_s = 0, None
    while len(outcomes) < len(names):
        elapsed = time.monotonic() - begun
        if until_s is None and straggler_s is not None and 2 * answered >= len(names):
            until_s = 2.0 * elapsed + straggler_s
        try:
            name, outcome = heard.get(timeout=None if until_s is None else max(0.0, until_s - elapsed))
        except queue.Empty:
            break
        if isinstance(outcome, _Raised):
            raised.append(outcome.error)
            if not to_the_end:
                break
            outcome = InvalidValue(str(outcome.error))  # heard; nobody reads it
        outcomes[name] = outcome
        answered += not isinstance(outcome, DpswdError)
    if raised:
        raise raised[0]
    late = f"no answer within {until_s or 0.0:.0f} s, in which half of the sites had long answered; it was given up"
    return {name: outcomes[name] if name in outcomes else CuratorUnavailable(late) for name in names}
