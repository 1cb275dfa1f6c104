"""One step on secret records, whatever the mechanism: draw the sample, compute, encode what was noised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Facts, FloatArray, LabelArray, Session, Step
from dpswd.shared.core.mechanisms.linear import AnyLinear, LinearMechanism, Shard, ShardSum, added
from dpswd.shared.core.noise.directions import Draw, drawn_here
from dpswd.shared.core.noise.noise import NoiseSource
from dpswd.shared.core.steps.admission import AdmittedRun
from dpswd.shared.core.steps.sampling import sample_without_replacement


class Records(Protocol):
    """What a step reads."""

    @property
    def count(self) -> int:
        """N."""

    def take(self, indices: npt.NDArray[np.int64]) -> FloatArray:
        """Records in the order of `indices`, (b, *record_shape)."""


class Labels(Protocol):
    """The records' class numbers, in memory or in their file."""

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[np.integer[Any]]:
        """(b,) class numbers of these records."""


@dataclass(frozen=True)
class SecretSample:
    """A `Sample` of all records, with labels or None; private.

    `rows` (b,) are secret record numbers, in the sample's random order; None for every record in the stored order.
    """

    records: Records
    labels: Labels | None
    rows: npt.NDArray[np.int64] | None

    @property
    def count(self) -> int:
        """See `Sample`."""
        return self.records.count if self.rows is None else len(self.rows)

    def take(self, start: int, stop: int) -> tuple[FloatArray, LabelArray | None]:
        """See `Sample`."""
        rows = np.arange(start, stop, dtype=np.int64) if self.rows is None else self.rows[start:stop]
        labels: LabelArray | None = None if self.labels is None else self.labels[rows].astype(np.int64)
        return self.records.take(rows), labels


@dataclass(frozen=True)
class Laboratory:
    """What steps are computed with.

    Attributes:
        records, labels: the data set's; no labels where there are none.
        noise: the only source of noise.
        device: where the arithmetic runs.
        fresh_seed: 32 public random bytes, unknown to everybody before.
        reached: told of the step's named points: sampled, then the mechanism's own.
        draw: of public directions, on the device.
    """

    records: Records
    labels: Labels | None
    noise: NoiseSource
    device: torch.device
    fresh_seed: Callable[[], bytes]
    reached: Callable[[str], None]
    draw: Draw = drawn_here


@dataclass(frozen=True)
class LinearRun:
    """What a sum over every record needs to know of its run, without ledger and price; `declared` is of this step."""

    mechanism: AnyLinear
    declared: Any
    facts: Facts

    @classmethod
    def of(cls, run: AdmittedRun, request: Any) -> LinearRun | None:
        """None where the mechanism is no sum over every record."""
        if isinstance(run.mechanism, LinearMechanism):
            return cls(run.mechanism, run.mechanism.stepped(run.declared, request), run.facts)
        return None

    def checked(self, part: ShardSum) -> ShardSum:
        """The part, if its records can add up to it.

        Raises:
            InvalidValue: they cannot; the text names no value.
        """
        bounds = zip(self.mechanism.reaches(self.declared, self.facts), part.sums, strict=True)
        if not all(reach.allows(sums, part.shard.count) for reach, sums in bounds):
            raise InvalidValue(f"a shard's sums are not what {part.shard.count} records can add up to")
        return part


def computed(run: AdmittedRun, request: Any, model: Session, lab: Laboratory) -> bytes:
    """The mechanism's reply to a checked request, as bytes whose length depends on declared sizes only.

    Everything private lives and dies inside this call.

    Args:
        run: checked.
        request: checked against the run.
        model: evaluates the run's extractor.
        lab: records, noise and device.
    """
    mechanism, size = run.mechanism, run.size
    rows = None if mechanism.whole else sample_without_replacement(lab.records.count, size.batch)
    sample = SecretSample(lab.records, lab.labels if mechanism.needs_labels else None, rows)
    lab.reached("sampled")
    step = Step(
        run=size,
        facts=run.facts,
        sample=sample,
        model=model,
        noise=lab.noise,
        device=lab.device,
        fresh_seed=lab.fresh_seed,
        reached=lab.reached,
        draw=lab.draw,
    )
    reply: bytes = mechanism.compute(run.declared, request, step).to_bytes()
    return reply


def summed(
    run: LinearRun, shard: Shard, model: Session, *, records: Records, labels: Labels | None, device: torch.device
) -> ShardSum:
    """The exact sum of one shard of the data set; private, and without noise."""
    everything = SecretSample(records, labels if run.mechanism.needs_labels else None, None)
    return run.mechanism.summed(run.declared, run.facts, shard, everything, model, device)


def completed(run: LinearRun, parts: Iterable[ShardSum], lab: Laboratory) -> bytes:
    """The reply of a linear mechanism from the sums of all shards, in any order; noise is added here, once.

    Raises:
        InvalidValue: a record is in none of the shards, or in two; or a sum is not what its records can add up to.
    """
    lab.reached("sampled")
    total = added(map(run.checked, parts), records=run.facts.data.records)
    lab.reached("extracted")
    reply: bytes = run.mechanism.released(run.declared, run.facts, total, lab.noise).to_bytes()
    lab.reached("released")
    return reply
