"""Linear mechanisms: a step is a sum over every record, in exact integers, so that it may be computed in any parts.

A record adds whole numbers that are a function of that record alone, so any division into shards, computed anywhere, in
any order, gives the same bits as one pass. Noise is added once, to the sum of all, by whoever holds the ledger. Matrix
products in floating point have other last bits for other numbers of rows, so an extractor is always evaluated on the
same blocks, counted from the first record; shards begin and end where blocks do.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

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
    Payload,
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
    """The exact sum of one shard, or of several, as the mechanism's accumulator has it; private."""

    shard: Shard
    sums: tuple[Integers, ...]


@dataclass(frozen=True)
class Reach:
    """What one record adds to one array of the sums, at most: public, as the clip is.

    Attributes:
        most: the Euclidean norm of what it adds; of counts, which are never negative, their number.
        counts: whether it adds counts.
        axes: along which this holds, whatever the place on the others; None for all.
    """

    most: float
    counts: bool = False
    axes: tuple[int, ...] | None = None

    def allows(self, sums: Integers, records: int) -> bool:
        """Whether so many records can add up to these sums."""
        size = sums.astype(np.float64)  # squares and sums of squares do not overflow
        norm = size.sum(axis=self.axes) if self.counts else np.sqrt(np.square(size).sum(axis=self.axes))
        return not (self.counts and (sums < 0).any()) and bool((norm <= records * self.most * (1.0 + 2.0**-40)).all())


def added(parts: Iterable[ShardSum], *, records: int) -> ShardSum:
    """The sum over all n records of shards in any order.

    Raises:
        InvalidValue: a record is in none of the shards, or in two; or a sum leaves 64 bits.
    """
    total: list[Integers] = []
    shards: list[Shard] = []
    for part in parts:  # one at a time: the sums of hundreds of shards would not fit beside each other
        shards.append(part.shard)
        if total:
            for whole, own in zip(total, part.sums, strict=True):
                before = whole.copy()
                whole += own
                if ((before ^ whole) & (own ^ whole) < 0).any():  # two of one sign, and a sum of the other
                    raise InvalidValue("the sums of the shards leave 64 bits")
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
        """Adds records: features (m, d), as the extractor computes them, and labels (m,) where they are needed."""

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
    def reaches(self, declared: D, facts: Facts) -> tuple[Reach, ...]:
        """How much one record adds to each array of the sums: whoever computes a shard is held to it."""

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
        """The exact sum of a shard of all records, read block by block: memory does not depend on its length."""
        accumulator = self.accumulator(declared, facts, device)
        unread = (sample.take(place.start, place.stop) for place in blocks(shard, facts))
        block = next(unread, None)
        waiting: tuple[Tensor, LabelArray | None] | None = None

        def meanwhile() -> None:  # another process evaluates: add what it computed before, read what comes next
            nonlocal block
            if waiting is not None:
                accumulator.add(*waiting)
            block = next(unread, None)

        while block is not None:
            records, labels = block
            features = self.evaluated(declared, records, model, meanwhile)
            waiting = features.to(device), labels
        if waiting is not None:
            accumulator.add(*waiting)
        return ShardSum(shard, accumulator.sums)


D_co = TypeVar("D_co", bound=Payload, covariant=True)
Q_co = TypeVar("Q_co", bound=Payload, covariant=True)
R_co = TypeVar("R_co", bound=Payload, covariant=True)


@dataclass(frozen=True)
class LinearRun(Generic[D_co, Q_co, R_co]):
    """What a sum over every record needs to know of its run, without ledger and price; `declaration` is the step's."""

    mechanism: LinearMechanism[D_co, Q_co, R_co]
    declaration: D_co
    facts: Facts

    def accumulator(self, device: torch.device) -> Accumulator:
        """An empty sum."""
        return self.mechanism.accumulator(self.declaration, self.facts, device)

    def reaches(self) -> tuple[Reach, ...]:
        """How much one record adds to each array of the sums."""
        return self.mechanism.reaches(self.declaration, self.facts)

    def checked(self, part: ShardSum) -> ShardSum:
        """The part, if its records can add up to it.

        Raises:
            InvalidValue: they cannot; the text names no value.
        """
        if not all(reach.allows(own, part.shard.count) for reach, own in zip(self.reaches(), part.sums, strict=True)):
            raise InvalidValue(f"a shard's sums are not what {part.shard.count} records can add up to")
        return part

    def summed(self, shard: Shard, sample: Sample, model: Session, device: torch.device) -> ShardSum:
        """The exact sum of one shard of the data set; private, and without noise."""
        return self.mechanism.summed(self.declaration, self.facts, shard, sample, model, device)

    def released(self, parts: Iterable[ShardSum], noise: NoiseSource, reached: Callable[[str], None]) -> bytes:
        """The reply from the sums of all shards, in any order; noise is added here, once.

        Raises:
            InvalidValue: a record is in none of the shards, or in two; or a sum is not what its records can add up to.
        """
        total = added(map(self.checked, parts), records=self.facts.data.records)
        reached("extracted")
        reply = self.mechanism.released(self.declaration, self.facts, total, noise).to_bytes()
        reached("released")
        return reply


AnyLinearRun = LinearRun[Payload, Payload, Payload]
