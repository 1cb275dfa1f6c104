"""What every run declares and every step returns, whatever the mechanism, as frozen values.

Decoding checks structure (presence, sizes, encodings) and raises RequestInvalid with the field's path; what a
value may be for a given data set is `dpswd.shared.core.steps.admission`'s.

What a request means is one SHA-256, the same function at curator and client. The curator binds a request id to it, and
its receipts state it; the client computes it from what it sent. So a receipt proves which request was charged and
answered, not only which id it had. Two requests with one id must agree in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from dpswd.shared.core.wire import limits
from dpswd.shared.core.wire.checks import Violation, between
from dpswd.shared.core.wire.payloads import MessagePayload
from dpswd.shared.core.wire.v1 import curator_pb2 as pb


@dataclass(frozen=True)
class RunParameters(MessagePayload, message=pb.RunParameters, field="parameters"):
    """What a run declares before it starts; all of it is public.

    Attributes:
        graph_digest: SHA-256 of the extractor's graph.
        weights_digest: SHA-256 of the extractor's weights.
        mechanism: the name of what every step releases.
        declaration: the mechanism's own declaration, as bytes.
        batch_size: b, records in each step's secret sample; n for mechanisms that read every record.
        steps: T.
    """

    graph_digest: str
    weights_digest: str
    mechanism: str
    declaration: bytes
    batch_size: int
    steps: int

    def broken_structure(self) -> list[Violation]:
        """See `MessagePayload`."""
        broken = between("batch_size", self.batch_size, limits.MAX_RECORDS)
        broken += between("steps", self.steps, limits.MAX_STEPS)
        for name in ("graph_digest", "weights_digest"):
            value = getattr(self, name)
            if len(value) != 64 or any(c not in "0123456789abcdef" for c in value):
                text = "must be a SHA-256 in lower-case hexadecimal, as UploadExtractor returned it"
                broken.append((name, text))
        if not self.mechanism:
            broken.append(("mechanism", "is missing; name what the run releases, as Describe lists it"))
        return broken


@dataclass(frozen=True)
class StepRelease(MessagePayload, message=pb.StepRelease, field="step_release"):
    """What one step returns, as it is stored, sent and stated in its receipt.

    Attributes:
        run_id: the run.
        step: 1 for the run's first step.
        payload: the mechanism's reply, as bytes.
    """

    run_id: str
    step: int
    payload: bytes


def run_digest(parameters: RunParameters) -> str:
    """SHA-256 of a declaration, hexadecimal, from its re-encoded values."""
    return hashlib.sha256(parameters.to_bytes()).hexdigest()


def step_digest(*, run_id: str, payload: bytes) -> str:
    """SHA-256 of a step's request, hexadecimal; the run's id with its length, so that no two requests run together.

    Args:
        run_id: the run.
        payload: the mechanism's request as it was sent.
    """
    digest = hashlib.sha256(len(run_id).to_bytes(8, "little") + run_id.encode())
    digest.update(payload)
    return digest.hexdigest()
