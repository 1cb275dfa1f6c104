"""What the curator makes of a node's answers and of nodes that are set up otherwise, without a process or a network."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from private_curator.cluster import task
from private_curator.cluster.connection import NodeRefused, sum_of
from private_curator.cluster.task import Meant
from private_curator.records.target import Target
from private_curator.steps.shards import ShardLost
from private_curator.worker.process import LimitReached
from shared.mechanisms import MECHANISMS
from shared.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration
from shared.mechanisms.interface import DataSetFacts, Facts, ModelFacts
from shared.mechanisms.linear import Shard, ShardSum
from shared.steps.computing import LinearRun

SHARD = Shard(0, 4096)
SUMS = (np.arange(6, dtype=np.int64).reshape(2, 3),)


def test_the_words_of_a_node_reach_the_log_and_no_client(caplog):
    """A node that was taken over may say anything: what it says must not become the text of an error."""
    secret = "the first record is 17"
    for kind, error in ((task.STOPPED, LimitReached), (task.FAILED, NodeRefused), (task.LOST, ShardLost)):
        with caplog.at_level(logging.WARNING), pytest.raises(error) as caught:
            sum_of(kind + secret.encode(), SHARD, SUMS)
        assert secret not in str(caught.value)
        assert (secret in caplog.text) == (kind != task.LOST)
        caplog.clear()


def test_only_the_sum_of_the_shard_that_was_asked_for_is_taken():
    answer = task.SUM + ShardSum(SHARD, SUMS).to_bytes()
    np.testing.assert_array_equal(sum_of(answer, SHARD, SUMS).sums[0], SUMS[0])
    with pytest.raises(NodeRefused, match="another shard"):
        sum_of(answer, Shard(4096, 8192), SUMS)


def test_a_node_that_serves_the_same_values_otherwise_is_told_apart():
    """The stored values are the same, to the bit; what an extractor would see is not."""
    values = np.arange(48, dtype=np.uint8).reshape(4, 12)
    served = Target(values, (12,), scale=1 / 255, offset=0.0)
    labels = np.array([0, 1, 1, 0])
    meant = Meant.here(served, digest="ab" * 32, labels=labels)
    facts = Facts(DataSetFacts(4, (12,), 2), ModelFacts((12,), 3, {}))
    run = LinearRun(CLASS_STATISTICS, StatisticsDeclaration(2, 0.7, 0.7, 0.0, 4.0), facts)
    _, shard, arrived = task.from_bytes(task.to_bytes(run, Shard(0, 4), meant), MECHANISMS)
    assert shard == Shard(0, 4)
    assert not arrived.differs(Meant.here(served, digest="ab" * 32, labels=labels))
    for name, change in (("scale", 1.0), ("offset", -0.5), ("record_shape", (1, 3, 4))):
        other = Meant.here(replace(served, **{name: change}), digest="ab" * 32, labels=labels)
        assert arrived.differs(other).startswith(f"{name}: {change!r} here")
    assert "labels" in arrived.differs(Meant.here(served, digest="ab" * 32, labels=1 - labels))
