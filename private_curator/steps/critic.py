"""One step for a client's domain critic: the clipped, noised gradient of its loss on a sample of records.

The uploaded graph takes a record to the logit z of "this record is the target's". docs/privacy/critic-gradients.md
derives the price: each record's gradient is a function of that record and of public values alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from private_curator.steps.sampling import sample_without_replacement
from shared.kernels.noise import GridArray, NoiseSource
from shared.mechanisms.critic.domain_loss import target_cotangents
from shared.mechanisms.gradient.sanitized import release_gradient
from shared.protocol import arrays
from shared.protocol.v1 import curator_pb2 as pb

if TYPE_CHECKING:
    from private_curator.steps.trial_run import Records
    from private_curator.worker.sessions import FloatArray, Session
    from shared.protocol.messages import RunParameters


@dataclass(frozen=True)
class CriticAnswer:
    """What a step of a critic's run releases, before it is encoded.

    Attributes:
        gradient: (p,) noised sum of clipped per-record gradients.
    """

    gradient: GridArray

    def encode(self, *, run_id: str, step: int) -> bytes:
        """The bytes that are stored and sent; their length depends on declared sizes only."""
        message = pb.CriticRelease(run_id=run_id, step=step)
        message.gradient.CopyFrom(arrays.encode_grid(self.gradient))
        return message.SerializeToString(deterministic=True)

    def audit(self) -> dict[str, Any]:
        """Public fields of the step's audit record."""
        return {"release": "critic", "gradient_step": self.gradient.step}


def critic_gradient(
    parameters: RunParameters,
    model: Session,
    adapted: FloatArray | None,
    *,
    data: Records,
    noise: NoiseSource,
    device: torch.device,
    checkpoint: Callable[[str], None],
) -> CriticAnswer:
    """Samples, differentiates each record by itself, clips, sums, noises.

    Args:
        parameters: the run's declaration, with a gradient.
        model: evaluates records to one logit.
        adapted: (p,) values of the declared parameters in this step; None for the uploaded ones.
        data: the records.
        noise: the only source of noise.
        device: where the arithmetic runs.
        checkpoint: called at the step's named points.
    """
    declared = parameters.gradient
    assert declared is not None, "admission demands a gradient for a critic"
    sample = sample_without_replacement(data.count, parameters.batch_size)
    records = data.take(sample)  # (b, *record_shape)
    checkpoint("sampled")
    logits = model.features(records, adapted=adapted, names=declared.parameters).to(device)  # (b, 1)
    checkpoint("extracted")
    per_record = model.gradients(target_cotangents(logits)).to(device)  # (b, p)
    gradient = release_gradient(per_record, clip_norm=declared.clip_norm, sigma=declared.sigma, noise=noise)
    checkpoint("sanitized")
    return CriticAnswer(gradient)
