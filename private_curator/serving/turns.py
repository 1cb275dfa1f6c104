"""What one client may have under way, and all together: the others' share of the curator's threads and memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpswd.shared.core.errors import RequestInProgress, TooManyRequests

_WAIT_S = 2.0
"""How long a request waits for room before it is told to come again: others are received within that, or are slow."""
_UNREAD = 4
"""Replies that a client may leave unread, for each request that it may have under way; one that reads has none."""


class Turns:
    """Counts requests and their bytes by client.

    How many bytes a request has is known when it is there. So room for the largest is kept before it is received, and
    given back when its size is known.

    Args:
        most: requests that one client may have under way.
        most_bytes: of these requests together, and of the replies that it has not read.
        largest: bytes of one request; as many may always come.
        most_in_all: bytes of all clients' requests together.
        wait_s: how long to wait for room.
    """

    def __init__(self, most: int, *, most_bytes: int, largest: int, most_in_all: int, wait_s: float = _WAIT_S) -> None:
        self._most = most
        self._most_bytes = max(most_bytes, largest)
        self._largest = largest
        self._most_in_all = max(most_in_all, largest)
        self._wait_s = wait_s
        self._under_way: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._unread: Counter[str] = Counter()
        self._unread_bytes: Counter[str] = Counter()
        self._steps: set[tuple[str, str]] = set()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, client: str) -> Iterator[Callable[[int], None]]:
        """One request of this client, from before it is received to the end of the block.

        Args:
            client: who asks.

        Yields:
            To be called with the request's bytes as soon as it is there.

        Raises:
            TooManyRequests: it has as many under way, or as many replies unread, as one client may; or there is no
                room to receive a request.
        """
        kept = self._largest
        with self._changed:
            self._require_turn(client)
            self._under_way[client] += 1
            try:
                self._keep_room(client)
            except BaseException:
                self._add(self._under_way, client, -1)
                raise

        def received(size: int) -> None:
            nonlocal kept
            with self._changed:
                self._add(self._bytes, client, size - kept)
                kept = size
                self._changed.notify_all()

        try:
            yield received
        finally:
            with self._changed:
                self._add(self._under_way, client, -1)
                self._add(self._bytes, client, -kept)
                self._changed.notify_all()

    def replied(self, client: str, size: int) -> Callable[[], None]:
        """Counts a reply that this client has not read yet.

        Args:
            client: who is answered.
            size: bytes of the reply.

        Returns:
            To be called when the reply has left or nobody wants it any more.
        """
        with self._changed:
            self._unread[client] += 1
            self._unread_bytes[client] += size

        def left() -> None:
            with self._changed:
                self._add(self._unread, client, -1)
                self._add(self._unread_bytes, client, -size)

        return left

    def _require_turn(self, client: str) -> None:
        if self._under_way[client] >= self._most:
            raise TooManyRequests(
                f"this client has {self._most} requests under way, as many as one client may; repeat this one when "
                "one of them is answered"
            )
        unread, held = self._unread[client], self._unread_bytes[client]
        if unread >= _UNREAD * self._most or held > self._most_bytes:
            raise TooManyRequests(
                f"this client has not read {unread} replies of {held} bytes; repeat this request when it has"
            )

    def _keep_room(self, client: str) -> None:
        deadline = time.monotonic() + self._wait_s
        while True:
            if self._bytes[client] + self._largest > self._most_bytes:
                whose, most = "this client's", self._most_bytes
            elif self._bytes.total() + self._largest > self._most_in_all:
                whose, most = "all clients'", self._most_in_all
            else:
                self._bytes[client] += self._largest
                return
            if not self._changed.wait(timeout=deadline - time.monotonic()):
                raise TooManyRequests(
                    f"{whose} requests that are being received or answered may have {most} bytes, and there is no room "
                    f"for {self._largest} more; repeat this one later"
                )

    def _add(self, counter: Counter[str], client: str, number: int) -> None:
        counter[client] += number
        if not counter[client]:
            del counter[client]

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
        with self._changed:
            if (client, step) in self._steps:
                raise RequestInProgress("this request is being answered; repeat it later with the same id")
            self._steps.add((client, step))
        try:
            yield
        finally:
            with self._changed:
                self._steps.discard((client, step))
