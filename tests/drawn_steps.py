"""Runs and steps through the public client's stub, with what a plan or a method would choose written out."""

from __future__ import annotations

from typing import Any

from declarations import Declared

from dpswd.public_client.curator.values import PendingStep, Run, UploadedExtractor, new_request_id
from dpswd.shared.core.mechanisms.interface import FloatArray
from dpswd.shared.core.wire.messages import RunParameters, StepRelease
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest


def parameters(uploaded: UploadedExtractor, declared: Declared, *, batch_size: int, steps: int) -> RunParameters:
    """The declaration of a run for an uploaded extractor."""
    name, declaration = declared
    return RunParameters(
        graph_digest=uploaded.graph_digest,
        weights_digest=uploaded.weights_digest,
        mechanism=name,
        declaration=declaration.to_bytes(),
        batch_size=batch_size,
        steps=steps,
    )


def new_step(run: Run, source: FloatArray | str | None = None, *, request_id: str | None = None) -> PendingStep:
    """A request of the run's next step; a gradient's brings source features, inline or by digest."""
    payload = b"" if source is None else GradientRequest(source).to_bytes()
    return PendingStep(run.run_id, request_id or new_request_id(), payload)


def reply_of(run: Run, release: StepRelease) -> Any:
    """The mechanism's reply that a step's release holds."""
    return ALL_MECHANISMS[run.parameters.mechanism].reply.from_bytes(release.payload)
