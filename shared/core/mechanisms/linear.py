"""Linear mechanisms: a step is a sum over every record, in exact integers, so that it may be computed in any parts.

A record adds a vector of whole numbers that is a function of that record alone. The sums of shards (ranges of records)
are added as integers: any division into shards, computed anywhere, in any order, gives the same bits as one pass, and a
shard that was lost is computed once more. Noise is added once, to the sum of all, by whoever holds the ledger.

What a record adds must not depend on how the records were divided either. Matrix products in floating point have other
last bits for other numbers of rows, so an extractor is always evaluated on the same blocks: `block_records` of them,
counted from the first record. Shards begin and end where blocks do.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import (
    D,
    Facts,
    FloatArray,
    LabelArray,
    Mechanism,
    Q,
    R,
    Sample,
    Session,
    Step,
)
from dpswd.shared.core.noise.noise import NoiseSource

Integers = npt.NDArray[np.int64]

_BLOCK_VALUES = 1 << 22  # of records or features in memory at a time, 16 MiB in float32
_MOST_BLOCK_RECORDS = 16384  # what a block costs besides its records is then little: messages, calls of operations


@dataclass(frozen=True)
class Shard:
    """Records `start` to `stop` - 1; both are multiples of the block, or the end of the data set."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        """Of records."""
        return self.stop - self.start


def block_records(facts: Facts) -> int:
    """Records that are evaluated together, a power of two from 1 to 16384; from public shapes alone."""
    widest = max(1, math.prod(facts.data.record_shape), facts.model.feature_dimension)
    return min(_MOST_BLOCK_RECORDS, 1 << (max(1, _BLOCK_VALUES // widest).bit_length() - 1))


def blocks(shard: Shard, facts: Facts) -> Iterator[Shard]:
    """The shard's blocks in order."""
    size = block_records(facts)
    for start in range(shard.start, shard.stop, size):
        yield Shard(start, min(start + size, shard.stop))


@dataclass(frozen=True, eq=False)
class ShardSum:
    """The exact sum of one shard, or of several; private.

    Attributes:
        shard: whose records were added.
        sums: int64 arrays, as the mechanism's accumulator has them.
    """

    shard: Shard
    sums: tuple[Integers, ...]


def added(parts: Iterable[ShardSum], *, records: int) -> ShardSum:
    """The sum over all records.

    Args:
        parts: in any order.
        records: n.

    Raises:
        InvalidValue: a record is in none of the shards, or in two: what was to be one record's share of the release
            would be another.
    """
    total: list[Integers] = []
    shards: list[Shard] = []
    for part in parts:  # one at a time: the sums of hundreds of shards would not fit beside each other
        shards.append(part.shard)
        if total:
            for whole, own in zip(total, part.sums, strict=True):
                whole += own
        else:
            total = [own.copy() for own in part.sums]
    at = 0
    for shard in sorted(shards, key=lambda shard: shard.start):
        if shard.start != at or shard.count < 1:
            break
        at = shard.stop
    else:
        if at == records:
            return ShardSum(Shard(0, records), tuple(total))
    raise InvalidValue(f"the shards do not hold each of {records} records exactly once")


class Accumulator(Protocol):
    """Exact sums over the records that were added, each a function of its own record alone."""

    def add(self, features: Tensor, labels: LabelArray | None) -> None:
        """Adds records.

        Args:
            features: (m, d), as the extractor computes them.
            labels: (m,), where the mechanism needs them.
        """

    @property
    def sums(self) -> tuple[Integers, ...]:
        """So far. The shapes follow from the declaration and public facts."""


class LinearMechanism(Mechanism[D, Q, R]):
    """A mechanism whose release is noise on an exact sum over every record."""

    whole: ClassVar[bool] = True

    @abc.abstractmethod
    def accumulator(self, declared: D, facts: Facts, device: torch.device) -> Accumulator:
        """An empty sum."""

    @abc.abstractmethod
    def released(self, declared: D, facts: Facts, total: ShardSum, noise: NoiseSource) -> R:
        """The reply for the sum over all records: here, and only here, noise is added."""

    def stepped(self, declared: D, request: Q) -> D:
        """The declaration as one step's request changes it: all that a shard needs to know of the step."""
        return declared

    def evaluated(
        self, declared: D, records: FloatArray, model: Session, meanwhile: Callable[[], None] | None = None
    ) -> Tensor:
        """What is summed of records, before it is clipped: by default their features."""
        return model.features(records, meanwhile=meanwhile)

    def compute(self, declared: D, request: Q, step: Step) -> R:
        """See `Mechanism`: all records in one pass."""
        declared, whole = self.stepped(declared, request), Shard(0, step.sample.count)
        total = self.summed(declared, step.facts, whole, step.sample, step.model, step.device)
        step.reached("extracted")
        reply = self.released(declared, step.facts, total, step.noise)
        step.reached("released")
        return reply

    def summed(
        self, declared: D, facts: Facts, shard: Shard, sample: Sample, model: Session, device: torch.device
    ) -> ShardSum:
        """The exact sum of one shard, which is read block by block: memory does not depend on its length.

        Args:
            declared: by the run, for this step.
            facts: public shapes.
            shard: to add up.
            sample: every record, in the stored order.
            model: evaluates the run's extractor.
            device: where the arithmetic runs.
        """
        accumulator = self.accumulator(declared, facts, device)
        read = _ReadAhead(sample, blocks(shard, facts))
        waiting: tuple[Tensor, LabelArray | None] | None = None

        def meanwhile() -> None:  # another process evaluates: add what it computed before, read what comes next
            if waiting is not None:
                accumulator.add(*waiting)
            read.advance()

        read.advance()
        while (block := read.block) is not None:
            records, labels = block
            features = self.evaluated(declared, records, model, meanwhile)
            waiting = features.to(device), labels
        if waiting is not None:
            accumulator.add(*waiting)
        return ShardSum(shard, accumulator.sums)


AnyLinear = LinearMechanism[Any, Any, Any]


class _ReadAhead:
    """The blocks of a shard, one after the other."""

    def __init__(self, sample: Sample, places: Iterator[Shard]) -> None:
        self._sample = sample
        self._places = places
        self.block: tuple[FloatArray, LabelArray | None] | None = None

    def advance(self) -> None:
        place = next(self._places, None)
        self.block = None if place is None else self._sample.take(place.start, place.stop)
