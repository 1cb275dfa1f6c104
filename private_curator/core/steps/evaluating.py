"""What a step needs of whoever evaluates its extractor, or sums over every record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from dpswd.shared.core.mechanisms.interface import ModelFacts, Session
from dpswd.shared.core.mechanisms.linear import AnyLinearRun, ShardSum


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


class Evaluator(Protocol):
    """Evaluates extractors, in workers or in the curator's own process."""

    def session(self, source: ExtractorSource) -> AbstractContextManager[Session]:
        """Takes a place to evaluate this extractor, for one step."""


class Shards(Protocol):
    """Computes the shards of a sum over every record."""

    def ready(self) -> None:
        """Asks, before a step is begun, whether shards can be computed now: an outage costs no attempt of a step.

        Raises:
            ExtractionStopped: nobody computes now.
        """

    def sums(self, run: AnyLinearRun, extractor: ExtractorSource) -> Iterable[ShardSum]:
        """The exact sums of shards that together hold every record once; private.

        Raises:
            ExtractionStopped: a limit was reached, a shard was lost too often, or all of them take too long.
        """
