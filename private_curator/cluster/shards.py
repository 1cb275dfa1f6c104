"""The curator's end of a cluster: shards go out through the courier, sums come back as numbers of the expected size."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from private_curator.cluster import task
from private_curator.steps.shards import ShardLost, divided, gathered
from private_curator.worker.arena import blob, contents
from private_curator.worker.channel import ChannelClosed, receive, send
from private_curator.worker.process import LimitReached
from private_curator.worker.sessions import ExtractorSource
from shared.errors import DpswdError, ExtractionStopped, SettingsError
from shared.mechanisms.linear import Integers, Shard, ShardSum
from shared.steps.computing import LinearRun

_START_S = 120.0  # until the courier is connected: loading torch and Dask from a cold disk
_NO_NODE_S = 60.0  # without any node before a step is given up
_ASK_S = 1.0  # between two questions how many nodes there are

_log = logging.getLogger(__name__)


class NodeRefused(DpswdError):
    """A node could not compute a shard, and not because it was lost: it has other records, or another software."""


class ClusterShards:
    """Shards on the nodes of a cluster; see `private_curator.steps.shards.Shards`. One step at a time.

    Args:
        scheduler: its address, tls://host:port.
        certificates: the curator's folder of the cluster: ca.crt, member.crt, member.key.
        meant: what the nodes must have.
        connect_s: seconds that the scheduler may take to answer.

    Raises:
        SettingsError: the courier does not start, or finds no scheduler.
    """

    def __init__(self, scheduler: str, certificates: Path, *, meant: task.Meant, connect_s: float = 30.0) -> None:
        self._meant = meant
        self._turn = threading.Lock()
        self._sending = threading.Lock()
        self._expected: dict[int, tuple[Future[ShardSum], Shard, tuple[Integers, ...]]] = {}
        self._next = 0
        self._nodes = 0
        self._seen = time.monotonic()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        passed = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "private_curator.cluster.courier"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            env=passed | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        wishes = {
            "channel": theirs.fileno(),
            "scheduler": scheduler,
            "certificates": str(certificates.resolve()),
            "connect_s": connect_s,
        }
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: what follows says so
            self._process.stdin.write(json.dumps(wishes).encode() + b"\n")
            self._process.stdin.close()
        theirs.close()
        try:
            self._channel.settimeout(_START_S)
            held = receive(self._channel)[0].get("ready")
        except (ChannelClosed, TimeoutError) as error:
            self._process.kill()
            assert self._process.stderr is not None
            words = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            raise SettingsError(
                f"no cluster at {scheduler} ({words[-1][:300] if words else 'no answer'}); start its scheduler, or "
                "leave cluster.scheduler out"
            ) from error
        threading.Thread(target=self._drain, daemon=True).start()
        if not held:
            _log.warning("the cluster's courier can read this user's files: this kernel has no Landlock, or forbids it")
        self._channel.settimeout(None)
        self._reader = threading.Thread(target=self._read, name="cluster", daemon=True)
        self._reader.start()

    def sums(self, run: LinearRun, extractor: ExtractorSource) -> Iterable[ShardSum]:
        """See `private_curator.steps.shards.Shards`."""
        with self._turn:
            self._seen = time.monotonic()
            self._ask()
            graph, weights = extractor.read()
            self._send({"op": "extractor", "id": extractor.key, "graph": len(graph)}, graph, weights)
            like = run.mechanism.accumulator(run.declared, run.facts, torch.device("cpu")).sums
            yield from gathered(
                divided(run, parallel=max(1, self._nodes)),
                lambda shard: self._submit(run, extractor.key, shard, like),
                at_once=self._at_once,
            )

    def close(self) -> None:
        """See `private_curator.steps.shards.Shards`."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._channel.close()

    def _submit(self, run: LinearRun, key: str, shard: Shard, like: tuple[Integers, ...]) -> Future[ShardSum]:
        future: Future[ShardSum] = Future()
        with self._sending:
            number, self._next = self._next, self._next + 1
            self._expected[number] = future, shard, like
        told = task.to_bytes(run, shard, self._meant)
        self._send({"op": "sum", "id": number, "extractor": key}, told)
        return future

    def _at_once(self) -> int:
        """How many shards can be computed side by side; asks anew, for the next time."""
        self._ask()
        if self._nodes:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > _NO_NODE_S:
            raise ExtractionStopped("no machine of the cluster computes; nothing was released, repeat the request")
        return self._nodes

    def _ask(self) -> None:
        self._send({"op": "nodes"})

    def _send(self, message: dict[str, Any], *parts: bytes) -> None:
        descriptors = (blob(*parts),) if parts else ()
        try:
            with self._sending:
                send(self._channel, message, descriptors)
        except ChannelClosed as error:
            raise ShardLost("the cluster's courier has ended; repeat the request after a restart") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _read(self) -> None:
        """Takes the courier's answers until it ends; every shard that is then open is lost."""
        while True:
            try:
                message, files = receive(self._channel)
            except ChannelClosed:
                break
            answer = contents(files)
            if "nodes" in message:
                self._nodes = int(message["nodes"])
                continue
            expected = self._expected.pop(int(message.get("id", -1)), None)
            if expected is None or not expected[0].set_running_or_notify_cancel():
                continue
            future, shard, like = expected
            try:
                future.set_result(_sum(answer, shard, like))
            except Exception as error:  # noqa: BLE001 - told to whoever waits for this shard
                future.set_exception(error)
        while self._expected:
            future = self._expected.popitem()[1][0]
            if future.set_running_or_notify_cancel():
                future.set_exception(ShardLost("the cluster's courier has ended"))

    def _drain(self) -> None:
        """Dask's own words about lost connections, for the operator's log."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            _log.debug("courier: %s", line.decode(errors="replace").rstrip())


def _sum(answer: bytes, shard: Shard, like: tuple[Integers, ...]) -> ShardSum:
    """The answer as what was asked for, and nothing else."""
    kind, rest = answer[:1], answer[1:]
    if kind == task.SUM:
        found = ShardSum.from_bytes(rest, like=like)
        if found.shard != shard:
            raise NodeRefused("a node answered with another shard than it was asked for")
        return found
    if kind == task.STOPPED:
        raise LimitReached(rest[:500].decode(errors="replace"))
    if kind == task.FAILED:
        _log.error("a node could not compute a shard: %s", rest[:500].decode(errors="replace"))
        raise NodeRefused("a node of the cluster could not compute a shard; the curator's log says why")
    raise ShardLost("a node was lost")
