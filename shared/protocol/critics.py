"""What a critic's run declares and what its steps release, as frozen values (docs/privacy/critic-gradients.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.protocol import arrays, limits
from shared.protocol.checks import invalid
from shared.protocol.v1 import curator_pb2 as pb


@dataclass(frozen=True)
class Critic:
    """The sanitized gradient of log(1 + exp(-z)), z the logit that the uploaded graph computes of a record.

    What is adapted, the clip and the noise stand in the run's `Gradient`.
    """

    def to_message(self) -> pb.CriticDeclaration:
        """Encodes the declaration."""
        return pb.CriticDeclaration()


@dataclass(frozen=True)
class CriticRelease:
    """What one step of a critic's run releases, decoded.

    Attributes:
        run_id: the run.
        step: 1 for the run's first step.
        gradient: the noised sum of clipped per-record gradients (p,), float32, in the declared order.
    """

    run_id: str
    step: int
    gradient: npt.NDArray[np.float32]

    @classmethod
    def from_bytes(cls, data: bytes) -> CriticRelease:
        """Decodes the bytes whose digest stands in the receipt.

        Raises:
            RequestInvalid: the curator sent something that is not a critic's release.
        """
        message = pb.CriticRelease()
        try:
            message.ParseFromString(data)
        except Exception as error:
            raise invalid("critic_release", "cannot be parsed") from error
        sums, unit = arrays.decode_grid(
            message.gradient, field="critic_release.gradient", max_values=limits.MAX_ADAPTED_PARAMETERS
        )
        if sums.ndim != 1:
            raise invalid("critic_release.gradient", f"has shape {sums.shape}; needed is one vector")
        return cls(message.run_id, message.step, (sums * unit).astype(np.float32))
