"""What a step needs of whatever evaluates its extractor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from dpswd.shared.core.mechanisms.interface import ModelFacts
from dpswd.shared.sandbox.session import Session


@dataclass(frozen=True)
class ExtractorSource:
    """An extractor that a client has uploaded, not built yet; two with one key are equal.

    Attributes:
        key: names graph and weights, by their digests.
        facts: its shapes.
        read: the graph's and the weights' bytes.
    """

    key: str
    facts: ModelFacts = field(compare=False)
    read: Callable[[], tuple[bytes, bytes]] = field(compare=False)


class Engine(Protocol):
    """Evaluates extractors, in workers or in the curator's own process."""

    def session(self, source: ExtractorSource) -> AbstractContextManager[Session]:
        """Takes a place to evaluate this extractor, for one step."""

    def check(self, graph: bytes, weights: bytes) -> None:
        """Builds an uploaded extractor and proves on synthetic records that no row of it sees another.

        Raises:
            RequestInvalid: the weights are not what the graph needs, or not finite.
            ExtractionStopped: a limit was reached.
        """

    @property
    def restarts(self) -> int:
        """How many workers were ended and replaced since the start."""

    def close(self) -> None:
        """Ends every worker. Idempotent."""
