"""How many requests one client may have under way: the others' share of the curator's threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import TooManyRequests


class Turns:
    """Counts requests by client.

    Args:
        most: that one client may have under way.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, client: str) -> Iterator[None]:
        """One request of this client, from here to the end of the block.

        Raises:
            TooManyRequests: it has as many under way as one client may.
        """
        with self._lock:
            if self._under_way[client] >= self._most:
                raise TooManyRequests(
                    f"this client has {self._most} requests under way, as many as one client may; repeat this one when "
                    "one of them is answered"
                )
            self._under_way[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way[client] -= 1
                if not self._under_way[client]:
                    del self._under_way[client]
