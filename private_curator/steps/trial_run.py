"""A step on synthetic records, before anything is charged: what it takes is known from public values alone.

A client writes the extractor. If the first records to meet a limit of time or memory were the hospital's, whether a
step fails would be something that the records have a say in, and the client would have paid for a run that cannot be
computed. So a run's step is computed once on random numbers of the right shape; its time also sets the quantum to which
reply times are padded (private_curator/serving/pacing.py).
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from private_curator.steps.admission import AdmittedStep, ExtractorFacts
from shared.protocol.messages import Evaluation, Quantiles, RunParameters

MAX_REMEMBERED = 256  # kinds of steps
_MOST_RECORDS = 4096  # of an evaluation, which reads all records: part of it is enough to know its time
_REPEAT_BELOW_S = 1.0  # a short step is measured again: its first time includes loading the extractor


class Records(Protocol):
    """What a step reads of `target.Target`."""

    @property
    def count(self) -> int:
        """N."""

    def take(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Records in the order of `indices`, (b, *record_shape)."""


@dataclass(frozen=True)
class SyntheticRecords:
    """Random numbers in the place of the records; see `Records`.

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
    def for_run(
        cls, parameters: RunParameters, facts: ExtractorFacts, *, records: int
    ) -> tuple[SyntheticRecords, npt.NDArray[np.int64] | None, float]:
        """Records, labels where the run counts some, and the factor from their time to that of a whole step."""
        if not isinstance(parameters.release, Evaluation):
            return cls(records, facts.input_shape), None, 1.0
        count = min(records, _MOST_RECORDS)
        labels = np.arange(count, dtype=np.int64) % parameters.release.classes
        return cls(count, facts.input_shape), labels, records / count


class Rehearsals:
    """Remembers how long each kind of step took."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[tuple[object, ...], float] = OrderedDict()
        self._lock = threading.Lock()

    def seconds(self, parameters: RunParameters, once: Callable[[], float]) -> float:
        """The remembered time of such a step, or a new measurement.

        Args:
            parameters: of the run.
            once: computes one step and returns its time, in seconds.
        """
        key = _kind(parameters)
        with self._lock:
            known = self._seconds.get(key)
            if known is not None:
                self._seconds.move_to_end(key)
                return known
        measured = once()
        if measured < _REPEAT_BELOW_S:
            measured = once()
        with self._lock:
            self._seconds[key] = measured
            while len(self._seconds) > MAX_REMEMBERED:
                self._seconds.popitem(last=False)
        return measured


def rehearsed_step(parameters: RunParameters, facts: ExtractorFacts) -> AdmittedStep:
    """A step with the uploaded parameters and, where a gradient needs them, random source features."""
    source = None
    if parameters.gradient is not None:
        shape = (parameters.batch_size, facts.feature_dimension)
        source = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    return AdmittedStep(parameters=parameters, adapted={}, feature_map=parameters.feature_map, source=source, digest="")


def _kind(parameters: RunParameters) -> tuple[object, ...]:
    """What the time of a step depends on."""
    release = parameters.release
    return (
        parameters.graph_digest,
        parameters.weights_digest,
        parameters.batch_size,
        parameters.directions,
        type(release),
        release.coefficients if isinstance(release, Quantiles) else 0,
        parameters.gradient.parameters if parameters.gradient is not None else (),
    )
