"""The sanitized gradient of a loss that is a sum over records: of a domain critic, of a model with labels.

Each record's loss is a function of that record, its label and public values alone. So is its gradient, and replacing a
record replaces one clipped vector of the sum (docs/privacy/critic-gradients.md, docs/privacy/labelled-gradients.md).
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

from torch import Tensor

from dpswd.shared.core.mechanisms.interface import (
    Facts,
    FloatArray,
    LabelArray,
    Limits,
    Mechanism,
    Payload,
    RunSize,
    Step,
)
from dpswd.shared.core.privacy.events import Part
from dpswd.shared.core.wire.checks import Violation
from dpswd.shared.core.wire.payloads import MessagePayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum, SummedGradient


class SumDeclaration(Payload, Protocol):
    """What a run declares, at least."""

    @property
    def sum(self) -> ClippedSum:
        """Of the clipped gradients of the loss."""
        ...


D = TypeVar("D", bound=SumDeclaration)


@dataclass(frozen=True, eq=False)
class LossGradientRequest(MessagePayload, message=pb.LossGradientRequest, field="payload"):
    """What a step brings.

    Attributes:
        adapted: (p,) values of the declared parameters; None for the uploaded ones.
    """

    adapted: Annotated[FloatArray | None, Wire("adapted_parameters")] = None


@dataclass(frozen=True, eq=False)
class LossGradientReply(MessagePayload, message=pb.LossGradientReply, field="reply"):
    """What a step returns.

    Attributes:
        gradient: (p,), the noised sum of clipped per-record gradients, in the declared order.
    """

    gradient: SummedGradient


class LossGradient(Mechanism[D, LossGradientRequest, LossGradientReply]):
    """A mechanism that releases the noised sum of clipped gradients of a loss, record by record."""

    request = LossGradientRequest
    reply = LossGradientReply

    @abc.abstractmethod
    def cotangents(self, outputs: Tensor, labels: LabelArray | None) -> Tensor:
        """The derivative of each record's loss in its own outputs, row by row.

        Args:
            outputs: (b, d) of the uploaded graph.
            labels: (b,) of the same records; None where the mechanism reads none.

        Returns:
            (b, d).
        """

    def violations(self, declared: D, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """See `Mechanism`."""
        return declared.sum.violations(run, facts, limits)

    def synthetic(self, declared: D, run: RunSize, facts: Facts) -> LossGradientRequest:
        """See `Mechanism`."""
        return LossGradientRequest(declared.sum.made_values(facts))

    def check(self, request: LossGradientRequest, declared: D, facts: Facts, limits: Limits) -> list[Violation]:
        """See `Mechanism`."""
        return declared.sum.check(request.adapted, facts)

    def parts(self, declared: D, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """See `Mechanism`."""
        return (declared.sum.part(run, facts),)

    def work(self, declared: D) -> tuple[object, ...]:
        """See `Mechanism`."""
        return declared.sum.parameters

    def compute(self, declared: D, request: LossGradientRequest, step: Step) -> LossGradientReply:
        """See `Mechanism`."""
        records, labels = step.sample.take(0, step.sample.count)
        outputs = step.model.features(records, adapted=request.adapted, names=declared.sum.parameters)  # (b, d)
        step.reached("extracted")
        cotangents = self.cotangents(outputs.to(step.device), labels)
        per_record = step.model.gradients(cotangents).to(step.device)  # (b, p)
        gradient = declared.sum.released(per_record, step.noise)
        step.reached("sanitized")
        return LossGradientReply(gradient)
