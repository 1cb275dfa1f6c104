"""One step on secret records, whatever the mechanism: draw the sample, compute, encode what was noised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpswd.shared.core.mechanisms.declared import AdmittedStep
from dpswd.shared.core.mechanisms.interface import FloatArray, LabelArray, Session, Step
from dpswd.shared.core.mechanisms.linear import AnyLinearRun, Shard, ShardSum
from dpswd.shared.core.noise.directions import Draw, drawn_here
from dpswd.shared.core.noise.noise import NoiseSource
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


@dataclass(frozen=True, eq=False)
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


def computed(asked: AdmittedStep, model: Session, lab: Laboratory) -> bytes:
    """The reply to a checked request, as bytes whose length depends on declared sizes only.

    Everything private lives and dies inside this call.

    Args:
        asked: checked against its run.
        model: evaluates the run's extractor.
        lab: records, noise and device.
    """
    run = asked.run
    rows = None if run.mechanism.whole else sample_without_replacement(lab.records.count, run.size.batch)
    sample = SecretSample(lab.records, lab.labels if run.mechanism.needs_labels else None, rows)
    lab.reached("sampled")
    return asked.computed(
        Step(
            run=run.size,
            facts=run.facts,
            sample=sample,
            model=model,
            noise=lab.noise,
            device=lab.device,
            fresh_seed=lab.fresh_seed,
            reached=lab.reached,
            draw=lab.draw,
        )
    )


def summed(
    run: AnyLinearRun, shard: Shard, model: Session, *, records: Records, labels: Labels | None, device: torch.device
) -> ShardSum:
    """The exact sum of one shard of the data set; private, and without noise."""
    return run.summed(shard, SecretSample(records, labels if run.mechanism.needs_labels else None, None), model, device)


def completed(run: AnyLinearRun, parts: Iterable[ShardSum], lab: Laboratory) -> bytes:
    """The reply of a linear mechanism from the sums of all shards, in any order.

    Raises:
        InvalidValue: see `LinearRun.released`.
    """
    lab.reached("sampled")
    return run.released(parts, lab.noise, lab.reached)
