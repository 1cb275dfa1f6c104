"""The curator's connection to a cluster: one courier process, what it is asked, and how its answers are read."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpswd.private_curator.cluster import task
from dpswd.private_curator.sandbox.arena import blob, contents
from dpswd.private_curator.sandbox.channel import ChannelClosed, receive, send
from dpswd.private_curator.sandbox.process import LimitReached, WorkerProcess, WorkerSettings, list_layers
from dpswd.private_curator.steps.shards import ShardLost
from dpswd.shared.core.errors import DpswdError, InvalidValue
from dpswd.shared.core.mechanisms.linear import Integers, Shard, ShardSum

_PROGRAM = (sys.executable, "-P", "-m", "dpswd.private_curator.cluster.courier")
_COURIER = WorkerSettings(device="cpu", threads=1, memory_bytes=1 << 30, seconds=math.inf, program=_PROGRAM)
_MOST_ADDRESS = 100
_MOST_WORDS = 500  # of a node's that are kept, in the operator's log alone

_log = logging.getLogger(__name__)


class NodeRefused(DpswdError):
    """A node did not compute a shard, and not because it was lost: it has other records or software, or it lies."""


class NoOtherNode(DpswdError):
    """No node could compute a shard but the one that must not compute it again."""


@dataclass(frozen=True)
class Computed:
    """A shard's sum, as a node computed it.

    Attributes:
        sum: within what its records can add up to.
        node: its address.
    """

    sum: ShardSum
    node: str


@dataclass(frozen=True)
class Expected:
    """What the answer to a task must be.

    Attributes:
        shard: the task's.
        like: arrays of the shapes that its sum has.
        checked: returns a sum that its records can add up to, and raises for others.
    """

    shard: Shard
    like: tuple[Integers, ...]
    checked: Callable[[ShardSum], ShardSum]


class Connection:
    """Starts a courier and speaks with it until it ends; another one is needed then.

    Args:
        scheduler: its address, tls://host:port.
        certificates: the curator's folder of the cluster: ca.crt, member.crt, member.key.
        connect_s: seconds that the scheduler may take to answer.

    Raises:
        SettingsError: the courier does not start, or finds no scheduler.
    """

    def __init__(self, scheduler: str, certificates: Path, *, connect_s: float) -> None:
        self._sending = threading.Lock()
        self._open: dict[int, tuple[Future[Any], Expected | None]] = {}
        self._next = 0
        self._closing = False
        self.ended = False
        """Whether the courier is gone; it does not come back."""
        self.nodes = 0
        """How many shards could be computed side by side, by its newest answer."""
        self.seen = time.monotonic()
        """When it last told of a node, on the monotonic clock."""
        door, their_door = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        threading.Thread(target=_keep_door, args=(door, scheduler, connect_s), name="door", daemon=True).start()
        self._courier = WorkerProcess(_COURIER)
        self._process, self._channel = self._courier.process, self._courier.channel
        wishes = {"scheduler": scheduler, "certificates": str(certificates.resolve()), "connect_s": connect_s}
        with their_door, contextlib.suppress(ChannelClosed):  # it died at once: `ready` says so
            send(self._channel, wishes, (their_door.fileno(),))
        missing = f"no cluster at {scheduler} ({{}}); start its scheduler, or leave cluster.scheduler out"
        held = self._courier.ready(otherwise=missing)
        if not all(held.values()):
            _log.warning("the cluster's courier is %s: this kernel has no more, or forbids it", list_layers(held))
        self._channel.settimeout(None)
        self._reader = threading.Thread(target=self._read, name="cluster", daemon=True)
        self._reader.start()

    def ask(self) -> Future[int]:
        """Asks for the number of nodes; the answer comes later, and also stands in `nodes`."""
        return self._asked({"op": "nodes"}, None)[1]

    def extractor(self, key: str, graph: bytes, weights: bytes) -> None:
        """Hands over the extractor of the shards that follow."""
        with self._sending:
            self._send({"op": "extractor", "id": key, "graph": len(graph)}, graph, weights)

    def submit(self, task: bytes, *, key: str, expected: Expected, beside: str = "") -> Future[Computed]:
        """Begins a shard. Whoever cancels its future lets the cluster drop it, if no node has begun with it.

        Args:
            task: what is asked.
            key: the extractor's.
            expected: of its answer.
            beside: a node that must not compute it; the future raises `NoOtherNode` where there is no other.

        Raises:
            ShardLost: the courier has ended.
        """
        number, future = self._asked({"op": "sum", "extractor": key, "beside": beside}, expected, task)
        future.add_done_callback(lambda done: self._drop(number) if done.cancelled() else None)
        return future

    def _asked(self, message: dict[str, Any], expected: Expected | None, *parts: bytes) -> tuple[int, Future[Any]]:
        """Sends a question: for a sum that is expected, or for the number of nodes."""
        future: Future[Any] = Future()
        with self._sending:
            number, self._next = self._next, self._next + 1
            self._open[number] = future, expected
            self._send(message | {"id": number}, *parts)
        return number, future

    def _drop(self, number: int) -> None:
        """Nobody waits for this shard any more: another copy came first, or its step has ended."""
        with self._sending, contextlib.suppress(ShardLost):
            if self._open.pop(number, None) is not None:
                self._send({"op": "drop", "id": number})

    def close(self) -> None:
        """Ends the courier. Idempotent."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._courier.close()
        self._reader.join()

    def _send(self, message: dict[str, Any], *parts: bytes) -> None:
        """Under `_sending`: an extractor reaches the courier before the shards that name it."""
        descriptors = (blob(*parts),) if parts else ()
        try:
            send(self._channel, message, descriptors)
        except ChannelClosed as error:
            self.ended = True  # the reader may not have noticed yet
            raise ShardLost("the cluster's courier has ended; repeat the request") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _read(self) -> None:
        """Takes the courier's answers until it ends; every shard that is then open is lost."""
        try:
            while True:
                message, files = receive(self._channel)
                self._take(message, contents(files))
        except ChannelClosed:
            if not self._closing:
                _log.warning("the cluster's courier has ended")
        except Exception as error:  # noqa: BLE001 - a courier that was taken over may send anything
            _log.error("the cluster's courier sent no message of ours (%s); it is ended", type(error).__name__)
            self._process.kill()
        self.ended = True
        with contextlib.suppress(OSError):  # whoever sends from now on is told
            self._channel.shutdown(socket.SHUT_RDWR)
        while self._open:
            future = self._open.popitem()[1][0]
            if future.set_running_or_notify_cancel():
                future.set_exception(ShardLost("the cluster's courier has ended"))

    def _take(self, message: dict[str, Any], answer: bytes) -> None:
        future, expected = self._open.pop(int(message.get("id", -1)), (None, None))
        if future is None or not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._counted(message) if expected is None else _computed(message, answer, expected))
        except DpswdError as error:
            future.set_exception(error)
        except Exception:
            future.set_exception(ShardLost("the cluster's courier sent no message of ours"))
            raise

    def _counted(self, message: dict[str, Any]) -> int:
        before, self.nodes = self.nodes, int(message["nodes"])
        self.seen = time.monotonic() if self.nodes else self.seen
        if self.nodes < before:
            _log.warning("nodes have left the cluster: %d shards side by side, %d before", self.nodes, before)
        return self.nodes


def _computed(message: dict[str, Any], answer: bytes, expected: Expected) -> Computed:
    if message.get("alone"):
        raise NoOtherNode("there is no other node")
    node = str(message.get("node", ""))[:_MOST_ADDRESS]
    return Computed(sum_of(answer, expected, node=node), node)


def sum_of(answer: bytes, expected: Expected, *, node: str) -> ShardSum:
    """The answer as what was asked for, and nothing else; a node's words go to the operator's log alone.

    Raises:
        LimitReached, NodeRefused, ShardLost: in the curator's own words.
    """
    kind, rest = answer[:1], answer[1:]
    if kind == task.SUM:
        try:
            return expected.checked(task.sum_from_bytes(rest, shard=expected.shard, like=expected.like))
        except InvalidValue as error:
            _log.error("node %r gave an impossible answer: another shard, size, or sum than its records can have", node)
            raise NodeRefused(
                "a node of the cluster gave an impossible answer; the curator's log says which"
            ) from error
    words = rest[:_MOST_WORDS].decode(errors="replace")
    if kind == task.STOPPED:
        _log.warning("a worker of node %r reached a limit: %r", node, words)
        raise LimitReached(
            "the extraction was cut off: a worker of the cluster reached a limit of time or memory; nothing was "
            "released, repeat the request with its id"
        )
    if kind == task.FAILED:
        _log.error("node %r could not compute a shard: %r", node, words)
        raise NodeRefused("a node of the cluster could not compute a shard; the curator's log says why")
    raise ShardLost("a node of the cluster was lost; nothing was released, repeat the request with its id")


def _keep_door(channel: socket.socket, scheduler: str, connect_s: float) -> None:
    """Hands over a new connection to the scheduler for each byte that comes, until the channel ends; b"-" for none.

    Nothing is read from a connection here, or written to it: it is for `engine.Door`, which may open none.

    Args:
        channel: to the courier; closed in the end.
        scheduler: tls://host:port.
        connect_s: seconds that a connection may take.
    """
    place = urlsplit(scheduler)
    with channel, contextlib.suppress(OSError):  # the courier has ended
        while channel.recv(1):
            try:
                opened = socket.create_connection((place.hostname or "", place.port or 0), timeout=connect_s)
            except OSError:
                channel.sendall(b"-")
                continue
            with opened:
                socket.send_fds(channel, [b"+"], [opened.fileno()])
