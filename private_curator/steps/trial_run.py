"""A step on made records, before anything is charged: what it takes is known from public values alone.

A client writes the extractor. If the first records to meet a limit of time or memory were the hospital's, whether a
step fails would be something that the records have a say in, and the client would have paid for a run that cannot be
computed. So a run's step is computed on made numbers of the right shape: the largest step that the run allows, on
random numbers and on numbers that reach every operation of the graph as what it may find hardest. The slowest kind
counts, and of each kind the shortest of several times: what a quiet machine needs. The first such processor time, which
does not grow while others use the machine, also fixes the quantum to which reply times are padded
(private_curator/serving/pacing.py).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpswd.private_curator.core.ledger.store import no_checkpoint
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.core.steps.release import ReleasePipeline
from dpswd.private_curator.sandbox.process import LimitReached, WorkerFailed
from dpswd.private_curator.steps.engine import HasWorker
from dpswd.shared.core.mechanisms.declared import AdmittedRun
from dpswd.shared.core.mechanisms.interface import LabelArray, Session
from dpswd.shared.core.mechanisms.linear import LinearMechanism
from dpswd.shared.core.steps.computing import computed
from dpswd.shared.core.wire.checks import invalid

_log = logging.getLogger(__name__)

TRIAL_SHARE = 0.5  # of the time limit: a step on made records may take so much, and a busy machine twice as long
MAX_REMEMBERED = 256  # kinds of steps
_FEWEST_RECORDS, _MOST_RECORDS = 256, 4096  # of a step that reads all records: part of them is enough to know its time
_MOST_REPEATS = 8  # of each kind of records: the shortest is free of what else the machine was doing
_REPEAT_FOR_S = 1.0  # in total; a step that takes longer is measured once with each kind, after one that loads it
_PASS_FOR_S = 4.0  # at most about so long for each of these, where a step reads all records
KINDS: Mapping[str, float | None] = {"random": None, "huge": 3e38, "not a number": math.nan}
"""Made records: the one value that they consist of, None for random ones. NaN reaches every operation behind it."""


@dataclass(frozen=True)
class MadeRecords:
    """Made numbers in the place of the records; see `dpswd.shared.core.steps.computing.Records`.

    Attributes:
        count: of records.
        record_shape: of one record.
        value: that they consist of; None for random numbers.
    """

    count: int
    record_shape: tuple[int, ...]
    value: float | None = None

    def take(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """As many records as there are indices, (b, *record_shape); the same ones at every call."""
        if self.value is not None:
            return np.full((len(indices), *self.record_shape), self.value, dtype=np.float32)
        values = np.random.default_rng(0).random((len(indices), math.prod(self.record_shape)), dtype=np.float32)
        return values.reshape(len(indices), *self.record_shape)

    @classmethod
    def for_run(
        cls, run: AdmittedRun, *, value: float | None = None, share: float = 1.0
    ) -> tuple[MadeRecords, LabelArray | None, float]:
        """Records, labels where the run reads some, and the factor from their time to that of a whole step."""
        data = run.facts.data
        part = min(data.records, _MOST_RECORDS, max(_FEWEST_RECORDS, int(share * data.records)))
        count = part if run.mechanism.whole else data.records
        labels = np.arange(count, dtype=np.int64) % data.classes if run.mechanism.needs_labels else None
        return cls(count, data.record_shape, value), labels, data.records / count


class StepTime(NamedTuple):
    """What a step took.

    Attributes:
        wall_s: seconds by the clock.
        processor_s: seconds of the processors that worked on it, which other programs do not lengthen; by the clock
            where a GPU did.
    """

    wall_s: float
    processor_s: float


class ProcessorClock:
    """Counts the processor time of this thread from now on, and that of the worker that evaluates for it."""

    def __init__(self) -> None:
        self._begun = time.thread_time()
        self._worker: Callable[[], float] = float

    def enter(self, session: Session) -> None:
        """Counts the session's worker as well from now on, where another process evaluates."""
        if isinstance(session, HasWorker):
            self._worker = session.processor_seconds
            self._begun += self._worker()

    def seconds(self) -> float:
        """What both have taken, in seconds; inside of the session."""
        return time.thread_time() + self._worker() - self._begun


def _measured(once: Callable[[float | None, float], StepTime]) -> StepTime:
    """Of each kind of records the shortest time, of those the longest."""
    spent = once(None, 0.0).wall_s  # includes loading the extractor, and counts only as time that was spent
    share = _PASS_FOR_S / max(spent, _PASS_FOR_S)
    shortest = dict.fromkeys(KINDS, StepTime(math.inf, math.inf))
    for _ in range(_MOST_REPEATS):
        for kind, value in KINDS.items():
            took = once(value, share)
            shortest[kind] = StepTime(*map(min, shortest[kind], took))
            spent += took.wall_s
        if spent > _REPEAT_FOR_S:
            break
    return StepTime(*map(max, *shortest.values()))


class TrialTimes:
    """Remembers how long each kind of step took, and nothing else of it: a trial's request may be large."""

    def __init__(self) -> None:
        self._times: OrderedDict[tuple[object, ...], StepTime] = OrderedDict()
        self._lock = threading.Lock()

    def step_time(self, run: AdmittedRun, once: Callable[[float | None, float], StepTime]) -> StepTime:
        """The remembered time of such a step, or a new measurement.

        Args:
            run: checked.
            once: computes one step on made records of this value, this share of all, and returns its time.
        """
        key = run.work
        with self._lock:
            if key in self._times:
                self._times.move_to_end(key)
                return self._times[key]
        measured = _measured(once)
        with self._lock:
            self._times[key] = measured
            while len(self._times) > MAX_REMEMBERED:
                self._times.popitem(last=False)
        return measured


class Trials:
    """Measures steps before they are charged, in the places of the steps themselves.

    Args:
        pipeline: computes the steps.
        most_seconds: that one evaluation of an extractor may take.
        pass_seconds: that a sum over every record may take.
        pass_speedup: how many times as fast as by one worker here such a sum surely is; the operator's, hence public.
    """

    def __init__(
        self,
        pipeline: ReleasePipeline,
        *,
        most_seconds: float = 300.0,
        pass_seconds: float = 3600.0,
        pass_speedup: float = 1.0,
    ) -> None:
        self._pipeline = pipeline
        self._most_seconds = most_seconds
        self._pass_seconds = pass_seconds
        self._pass_speedup = pass_speedup
        self._times = TrialTimes()

    def work(self, run: AdmittedRun) -> str:
        """SHA-256, hexadecimal, of all that the time of a run's steps depends on here but load."""
        return hashlib.sha256(repr((self._pipeline.lab.device.type, *run.work)).encode()).hexdigest()

    def step_time(self, run: AdmittedRun, extractor: ExtractorSource) -> StepTime:
        """How long the largest step of this run takes on made records: a public quantity.

        Reads no record and releases nothing. Remembered; known before a run is charged and before a step begins, so
        that a run whose steps would be stopped costs nothing, and limits are met by sizes and not by records.

        Raises:
            RequestInvalid: a step would exceed the operator's limits of time or memory.
        """

        @functools.cache
        def sent() -> bytes:  # may be large, and is made where a time is not remembered
            return run.synthetic()

        def once(value: float | None, share: float) -> StepTime:
            records, labels, scale = MadeRecords.for_run(run, value=value, share=share)
            if isinstance(run.mechanism, LinearMechanism):
                scale /= self._pass_speedup
            lab = replace(self._pipeline.lab, records=records, labels=labels, reached=no_checkpoint)
            request_bytes = sent()
            with self._pipeline.place():
                begun, processors = time.monotonic(), ProcessorClock()
                asked = run.asked(request_bytes)
                with self._pipeline.evaluator.session(extractor) as session:
                    processors.enter(session)
                    computed(asked, session, lab)
                    processor_s = processors.seconds()
                wall_s = time.monotonic() - begun
                return StepTime(scale * wall_s, scale * (processor_s if lab.device.type == "cpu" else wall_s))

        try:
            took = self._times.step_time(run, once)
        except LimitReached as error:
            text = f"declare steps that cannot be computed here, as made records show: {error}"
            raise invalid("parameters", text) from error
        except (WorkerFailed, RuntimeError) as error:  # torch's, of made records: shapes decided it; nothing is spent
            kinds = [str(link["type"]) for link in error.chain] if isinstance(error, WorkerFailed) else [type(error)]
            _log.error("a trial on made records failed: %s", kinds)
            text = "declare steps that cannot be computed: made records failed here; adapt other parameters, and tell "
            raise invalid("parameters", f"{text}the operator, whose log has the kind of error") from error
        # A sum over every record asks its worker for one block after the other: no evaluation is the whole of it.
        most = self._pass_seconds if run.mechanism.whole else TRIAL_SHARE * self._most_seconds
        if took.wall_s > most:
            text = f"declare steps that take about {took.wall_s:.0f} seconds here; at most {most:g} are allowed"
            raise invalid("parameters", f"{text}: use a smaller batch or extractor")
        return took
