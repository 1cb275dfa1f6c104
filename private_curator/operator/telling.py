"""How far something long is, told now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

TELL_EACH_S = 5.0


class ProgressReporter:
    """Tells how many entries of a ledger are verified, or what else is done; nothing of what takes no time.

    Args:
        tell: takes a sentence, such as a log or a terminal.
        each_s: seconds between two sentences, and before the first.
        text: the sentence, with places for `done` and `total`.
    """

    def __init__(
        self,
        tell: Callable[[str], object],
        *,
        each_s: float = TELL_EACH_S,
        text: str = "the ledger: {done:,} of {total:,} entries are verified",
    ) -> None:
        self._tell, self._each_s, self._text = tell, each_s, text
        self._next = time.monotonic() + each_s

    def __call__(self, done: int, total: int) -> None:
        """See `dpswd.private_curator.books.audit.Progress`."""
        if time.monotonic() >= self._next:
            self._tell(self._text.format(done=done, total=total))
            self._next = time.monotonic() + self._each_s
