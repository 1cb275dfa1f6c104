"""One step's evaluations of an extractor, in the process that asks for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.shared.sandbox.building import Extractor, ForwardPass

FloatArray = npt.NDArray[np.float32]


class DirectSession:
    """A `dpswd.shared.core.mechanisms.interface.Session` in the process that it is made in, a worker or another."""

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
        self._forward = None
        batch = torch.from_numpy(records)
        # A copy: what autograd keeps must not lie in memory that the next step writes to.
        values = None if adapted is None else torch.from_numpy(adapted.copy())
        if not (names and differentiable):
            return self._extractor.features(batch, names=names, adapted=values)
        self._forward = self._extractor.begin(batch, names, adapted=values)
        return self._forward.outputs

    def gradients(self, cotangents: Tensor) -> Tensor:
        """See `Session`."""
        forward, self._forward = self._forward, None
        if forward is None:
            raise RuntimeError("gradients were asked for before their features")
        return forward.gradients(cotangents)
