"""What one client may have under way, and all together: the others' share of the curator's threads, time and memory.

A request that may not go yet waits in a line and costs nothing meanwhile; a refusal at once would be asked again at
once. Whoever has the least under way goes first. And while several clients are there, one request of each is worked on
at a time (of steps, an equal part of those that are computed at a time): what one asks in sixty threads takes no more
of the interpreter than what another asks in one. What crowds rests in between.

Nobody may find out by waiting when a step was computed. So steps wait for steps, and only inside the pause that holds
their replies back; other requests wait for other requests alone; and a place is free when that pause has ended.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from dpswd.shared.core.errors import RequestInProgress, TooManyRequests

_WAIT_S = 2.0
"""How long a request waits for its turn or for room before it is told to come again."""
_REST = 2.0
"""While others are there, a client whose requests wait for each other rests so many times as long as one took."""
_UNREAD = 4
"""Replies that a client may leave unread, for each request that it may have under way; one that reads has none."""


def next_of(waiting: Sequence[str], held: Mapping[str, int], may: Callable[[str], bool]) -> int | None:
    """Who goes next: of those who may, the client that holds the least; of equals, who came first.

    Args:
        waiting: the clients of waiting requests, in the order in which they came.
        held: what each client has.
        may: whether a client may have one more.

    Returns:
        The place in ``waiting``; None where nobody may go.
    """
    able = [place for place, client in enumerate(waiting) if may(client)]
    return min(able, key=lambda place: (held.get(waiting[place], 0), place), default=None)


@dataclass
class _Line:
    """Requests that wait for one thing. Everything is called under the lock of the turns."""

    may: Callable[[str], bool]
    held: Counter[str] = field(default_factory=Counter)
    waiting: list[tuple[str, threading.Event]] = field(default_factory=list)

    def join(self, client: str) -> threading.Event:
        """To be waited for without the lock; it is set when the request holds what it waited for."""
        self.waiting.append((client, threading.Event()))
        return self.waiting[-1][1]

    def move(self) -> None:
        """Lets go whoever may."""
        while (place := next_of([client for client, _ in self.waiting], self.held, self.may)) is not None:
            client, gone = self.waiting.pop(place)
            self.held[client] += 1
            gone.set()


class Turns:
    """Counts requests and their bytes by client.

    How many bytes a request has is known when it is there. So room for the largest is kept before it is received, and
    given back when its size is known.

    Args:
        most: requests that one client may have under way.
        threads: that all may have.
        line: requests of one client that may wait for their turn.
        parallel_steps: steps that are computed at a time.
        most_bytes: of one client's requests together, and of the replies that it has not read.
        largest: bytes of one request; as many may always come.
        most_in_all: bytes of all clients' requests together.
        wait_s: how long to wait for a turn, and for room.
        clock: the monotonic clock.
        sleep: waits.
    """

    def __init__(
        self,
        most: int,
        *,
        most_bytes: int,
        largest: int,
        most_in_all: int,
        threads: int,
        line: int,
        parallel_steps: int = 1,
        wait_s: float = _WAIT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._most = most
        self._most_bytes = max(most_bytes, largest)
        self._largest = largest
        self._most_in_all = max(most_in_all, largest)
        self._longest_line = line
        self._wait_s = wait_s
        self._clock, self._sleep = clock, sleep
        self._bytes: Counter[str] = Counter()
        self._unread: Counter[str] = Counter()
        self._unread_bytes: Counter[str] = Counter()
        self._steps: set[tuple[str, str]] = set()
        self._changed = threading.Condition()
        places = _Line(lambda client: places.held[client] < most and places.held.total() < threads)
        quick = _Line(lambda client: quick.held[client] < (most if len(places.held) < 2 else 1))
        steps = _Line(lambda client: steps.held[client] < max(1, parallel_steps // max(1, len(places.held))))
        self._places, self._quick, self._computed = places, quick, steps

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
        reserved = self._largest
        self._take_place(client)
        with self._changed:
            try:
                self._keep_room(client)
            except BaseException:
                self._leave(self._places, client)
                raise

        def received(size: int) -> None:
            nonlocal reserved
            with self._changed:
                self._add(self._bytes, client, size - reserved)
                reserved = size
                self._changed.notify_all()

        try:
            yield received
        finally:
            with self._changed:
                self._leave(self._places, client)
                self._add(self._bytes, client, -reserved)
                self._changed.notify_all()

    @contextmanager
    def working(self, client: str, *, step: bool) -> Iterator[None]:
        """The part of a request that takes the curator's time, inside of `taken`; of a step, inside its pause.

        Args:
            client: who asks.
            step: whether a step is drawn.
        """
        line = self._computed if step else self._quick
        with self._changed:
            go = line.join(client)
            line.move()
        go.wait()
        begun = self._clock()
        try:
            yield
        finally:
            with self._changed:
                crowds = not step and len(self._places.held) > 1 and any(client == one for one, _ in line.waiting)
            if crowds:
                self._sleep(_REST * (self._clock() - begun))
            with self._changed:
                self._leave(line, client)

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

    def _take_place(self, client: str) -> None:
        with self._changed:
            unread, held = self._unread[client], self._unread_bytes[client]
            if unread >= _UNREAD * self._most or held > self._most_bytes:
                raise TooManyRequests(
                    f"this client has not read {unread} replies of {held} bytes; repeat this request when it has"
                )
            ours = sum(waiting == client for waiting, _ in self._places.waiting)
            go = self._places.join(client)
            self._places.move()
        if ours < self._longest_line and go.wait(self._wait_s):
            return
        with self._changed:
            if go.is_set():  # in this very moment
                return
            self._places.waiting.remove((client, go))
            raise TooManyRequests(
                f"this client has {self._places.held[client]} requests under way, of {self._most} that one client may "
                "have, and others wait; repeat this one when one of them is answered"
            )

    def _leave(self, line: _Line, client: str) -> None:
        self._add(line.held, client, -1)
        for each in (self._places, self._quick, self._computed):
            each.move()

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
    def alone(self, client: str, step: str) -> Iterator[None]:
        """A request that draws a step, or opens a run, is under way until its reply leaves.

        One that repeats it meanwhile must not find out, by being answered, when the reply was ready.

        Args:
            client: who asks.
            step: the request's own id; empty for any other request.

        Raises:
            RequestInProgress: this very request is under way.
        """
        if not step:
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
