"""The curator's end of a cluster: shards go out through the courier, sums come back as numbers of the expected size."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import torch

from dpswd.private_curator.cluster import task
from dpswd.private_curator.cluster.connection import Computed, Connection, Expected, NodeRefused, NoOtherNode
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.records.fingerprint import Fingerprint
from dpswd.private_curator.records.labels import Labels
from dpswd.private_curator.records.target import Target
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.private_curator.steps.shards import LocalShards, ShardLost, divided, gathered
from dpswd.shared.core.errors import ExtractionStopped, SettingsError
from dpswd.shared.core.mechanisms.linear import AnyLinearRun, Shard, ShardSum

_NO_NODE_S = 60.0  # without any node before a pass that has begun is given up
_READY_S = 15.0  # that a question before a step may take: a courier starts in that time

_MOST_COMPARED = 64  # shards at the same time; two nodes compute each
_RANDOM = secrets.SystemRandom()  # which shards are computed twice: no node may know

_log = logging.getLogger(__name__)


@dataclass
class ClusterShards:
    """Shards on the nodes of a cluster; see `dpswd.private_curator.steps.shards.Shards`. One step at a time.

    Attributes:
        scheduler: its address, tls://host:port.
        certificates: the curator's folder of the cluster: ca.crt, member.crt, member.key.
        meant: what the nodes must have.
        own: computes a shard here, where there is no other node for a second computation.
        computed_twice: share of the shards of each sum that two machines must compute to the same bits.
        connect_s: seconds that the scheduler may take to answer.
        pass_seconds: see `dpswd.private_curator.steps.shards.gathered`.

    Raises:
        SettingsError: the courier does not start, or finds no scheduler.
    """

    scheduler: str
    certificates: Path
    _: KW_ONLY
    meant: task.Meant
    own: Callable[[AnyLinearRun, ExtractorSource, Shard], ShardSum]
    computed_twice: float = 0.1
    connect_s: float = 30.0
    pass_seconds: float = math.inf

    def __post_init__(self) -> None:
        self._turn, self._changing = threading.Lock(), threading.Lock()
        self._closed = False
        self._connecting: threading.Thread | None = None
        self._connection = self._new_connection()

    def _new_connection(self) -> Connection:
        return Connection(self.scheduler, self.certificates, connect_s=self.connect_s)

    def ready(self) -> None:
        """See `dpswd.private_curator.steps.shards.Shards`. A courier that has ended is started again."""
        self._ready()

    def sums(self, run: AnyLinearRun, extractor: ExtractorSource) -> Iterable[ShardSum]:
        """See `dpswd.private_curator.steps.shards.Shards`."""
        with self._turn:
            connection = self._ready()
            begun, questions = time.monotonic(), [connection.ask()]
            connection.extractor(extractor.key, *extractor.read())
            parts = divided(run, parallel=max(1, connection.nodes))
            twice = frozenset(_RANDOM.sample(parts, math.ceil(self.computed_twice * len(parts))))
            second = _Second(connection, run, extractor, self.meant, self.own)

            def at_once() -> int:
                """By the newest answer; asks anew, for the next time."""
                if questions[-1].done():
                    questions.append(connection.ask())
                if time.monotonic() - max(connection.seen, begun) > _NO_NODE_S:
                    _log.error("no machine of the cluster has computed for %g seconds; a step was ended", _NO_NODE_S)
                    raise ExtractionStopped(
                        "no machine of the cluster computes; nothing was released, repeat the request with its id"
                    )
                return connection.nodes

            with contextlib.closing(second):
                results = gathered(
                    parts,
                    lambda shard: second.compared(shard) if shard in twice else second.asked(shard),
                    at_once=at_once,
                    pass_seconds=self.pass_seconds,
                )
                yield from (computed.sum for computed in results)

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
            with contextlib.suppress(ShardLost, TimeoutError):
                if connection.ask().result(max(0.0, deadline - time.monotonic())):
                    return connection
            if not connection.ended:
                break
        _log.warning("no machine of the cluster computes now; a step was not begun")
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
        try:
            connection = self._new_connection()
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


def cluster_of(
    settings: CuratorSettings, *, records: Target, labels: Labels | None, own: LocalShards
) -> ClusterShards | None:
    """Connects to the cluster that the settings name; None where they name none.

    Args:
        settings: the curator's.
        records: the curator's.
        labels: of them.
        own: computes shards here.

    Raises:
        SettingsError: Dask is not installed, a certificate is missing, or there is no scheduler.
    """
    if not settings.cluster.scheduler:
        return None
    home = settings.file.parent
    checked = Fingerprint.read(home)
    if checked is None:
        raise SettingsError("the records have not been checked; run `dpswd-curator records accept` before a cluster")
    return ClusterShards(
        settings.cluster.scheduler,
        home / settings.cluster.certificates,
        meant=task.Meant.here(records, digest=checked.digest, labels=labels),
        own=own.sum,
        computed_twice=settings.cluster.computed_twice,
        pass_seconds=settings.compute.pass_seconds,
    )


@dataclass
class _Second:
    """Shards of one step: computed by one node, or by two machines that must agree to the bit."""

    connection: Connection
    run: AnyLinearRun
    extractor: ExtractorSource
    meant: task.Meant
    own: Callable[[AnyLinearRun, ExtractorSource, Shard], ShardSum]

    def __post_init__(self) -> None:
        self._like = self.run.accumulator(torch.device("cpu")).sums
        self._begun: list[Future[Computed]] = []
        self._threads = ThreadPoolExecutor(max_workers=_MOST_COMPARED, thread_name_prefix="compared")

    def close(self) -> None:
        """Nobody waits for them any more; a comparison that waits for one ends."""
        for future in self._begun:
            future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def asked(self, shard: Shard, *, beside: str = "") -> Future[Computed]:
        """The sum of one node, which is not `beside`."""
        return self.connection.submit(
            task.to_bytes(self.run, shard, self.meant),
            key=self.extractor.key,
            expected=Expected(shard, self._like, self.run.checked),
            beside=beside,
        )

    def compared(self, shard: Shard) -> Future[Computed]:
        """The sum of two machines, if they agree."""
        return self._threads.submit(self._agreed, shard)

    def _agreed(self, shard: Shard) -> Computed:
        self._begun.append(first := self.asked(shard))
        one = first.result()
        self._begun.append(second := self.asked(shard, beside=one.node))
        try:
            other = second.result()
        except NoOtherNode:
            other = Computed(self.own(self.run, self.extractor, shard), "the curator's own machine")
        if task.sum_to_bytes(one.sum) != task.sum_to_bytes(other.sum):
            _log.error("%r and %r computed different sums of one shard: one of them lies", one.node, other.node)
            raise NodeRefused("two machines of the cluster computed different sums; the curator's log says which")
        return one
