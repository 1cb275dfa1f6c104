"""What a step may come to, the bytes in which it is stored and sent, and what an auditor finds of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from private_curator.ledger import StepGranted
from private_curator.steps.admission import AdmittedStep
from private_curator.steps.critic import CriticAnswer
from private_curator.steps.evaluation import EvaluationAnswer
from shared.kernels.noise import GridArray
from shared.protocol import arrays
from shared.protocol.v1 import curator_pb2 as pb

AUDIT_FORMAT = "dpswd-audit-1"


@dataclass(frozen=True)
class Released:
    """What a step releases, before it is encoded.

    Attributes:
        seed: 32 bytes, of the directions.
        values: rows (b, k) or coefficients (L, k), noised.
        gradient: (p,) noised sum, or None.
        cotangent_scale: public divisor of the cotangents; 0 without a gradient.
    """

    seed: bytes
    values: GridArray
    gradient: GridArray | None
    cotangent_scale: float


Answer: TypeAlias = Released | EvaluationAnswer | CriticAnswer
"""What a step may come to; each is encoded once and stored."""


def encode(released: Answer, grant: StepGranted) -> bytes:
    """The bytes that are stored and sent; their length depends on declared sizes only."""
    if not isinstance(released, Released):
        return released.encode(run_id=grant.run.run_id, step=grant.step_number)
    message = pb.StepRelease(
        run_id=grant.run.run_id,
        step=grant.step_number,
        directions_seed=released.seed,
        release=arrays.encode_grid(released.values),
        cotangent_scale=released.cotangent_scale,
    )
    if released.gradient is not None:
        message.gradient.CopyFrom(arrays.encode_grid(released.gradient))
    return message.SerializeToString(deterministic=True)


def audit_record(released: Answer, step: AdmittedStep, grant: StepGranted, *, device: torch.device) -> dict[str, Any]:
    """What an auditor needs to repeat the public part of a step; nothing of a record, and not the sample."""
    parameters = step.parameters
    common = {
        "format": AUDIT_FORMAT,
        "attempt": grant.attempt,
        "device": device.type,
        "batch": parameters.batch_size,
        "graph": parameters.graph_digest,
        "weights": parameters.weights_digest,
        "adapted": hashlib.sha256(b"".join(value.tobytes() for value in step.adapted.values())).hexdigest(),
    }
    if not isinstance(released, Released):
        return common | released.audit()
    return common | {
        "directions": parameters.directions,
        "directions_seed": released.seed.hex(),
        "source": None if step.source is None else hashlib.sha256(step.source.tobytes()).hexdigest(),
        "release_step": released.values.step,
        "gradient_step": None if released.gradient is None else released.gradient.step,
    }
