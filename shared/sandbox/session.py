"""One step's evaluations of an extractor: what a mechanism asks of it, and the same thing inside one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.shared.sandbox.building import Extractor, ForwardPass, split_gradient

FloatArray = npt.NDArray[np.float32]


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
            (b, d), float32, in the caller's own memory: the host's, or the extractor's device's where it is evaluated
            in the caller's process.

        Raises:
            ExtractionStopped: a limit was reached, or the worker ended.
        """
        ...

    def gradients(self, cotangents: Tensor) -> Tensor:
        """The gradient of <cotangent, features> of each record by itself, for the records of the last `features`.

        Args:
            cotangents: (b, d).

        Returns:
            (b, p), float32; valid until the session's next call or its end.

        Raises:
            ExtractionStopped: a limit was reached, or the worker ended.
        """
        ...


def evaluated(
    extractor: Extractor, records: Tensor, names: tuple[str, ...], flat: Tensor | None
) -> tuple[Tensor, ForwardPass | None]:
    """Raw features (b, d) of each record by itself, and what its gradients will need if `names` are wanted.

    Args:
        extractor: the run's.
        records: (b, *input_shape).
        names: the adapted parameters whose gradients will be asked for, or none.
        flat: the adapted parameters' values, one behind the other, or None for the uploaded ones.
    """
    values = {} if flat is None else split_gradient(flat, extractor.gradient_shapes(names))
    if not names:
        return extractor.features(records), None
    forward = extractor.begin(records, names, parameters=values)
    return forward.outputs, forward


class DirectSession:
    """A `Session` in the caller's own process."""

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor
        self._forward: ForwardPass | None = None

    def features(
        self,
        records: FloatArray,
        *,
        adapted: FloatArray | None = None,
        names: tuple[str, ...] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """See `Session`."""
        if meanwhile is not None:
            meanwhile()
        flat = None if adapted is None else torch.from_numpy(adapted.copy())
        outputs, self._forward = evaluated(self._extractor, torch.from_numpy(records), names, flat)
        return outputs

    def gradients(self, cotangents: Tensor) -> Tensor:
        """See `Session`."""
        forward, self._forward = self._forward, None
        if forward is None:
            raise RuntimeError("gradients were asked for before their features")
        return forward.gradients(cotangents)
