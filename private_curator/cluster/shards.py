"""The curator's end of a cluster: shards go out through the courier, sums come back as numbers of the expected size."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from dpswd.private_curator.cluster import task
from dpswd.private_curator.cluster.connection import Connection
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.steps.shards import ShardLost, divided, gathered
from dpswd.shared.core.errors import ExtractionStopped, SettingsError
from dpswd.shared.core.mechanisms.linear import ShardSum
from dpswd.shared.core.steps.computing import LinearRun

_NO_NODE_S = 60.0  # without any node before a pass that has begun is given up
_READY_S = 15.0  # that a question before a step may take: a courier starts in that time

_log = logging.getLogger(__name__)


class ClusterShards:
    """Shards on the nodes of a cluster; see `dpswd.private_curator.steps.shards.Shards`. One step at a time.

    Args:
        scheduler: its address, tls://host:port.
        certificates: the curator's folder of the cluster: ca.crt, member.crt, member.key.
        meant: what the nodes must have.
        connect_s: seconds that the scheduler may take to answer.
        pass_seconds: see `dpswd.private_curator.steps.shards.gathered`.

    Raises:
        SettingsError: the courier does not start, or finds no scheduler.
    """

    def __init__(
        self,
        scheduler: str,
        certificates: Path,
        *,
        meant: task.Meant,
        connect_s: float = 30.0,
        pass_seconds: float = math.inf,
    ) -> None:
        self._where = scheduler, certificates, connect_s
        self._meant = meant
        self._pass_seconds = pass_seconds
        self._turn = threading.Lock()
        self._changing = threading.Lock()
        self._closed = False
        self._connecting: threading.Thread | None = None
        self._connection = Connection(scheduler, certificates, connect_s=connect_s)

    def ready(self) -> None:
        """See `dpswd.private_curator.steps.shards.Shards`. A courier that has ended is started again."""
        self._ready()

    def sums(self, run: LinearRun, extractor: ExtractorSource) -> Iterable[ShardSum]:
        """See `dpswd.private_curator.steps.shards.Shards`."""
        with self._turn:
            connection = self._ready()
            seen = time.monotonic()
            connection.extractor(extractor.key, *extractor.read())
            like = run.mechanism.accumulator(run.declared, run.facts, torch.device("cpu")).sums

            def at_once() -> int:
                """By the newest answer; asks anew, for the next time."""
                nonlocal seen
                connection.ask()
                if connection.nodes:
                    seen = time.monotonic()
                elif time.monotonic() - seen > _NO_NODE_S:
                    raise ExtractionStopped(
                        "no machine of the cluster computes; nothing was released, repeat the request with its id"
                    )
                return connection.nodes

            yield from gathered(
                divided(run, parallel=max(1, connection.nodes)),
                lambda shard: connection.submit(
                    task.to_bytes(run, shard, self._meant), key=extractor.key, shard=shard, like=like
                ),
                at_once=at_once,
                pass_seconds=self._pass_seconds,
            )

    def close(self) -> None:
        """See `dpswd.private_curator.steps.shards.Shards`."""
        with self._changing:
            self._closed = True  # a courier that is being started is ended when it is there, or with this process
            self._connection.close()

    def _ready(self) -> Connection:
        """A courier that lives and has just told of a node.

        Raises:
            ExtractionStopped: there is none.
        """
        deadline = time.monotonic() + _READY_S
        for _ in range(2):  # that a courier has ended may show only when it is asked
            connection = self._connection
            if connection.ended:
                self._reconnect(within_s=_READY_S)
                connection = self._connection
            with contextlib.suppress(ShardLost):
                left = max(0.0, deadline - time.monotonic())
                if connection.answered(connection.ask(), within_s=left) and connection.nodes:
                    return connection
            if not connection.ended:
                break
        raise ExtractionStopped("no machine of the cluster computes now; nothing was begun, repeat the request")

    def _reconnect(self, *, within_s: float) -> None:
        """Starts another courier, one attempt at a time, and waits a while for it; it may come later."""
        with self._changing:
            if self._closed:
                return
            if self._connecting is None or not self._connecting.is_alive():
                self._connecting = threading.Thread(target=self._connect, name="cluster-connect", daemon=True)
                self._connecting.start()
            connecting = self._connecting
        connecting.join(within_s)

    def _connect(self) -> None:
        if not self._connection.ended:  # another request has done it
            return
        scheduler, certificates, connect_s = self._where
        try:
            connection = Connection(scheduler, certificates, connect_s=connect_s)
        except SettingsError as error:
            _log.error("the cluster is not there: %s", error)
            return
        with self._changing:
            if self._closed:
                connection.close()
                return
            self._connection.close()
            self._connection = connection
        _log.warning("the cluster's courier was started again")
