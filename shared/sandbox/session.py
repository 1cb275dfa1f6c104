"""One step's evaluations of an extractor, inside of one process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.shared.sandbox.building import Extractor, ForwardPass, split_gradient

FloatArray = npt.NDArray[np.float32]


def evaluated(
    extractor: Extractor, records: Tensor, names: tuple[str, ...], flat: Tensor | None, *, differentiable: bool = True
) -> tuple[Tensor, ForwardPass | None]:
    """Raw features (b, d) of each record by itself, and what the gradients in `names` will need if they are wanted.

    Args:
        extractor: the run's.
        records: (b, *input_shape).
        names: the adapted parameters, or none.
        flat: the adapted parameters' values, one behind the other, or None for the uploaded ones.
        differentiable: whether gradients will be asked for.
    """
    values = {} if flat is None else split_gradient(flat, extractor.gradient_shapes(names))
    if not (names and differentiable):
        return extractor.features(records, values), None
    forward = extractor.begin(records, names, parameters=values)
    return forward.outputs, forward


class DirectSession:
    """A `dpswd.shared.core.mechanisms.interface.Session` in the caller's own process."""

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor
        self._forward: ForwardPass | None = None

    def features(
        self,
        records: FloatArray,
        *,
        adapted: FloatArray | None = None,
        names: tuple[str, ...] = (),
        differentiable: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """See `Session`."""
        if meanwhile is not None:
            meanwhile()
        flat = None if adapted is None else torch.from_numpy(adapted.copy())
        outputs, self._forward = evaluated(
            self._extractor, torch.from_numpy(records), names, flat, differentiable=differentiable
        )
        return outputs

    def gradients(self, cotangents: Tensor) -> Tensor:
        """See `Session`."""
        forward, self._forward = self._forward, None
        if forward is None:
            raise RuntimeError("gradients were asked for before their features")
        return forward.gradients(cotangents)
