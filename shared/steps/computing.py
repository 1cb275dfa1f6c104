"""One step on secret records, whatever the mechanism: draw the sample, compute, encode what was noised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from shared.extractor.session import Session
from shared.kernels.noise import NoiseSource
from shared.mechanisms.interface import FloatArray, LabelArray, Step
from shared.steps.admission import AdmittedRun
from shared.steps.sampling import sample_without_replacement


class Records(Protocol):
    """What a step reads."""

    @property
    def count(self) -> int:
        """N."""
        ...

    def take(self, indices: npt.NDArray[np.int64]) -> FloatArray:
        """Records in the order of `indices`, (b, *record_shape)."""
        ...


@dataclass(frozen=True)
class SecretSample:
    """A `Sample` of records; private.

    Attributes:
        records: all of them.
        labels: (n,) of them, or None.
        rows: (b,) secret record numbers, in the sample's random order; None for every record in the stored order.
    """

    records: Records
    labels: LabelArray | None
    rows: npt.NDArray[np.int64] | None

    @property
    def count(self) -> int:
        """See `Sample`."""
        return self.records.count if self.rows is None else len(self.rows)

    def take(self, start: int, stop: int) -> tuple[FloatArray, LabelArray | None]:
        """See `Sample`."""
        rows = np.arange(start, stop, dtype=np.int64) if self.rows is None else self.rows[start:stop]
        return self.records.take(rows), None if self.labels is None else self.labels[rows]


@dataclass(frozen=True)
class Laboratory:
    """What steps are computed with.

    Attributes:
        records: the data set's.
        labels: (n,) class numbers, private; None where there are none.
        noise: the only source of noise.
        device: where the arithmetic runs.
        fresh_seed: 32 public random bytes, unknown to everybody before.
        reached: told of the step's named points: sampled, then the mechanism's own.
    """

    records: Records
    labels: LabelArray | None
    noise: NoiseSource
    device: torch.device
    fresh_seed: Callable[[], bytes]
    reached: Callable[[str], None]


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
    )
    reply: bytes = mechanism.compute(run.declared, request, step).to_bytes()
    return reply
