"""What the curator makes of a node's answers and of nodes that are set up otherwise, without a process or a network."""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from dpswd.private_curator.cluster import task
from dpswd.private_curator.cluster.connection import Expected, NodeRefused, sum_of
from dpswd.private_curator.cluster.courier import Courier
from dpswd.private_curator.cluster.task import Meant, sum_to_bytes
from dpswd.private_curator.records.target import Target
from dpswd.private_curator.sandbox.arena import blob
from dpswd.private_curator.sandbox.channel import receive, send
from dpswd.private_curator.sandbox.process import LimitReached
from dpswd.private_curator.steps.shards import ShardLost
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts
from dpswd.shared.core.mechanisms.linear import LinearRun, Shard, ShardSum
from dpswd.shared.published_mechanisms import ALL_MECHANISMS

SHARD = Shard(0, 4096)
SUMS = (np.arange(6, dtype=np.int64).reshape(2, 3),)
EXPECTED = Expected(SHARD, SUMS, lambda part: part)


def test_the_words_of_a_node_reach_the_log_and_no_client(caplog):
    """A node that was taken over may say anything: what it says must not become the text of an error."""
    secret = "the first record is 17"
    for kind, error in ((task.STOPPED, LimitReached), (task.FAILED, NodeRefused), (task.LOST, ShardLost)):
        with caplog.at_level(logging.WARNING), pytest.raises(error) as caught:
            sum_of(kind + secret.encode(), EXPECTED, node="north")
        assert secret not in str(caught.value)
        assert (secret in caplog.text) == ("north" in caplog.text) == (kind != task.LOST)
        caplog.clear()


def test_only_a_possible_sum_of_the_shard_that_was_asked_for_is_taken(caplog):
    answer = task.SUM + sum_to_bytes(ShardSum(SHARD, SUMS))
    np.testing.assert_array_equal(sum_of(answer, EXPECTED, node="north").sums[0], SUMS[0])

    def impossible(part):
        raise InvalidValue("more than its records can add up to")

    for other in (
        replace(EXPECTED, shard=Shard(4096, 8192)),
        replace(EXPECTED, like=(SUMS[0][:1],)),
        replace(EXPECTED, checked=impossible),
    ):
        caplog.clear()
        with pytest.raises(NodeRefused, match="impossible answer"):
            sum_of(answer, other, node="north")
        assert "node 'north' gave an impossible answer" in caplog.text


def test_a_node_that_serves_the_same_values_otherwise_is_distinguished():
    """The stored values are the same, to the bit; what an extractor would see is not."""
    values = np.arange(48, dtype=np.uint8).reshape(4, 12)
    served = Target(values, (12,), scale=1 / 255, offset=0.0)
    labels = np.array([0, 1, 1, 0])
    meant = Meant.here(served, digest="ab" * 32, labels=labels)
    facts = Facts(DataSetFacts(4, (12,), 2), ModelFacts((12,), 3, {}))
    run = LinearRun(CLASS_STATISTICS, StatisticsDeclaration(2, 0.7, 0.7, 0.0, 4.0), facts)
    _, shard, arrived = task.from_bytes(task.to_bytes(run, Shard(0, 4), meant), ALL_MECHANISMS)
    assert shard == Shard(0, 4)
    assert not arrived.differs(Meant.here(served, digest="ab" * 32, labels=labels))
    for name, change in (("scale", 1.0), ("offset", -0.5), ("record_shape", (1, 3, 4))):
        other = Meant.here(replace(served, **{name: change}), digest="ab" * 32, labels=labels)
        assert arrived.differs(other).startswith(f"{name}: {change!r} here")
    assert "labels" in arrived.differs(Meant.here(served, digest="ab" * 32, labels=1 - labels))


def _held(path):
    while not path.exists():
        time.sleep(0.01)
    return True


def test_a_shard_that_nobody_waits_for_is_begun_by_no_node(tmp_path):
    """One node of one thread, which is busy; the second of two shards is dropped before its turn."""
    distributed = pytest.importorskip("distributed")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    free = tmp_path / "free"
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="inproc://"
    )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        courier = Courier(theirs, client)
        carrying = threading.Thread(target=courier.run, daemon=True)
        carrying.start()

        def asked(message, *parts):
            file = blob(*parts) if parts else None
            send(ours, message, (file,) if parts else ())

        def waiting():
            return {key for key in cluster.scheduler.tasks if str(key).startswith("sum_shard")}

        def settled(count):
            deadline = time.monotonic() + 60.0
            while len(waiting()) != count:
                assert time.monotonic() < deadline, waiting()
                time.sleep(0.01)

        asked({"op": "extractor", "id": "key", "graph": 1}, b"g", b"w")
        blocking = client.submit(_held, free, pure=False)
        for number in (0, 1):
            asked({"op": "sum", "id": number, "extractor": "key", "beside": ""}, b"no task of ours")
        settled(2)
        asked({"op": "drop", "id": 1})
        settled(1)
        asked({"op": "drop", "id": 7})  # of a shard that was answered meanwhile
        free.touch()
        message, _ = receive(ours)
        assert message["id"] == 0
        (node,) = client.nthreads()
        assert message["node"] == node
        asked({"op": "sum", "id": 2, "extractor": "key", "beside": node}, b"no task of ours")
        assert receive(ours)[0] == {"id": 2, "alone": True}
        asked({"op": "nodes", "id": 3})
        assert receive(ours)[0] == {"id": 3, "nodes": 1}  # and nothing of the dropped one
        assert blocking.result() is True
        ours.shutdown(socket.SHUT_RDWR)
        carrying.join(30.0)
