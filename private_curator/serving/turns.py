"""How many requests one client may have under way: the others' share of the curator's threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import RequestInProgress, TooManyRequests


class Turns:
    """Counts requests by client.

    Args:
        most: that one client may have under way.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: Counter[str] = Counter()
        self._steps: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, client: str, *, step: str | None = None) -> Iterator[None]:
        """One request of this client, from here to the end of the block.

        Args:
            client: who asks.
            step: the request's own id, where it draws a step. Such a request is under way until its reply leaves: one
                that repeats it meanwhile must not find out, by being answered, when the reply was ready.

        Raises:
            TooManyRequests: it has as many under way as one client may.
            RequestInProgress: this very step is under way.
        """
        with self._lock:
            if self._under_way[client] >= self._most:
                raise TooManyRequests(
                    f"this client has {self._most} requests under way, as many as one client may; repeat this one when "
                    "one of them is answered"
                )
            if step is not None and (client, step) in self._steps:
                raise RequestInProgress("this request is being answered; repeat it later with the same id")
            self._under_way[client] += 1
            if step is not None:
                self._steps.add((client, step))
        try:
            yield
        finally:
            with self._lock:
                self._under_way[client] -= 1
                if not self._under_way[client]:
                    del self._under_way[client]
                if step is not None:
                    self._steps.discard((client, step))
