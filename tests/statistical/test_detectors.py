"""A detector of one record, broadcast into many numbers, does not show in the time of any operation that follows.

The attack: an extractor picks one person's record out of all others, turns the numbers of the next value from zero into
numbers of every trouble (negative, saturating, huge, missing) for this record alone, and applies one operation to them
many times. Where that takes longer than with zeros, a step takes longer whenever the person is in its sample. ELU took
four times as long, and so did pools of maxima; in their present forms no operation does.

Comparisons are sign tests on pairs (signs.py); all of them together fail by chance with probability at most 1e-6. What
they can see is shown by planting a delay: what one record adds to a step of the smallest batch if everything that is
computed of it takes four times as long.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy.stats import binomtest
from signs import ALPHA, Signs, in_random_order

from benchmarks.detectors import INPUTS, detector_for
from benchmarks.operation_times import CASES
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerSettings
from dpswd.shared.core.mechanisms.interface import ModelFacts
from dpswd.shared.core.wire.limits import MIN_BATCH_SIZE
from dpswd.shared.sandbox.weights import weights_to_bytes

pytestmark = pytest.mark.statistical

PLANTED = 3 / MIN_BATCH_SIZE


@pytest.fixture(scope="module")
def pool():
    made = WorkerPool(WorkerSettings(device="cpu", threads=1, memory_bytes=1 << 30, seconds=120.0), workers=1)
    yield made
    made.close()


def hunt(pool, case, *, pairs, times, targets=1):
    """Signs of the presence of so many targets in a batch, and of a planted delay, in the time of their features.

    There are half as many pairs for the planted delay: two times without a target each. The operation is applied
    `times` times to the same numbers.
    """
    made = detector_for([case], times=times)
    graph, weights = made.graph, made.weights
    packed = weights_to_bytes(weights)
    facts = ModelFacts(graph.input_shape, graph.feature_dimension, graph.parameter_shapes)
    source = ExtractorSource(f"detector of {case.name}", facts, lambda: (graph.to_bytes(), packed))
    rng = np.random.default_rng()
    without = rng.normal(size=(MIN_BATCH_SIZE, INPUTS)).astype(np.float32)
    without[:, 0] = 0.0
    present = without.copy()
    present[:targets, 0] = 10.0

    def seconds(records):
        """Processor time of the worker: what a client would see on a machine with nothing else to do."""
        begun = _worker_seconds(pool)
        with pool.session(source) as session:
            session.features(records)
        return _worker_seconds(pool) - begun

    for _ in range(3):
        seconds(without), seconds(present)
    record, planted = Signs(), Signs()
    waiting = []
    for _ in range(pairs):
        ordinary, chosen = in_random_order(rng, lambda: seconds(without), lambda: seconds(present))
        record.add(ordinary, chosen)
        waiting.append(ordinary)
        if len(waiting) == 2:  # the same times again, of which one is made longer
            rng.shuffle(waiting)
            planted.add(waiting.pop(), waiting.pop() * (1.0 + PLANTED))
    return record, planted


def _worker_seconds(pool):
    (pid,) = pool.pids
    return time.clock_gettime((~pid << 3) | 2)  # Linux: the processor clock of another process


@pytest.mark.long
def test_no_operation_tells_one_record(pool):
    """Every record of the batch is the target, so that few steps suffice.

    False alarm: 1e-6 over all. Power: the planted delays are found, over all operations together.
    """
    longer = pairs = 0
    for case in CASES:
        record, planted = hunt(pool, case, pairs=28, times=4, targets=MIN_BATCH_SIZE)
        print(f"{case.name}: {record}; planted: {planted}")
        assert record.pvalue > ALPHA / len(CASES), case.name
        longer, pairs = longer + planted.longer, pairs + planted.pairs
    assert binomtest(longer, pairs).pvalue < ALPHA, "the machine is too unsteady for this test to see anything"


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_operation_tells_one_record_in_many_steps(pool, case):
    """One record of the smallest batch allowed is the target.

    False alarm: 1e-6 over all. Power: the delay that is planted is found in each operation.
    """
    record, planted = hunt(pool, case, pairs=1200, times=8)
    print(f"{case.name}: {record}; planted: {planted}")
    assert planted.pvalue < ALPHA, "the machine is too unsteady for this test to see anything"
    assert record.pvalue > ALPHA / len(CASES)
