"""What one client may have under way: the others' share of the curator's threads and memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from shared.errors import RequestInProgress, TooManyRequests


class Turns:
    """Counts requests and their bytes by client.

    Args:
        most: requests that one client may have under way.
        most_bytes: of these requests together; a single request may always come.
    """

    def __init__(self, most: int, *, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._under_way: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._steps: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, client: str, *, size: int = 0) -> Iterator[None]:
        """One request of this client, from here to the end of the block.

        Args:
            client: who asks.
            size: bytes of the request, before it is parsed.

        Raises:
            TooManyRequests: it has as many under way as one client may.
        """
        with self._lock:
            under_way, held = self._under_way[client], self._bytes[client]
            if under_way >= self._most:
                raise TooManyRequests(
                    f"this client has {self._most} requests under way, as many as one client may; repeat this one when "
                    "one of them is answered"
                )
            if under_way and held + size > self._most_bytes:
                raise TooManyRequests(
                    f"this client's requests under way have {held} bytes, with this one more than {self._most_bytes}; "
                    "repeat it when one of them is answered"
                )
            self._under_way[client] += 1
            self._bytes[client] += size
        try:
            yield
        finally:
            with self._lock:
                self._under_way[client] -= 1
                self._bytes[client] -= size
                if not self._under_way[client]:
                    del self._under_way[client], self._bytes[client]

    @contextmanager
    def alone(self, client: str, step: str | None) -> Iterator[None]:
        """A request that draws a step is under way until its reply leaves.

        One that repeats it meanwhile must not find out, by being answered, when the reply was ready.

        Args:
            client: who asks.
            step: the request's own id; None for any other request.

        Raises:
            RequestInProgress: this very step is under way.
        """
        if step is None:
            yield
            return
        with self._lock:
            if (client, step) in self._steps:
                raise RequestInProgress("this request is being answered; repeat it later with the same id")
            self._steps.add((client, step))
        try:
            yield
        finally:
            with self._lock:
                self._steps.discard((client, step))
