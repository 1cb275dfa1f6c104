"""Requests whose sample has a chosen record cannot be told by the clock from those without it.

The attack: an extractor picks one person's record out of all others, turns the numbers of the next value from zero into
numbers of every trouble (negative, saturating, huge, missing) for this record alone, and applies one operation to them.
Where that takes longer than with zeros, a step takes longer whenever the person is in its sample. ELU took four times
as long, and so did pools of maxima; in their present forms no operation does.

A distinguisher gets the worker's own time of each request and the quantum after which its reply left
(`benchmarks.detectors`). It answers for pairs from which it learned nothing, so without a dependence each answer is a
fair coin, however busy the machine is. What it can see is shown by planting a delay.
"""

from __future__ import annotations

import numpy as np
import pytest
from signs import ALPHA

from benchmarks.detectors import Counts, Verdict, counted, judge, planted, summary, watched
from benchmarks.operation_times import CASES
from dpswd.private_curator.sandbox.pool import WorkerPool
from dpswd.private_curator.sandbox.process import WorkerSettings
from dpswd.shared.core.wire.limits import MIN_BATCH_SIZE

PAIRS = 100_000
_ROUNDS = 8


@pytest.fixture(scope="module")
def pool():
    made = WorkerPool(WorkerSettings(device="cpu", threads=1, memory_bytes=1 << 30, seconds=120.0), workers=1)
    yield made
    made.close()


def made_pairs(generator, pairs, *, share=0.0, overruns=(0.0, 0.0)):
    """Times of 10 ms with a deviation of 5 %, of the record's request longer by a share; quanta by chances."""
    seen = np.empty((pairs, 2, 2))
    seen[:, :, 0] = 0.01 * generator.lognormal(sigma=0.05, size=(pairs, 2)) * [1.0, 1.0 + share]
    seen[:, :, 1] = 1.0 + (generator.random((pairs, 2)) < overruns)
    return seen


def test_the_distinguisher_finds_three_percent_and_finds_nothing_in_chance():
    """The generator is seeded: the numbers are the same each time."""
    generator = np.random.default_rng(1)
    by_chance = made_pairs(generator, 2000, overruns=(0.1, 0.1))
    assert judge(by_chance, generator).pvalue > 0.01
    assert judge(planted(by_chance, 0.05, generator), generator).pvalue < ALPHA
    assert judge(made_pairs(generator, 800, share=0.03), generator).pvalue < ALPHA
    assert judge(made_pairs(generator, 800, share=-0.03), generator).pvalue < ALPHA  # earlier is told as well
    assert judge(made_pairs(generator, 2000, overruns=(0.0, 0.2)), generator).pvalue < ALPHA


def test_rows_add_up_to_the_verdict_of_one_run():
    """Rows of 48 pairs, each with its own earlier or later, in one file: what is learned is learned of all."""
    generator = np.random.default_rng(2)
    seen = made_pairs(generator, 480, share=-0.01, overruns=(0.05, 0.05))
    parts = [counted(part, generator) for part in np.split(seen, 10)]
    assert sum(parts, Counts()) == counted(seen, generator)
    assert sum(parts, Counts()).verdict == judge(seen, generator)
    row = {"case": "elu", "planted": 0.03, "pairs": 48, "after_the_first_quantum": 2}
    rows = [row | {"record": vars(part), "delay": vars(part)} for part in parts]
    text = summary([*rows, row | {"case": "tanh", "record": vars(parts[0]), "delay": vars(parts[0])}])
    assert f"the record: {judge(seen, generator)}; planted: {judge(seen, generator)}; 20 replies" in text
    assert "528 pairs of 2 cases. The record: " in text
    assert text.endswith(f"3% planted: {judge(seen, generator) + parts[0].verdict}")


@pytest.mark.statistical
@pytest.mark.long
def test_no_operation_tells_one_record(pool):
    """Some hundred pairs of all operations; every record of the batch is the target.

    Power: a delay that one record of the smallest batch makes when all that is computed of it takes four times as long
    is found. On an unsteady machine that takes more pairs, up to eight times as many. False alarm: 1e-6, shared by all
    the places where it may end. The quantum is found by one trial of each kind: a longer one leaves more to the times.
    """
    generator, seen = np.random.default_rng(), np.empty((0, 2, 2))
    for _ in range(_ROUNDS):
        pairs = watched(pool, CASES, pairs=4, generator=generator, targets=MIN_BATCH_SIZE, trials=1)
        seen = np.concatenate([seen, *pairs.values()])
        delay = judge(planted(seen, 3 / MIN_BATCH_SIZE, generator), generator)
        if delay.pvalue < ALPHA:
            break
    record = judge(seen, generator)
    print(f"\nrecord: {record}; planted: {delay}")
    assert delay.pvalue < ALPHA, "the machine is too unsteady for this test to see anything"
    assert record.pvalue > ALPHA / _ROUNDS


@pytest.mark.statistical
@pytest.mark.exhaustive
@pytest.mark.timeout(18_000)
def test_no_operation_tells_one_record_in_a_hundred_thousand_pairs(pool):
    """One record of the smallest batch is the target; of each operation by itself, and of all together.

    False alarm: 1e-6. Power: a request that takes 3% longer is found.
    """
    generator = np.random.default_rng()
    pairs = watched(pool, CASES, pairs=-(-PAIRS // len(CASES)), generator=generator)
    record, delay = Verdict(), Verdict()
    for name, seen in pairs.items():
        own = judge(seen, generator)
        print(f"{name}: {own}")
        assert own.pvalue > ALPHA / 2 / len(pairs), name
        record, delay = record + own, delay + judge(planted(seen, 0.03, generator), generator)
    print(f"record: {record}; planted: {delay}")
    assert sum(map(len, pairs.values())) >= PAIRS
    assert delay.pvalue < ALPHA, "the machine is too unsteady for this test to see anything"
    assert record.pvalue > ALPHA / 2
