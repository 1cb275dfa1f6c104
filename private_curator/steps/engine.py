"""What a curator asks of whatever evaluates extractors: workers, or its own process."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dpswd.private_curator.core.steps.evaluating import Evaluator


class Engine(Evaluator, Protocol):
    """Evaluates extractors, and refuses unfit ones."""

    def check(self, graph: bytes, weights: bytes, *, client: str) -> None:
        """Builds an uploaded extractor and proves on synthetic records that no row of it sees another.

        One upload of each client at a time; no client waits for another's.

        Raises:
            RequestInvalid: the weights are not what the graph needs, or not finite.
            ExtractionStopped: a limit was reached.
        """

    @property
    def restarts(self) -> int:
        """How many workers were ended and replaced since the start."""

    def close(self) -> None:
        """Ends every worker. Idempotent."""


@runtime_checkable
class HasWorker(Protocol):
    """A session for which another process evaluates."""

    def processor_seconds(self) -> float:
        """Processor time that this process has taken since it started."""
