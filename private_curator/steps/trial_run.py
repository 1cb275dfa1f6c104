"""A step on made records, before anything is charged: what it takes is known from public values alone.

A client writes the extractor. If the first records to meet a limit of time or memory were the hospital's, whether a
step fails would be something that the records have a say in, and the client would have paid for a run that cannot be
computed. So a run's step is computed once on random numbers of the right shape; its time also sets the quantum to which
reply times are padded (private_curator/serving/pacing.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.mechanisms.interface import LabelArray
from shared.steps.admission import AdmittedRun

MAX_REMEMBERED = 256  # kinds of steps
_MOST_RECORDS = 4096  # of a step that reads all records: part of them is enough to know its time
_REPEAT_BELOW_S = 1.0  # a short step is measured again: its first time includes loading the extractor


@dataclass(frozen=True)
class MadeRecords:
    """Random numbers in the place of the records; see `shared.steps.computing.Records`.

    Attributes:
        count: of records.
        record_shape: of one record.
    """

    count: int
    record_shape: tuple[int, ...]

    def take(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """As many random records as there are indices, (b, *record_shape); the same ones at every call."""
        values = np.random.default_rng(0).random((len(indices), math.prod(self.record_shape)), dtype=np.float32)
        return values.reshape(len(indices), *self.record_shape)

    @classmethod
    def for_run(cls, run: AdmittedRun) -> tuple[MadeRecords, LabelArray | None, float]:
        """Records, labels where the run reads some, and the factor from their time to that of a whole step."""
        data = run.facts.data
        count = min(data.records, _MOST_RECORDS) if run.mechanism.whole else data.records
        labels = np.arange(count, dtype=np.int64) % data.classes if run.mechanism.needs_labels else None
        return cls(count, data.record_shape), labels, data.records / count


@dataclass(frozen=True)
class _StepWork:
    """What a step's time depends on, and how it is measured."""

    depends_on: tuple[object, ...]
    once: Callable[[], float] = field(compare=False)

    def seconds(self) -> float:
        measured = self.once()
        return self.once() if measured < _REPEAT_BELOW_S else measured


class TrialTimes:
    """Remembers how long each kind of step took."""

    def __init__(self) -> None:
        self._seconds = functools.lru_cache(maxsize=MAX_REMEMBERED)(_StepWork.seconds)

    def seconds(self, run: AdmittedRun, once: Callable[[], float]) -> float:
        """The remembered time of such a step, or a new measurement.

        Args:
            run: checked.
            once: computes one step and returns its time, in seconds.
        """
        declared = run.parameters
        extractor = declared.graph_digest, declared.weights_digest
        work = run.mechanism.work(run.declared)
        return self._seconds(_StepWork((*extractor, declared.batch_size, declared.mechanism, *work), once))
