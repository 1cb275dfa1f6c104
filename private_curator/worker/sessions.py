"""What a step needs of whatever evaluates its extractor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from private_curator.steps.admission import ExtractorFacts

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ExtractorSource:
    """An extractor that a client has uploaded, not built yet.

    Attributes:
        key: names graph and weights, by their digests.
        facts: its shapes.
        read: the graph's and the weights' bytes.
    """

    key: str
    facts: ExtractorFacts
    read: Callable[[], tuple[bytes, bytes]]

    def numbers(self, names: tuple[str, ...]) -> int:
        """p: scalars in these adapted parameters."""
        return sum(prod(self.facts.parameter_shapes[name]) for name in names)


class Session(Protocol):
    """One step's evaluations, all by the same extractor. Not for several threads."""

    def features(
        self,
        records: FloatArray,
        *,
        adapted: FloatArray | None = None,
        names: tuple[str, ...] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """Raw features of each record by itself.

        Args:
            records: (b, *record_shape), b at least 1.
            adapted: (p,) values of the adapted parameters, one behind the other in the order of `names`; None for
                the uploaded values.
            names: the adapted parameters, if their gradients will be asked for.
            meanwhile: called once, while another process evaluates; what it does needs no feature.

        Returns:
            (b, d), float32, in the curator's own memory.

        Raises:
            ExtractionStopped: a limit was reached, or the worker ended.
        """

    def gradients(self, cotangents: Tensor) -> Tensor:
        """The gradient of <cotangent, features> of each record by itself, for the records of the last `features`.

        Args:
            cotangents: (b, d).

        Returns:
            (b, p), float32; valid until the session's next call or its end.

        Raises:
            ExtractionStopped: a limit was reached, or the worker ended.
        """


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
