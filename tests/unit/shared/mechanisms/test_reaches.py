"""Whoever computes a shard is held to what its records can add up to, in every mechanism that is a sum over all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conformance_attack import Bench, Table
from conformance_cases import CASES, CLASSES, INPUTS, RECORDS
from hospital import NoNoise

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.linear import LinearMechanism, LinearRun, Reach, Shard, ShardSum, added
from dpswd.shared.core.steps.computing import Laboratory, completed, summed
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.sandbox.session import DirectSession

CPU = torch.device("cpu")
LINEAR = [case for case in CASES if isinstance(ALL_MECHANISMS[case.declared[0]], LinearMechanism)]
by_case = pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)


def whole_sum(case, values, labels, *, factor=1.0):
    """The case's run, and its exact sum of these records."""
    mechanism = ALL_MECHANISMS[case.declared[0]]
    bench = Bench(mechanism, case, records=len(values), factor=factor)
    run = LinearRun(mechanism, mechanism.stepped(case.declaration, case.request), bench.facts)
    model, whole = DirectSession(bench._extractor), Shard(0, len(values))
    return run, summed(run, whole, model, records=Table(values), labels=labels, device=CPU)


def mixed():
    rng = np.random.default_rng(1)
    return rng.normal(size=(RECORDS, INPUTS)).astype(np.float32), np.arange(RECORDS) % CLASSES


def finished(run, part):
    return completed(run, [part], Laboratory(None, None, NoNoise(), CPU, lambda: bytes(32), lambda _: None))


def test_every_sum_over_all_records_is_here():
    linear = {name for name, mechanism in ALL_MECHANISMS.items() if isinstance(mechanism, LinearMechanism)}
    assert linear == {case.declared[0] for case in LINEAR}


@by_case
def test_what_records_add_is_within_reach_and_fills_a_fair_part_of_it(case):
    """Equal records of the largest norm add up to as much as a sum can be: a bound far above would hold nobody."""
    for factor in (1e-3, 1.0, 1e20):
        for value in (1.0, -1e30, np.nan):
            values, labels = np.full((RECORDS, INPUTS), value, np.float32), np.zeros(RECORDS, np.int64)
            run, part = whole_sum(case, values, labels, factor=factor)
            assert run.checked(part) is part
    run, part = whole_sum(case, np.full((RECORDS, INPUTS), 1e15, np.float32), np.zeros(RECORDS, np.int64), factor=1e10)
    for reach, sums in zip(run.reaches(), part.sums, strict=True):
        sizes = np.abs(sums).sum(axis=reach.axes) if reach.counts else np.sqrt(np.square(sums * 1.0).sum())
        assert not sums.any() or np.max(sizes) > 0.2 * RECORDS * reach.most


@by_case
@pytest.mark.parametrize("lie", [100_000, 2**62, -(2**62)])
def test_a_lie_in_every_cell_of_any_array_is_refused(case, lie):
    run, part = whole_sum(case, *mixed())
    run.checked(part)
    reaches = run.reaches()
    for place, (reach, own) in enumerate(zip(reaches, part.sums, strict=True)):
        if not own.size or (not reach.counts and abs(lie) <= RECORDS * reach.most):  # of features: a small lie
            continue
        false = tuple(array + lie if at == place else array for at, array in enumerate(part.sums))
        with pytest.raises(InvalidValue, match="records can add up to"):
            finished(run, ShardSum(part.shard, false))


@by_case
def test_no_count_may_be_negative(case):
    run, part = whole_sum(case, *mixed())
    counted = [at for at, reach in enumerate(run.reaches()) if reach.counts]
    for place in counted:
        false = tuple(array - 1 if at == place and array.size else array for at, array in enumerate(part.sums))
        if false[place].min(initial=0) < 0:
            with pytest.raises(InvalidValue, match="records can add up to"):
                run.checked(ShardSum(part.shard, false))


def test_an_evaluation_cannot_release_more_correct_predictions_than_there_are_records():
    """What a node did that added 100,000 to each cell: 999,449 correct of 600,000, in six shards."""
    (case,) = [case for case in LINEAR if case.name == "evaluation"]
    run, part = whole_sum(case, *mixed())
    confusion, table, places, right, labelled = part.sums
    with pytest.raises(InvalidValue):
        run.checked(ShardSum(part.shard, (confusion, table, places, right + RECORDS, labelled)))
    with pytest.raises(InvalidValue):  # though no single cell is larger than there are records
        run.checked(ShardSum(part.shard, (np.full_like(confusion, RECORDS), table, places, right, labelled)))


def test_sums_that_leave_64_bits_are_an_error_and_do_not_wrap():
    """2^62 in every cell of four shards would be 2^64, that is nothing."""
    cells = np.full((2, 3), 2**62, dtype=np.int64)
    for sign in (1, -1):
        parts = [ShardSum(Shard(at, at + 1), (sign * cells,)) for at in range(4)]
        with pytest.raises(InvalidValue, match="leave 64 bits"):
            added(parts, records=4)
    fits = [ShardSum(Shard(0, 1), (cells,)), ShardSum(Shard(1, 2), (cells - 1,))]
    np.testing.assert_array_equal(added(fits, records=2).sums[0], np.full((2, 3), 2**63 - 1, dtype=np.int64))


def test_a_reach_along_some_axes_holds_at_every_place_of_the_others():
    rows = np.array([[3, 0], [2, 2]])
    assert Reach(1, counts=True, axes=(1,)).allows(rows, 4)
    assert not Reach(1, counts=True, axes=(1,)).allows(rows, 3)
    assert not Reach(1, counts=True).allows(rows, 6)
    assert Reach(5).allows(np.array([3, -4]), 1)
    assert not Reach(4.999).allows(np.array([3, -4]), 1)
