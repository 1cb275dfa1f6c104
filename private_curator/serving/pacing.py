"""When replies leave: at multiples of a quantum after their request came, so that a record's value does not show.

A client chooses the extractor, hence which operations meet a record. What little the time of those still depends on
their numbers disappears in the wait for the next multiple, unless it carries the reply over one. The quantum is
therefore longer than the slowest step that the run allows takes on any records: the time of a rehearsal on made records
(private_curator/steps/trial_run.py), times what each operation of a graph may take longer for some numbers than for
others, and with room for a busy machine. It is fixed in the ledger with the first run of such steps, so that no later
rehearsal, on a busier machine, changes it. Refusals and errors of the same requests wait as well.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from dpswd.shared.sandbox.steady import LARGEST_RATIO

SHORTEST_QUANTUM_S = 0.05
"""Of automatic quanta; below it the ledger's own writing shows."""
_SLACK = 1.5
"""Automatic quanta are so much longer than the slowest records take on a quiet machine."""
QUANTUM_OVER_TRIAL = _SLACK * LARGEST_RATIO
"""What an automatic quantum has room for, in times of the trial.

Every operation of a graph takes at most `LARGEST_RATIO` of its time in the trial for any other numbers, so the sum over
a graph does as well, whichever operations meet which numbers (benchmarks/operation_combinations.py measures it).
"""


def quantum_ms(trial_s: float) -> int:
    """The automatic quantum of steps whose rehearsal took so many seconds, in milliseconds."""
    return round(1000 * SHORTEST_QUANTUM_S) * max(1, math.ceil(QUANTUM_OVER_TRIAL * trial_s / SHORTEST_QUANTUM_S))


class Pacer:
    """Holds replies back.

    Args:
        quantum_s: seconds; 0 for none; "auto" for the quantum that each request is told to expect.
        clock: the monotonic clock.
        sleep: waits.
    """

    def __init__(
        self,
        quantum_s: float | Literal["auto"],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._quantum_s = quantum_s
        self._clock = clock
        self._sleep = sleep
        self._own = threading.local()

    @property
    def automatic(self) -> bool:
        """Whether quanta follow rehearsals."""
        return self._quantum_s == "auto"

    def expect(self, quantum_s: float) -> None:
        """Tells, inside `paced`, the automatic quantum of this request's step, in seconds."""
        self._own.quantum_s = quantum_s

    @contextmanager
    def paced(self) -> Iterator[None]:
        """Leaves at a multiple of the quantum after it was entered, however the block ends."""
        arrived = self._clock()
        self._own.quantum_s = SHORTEST_QUANTUM_S if self._quantum_s == "auto" else self._quantum_s
        try:
            yield
        finally:
            quantum_s: float = self._own.quantum_s
            if quantum_s > 0:
                passed = self._clock() - arrived
                self._sleep(math.ceil(passed / quantum_s) * quantum_s - passed)
