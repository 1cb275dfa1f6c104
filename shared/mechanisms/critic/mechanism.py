"""The sanitized gradient of a client's domain critic on a sample of target records (docs/privacy/critic-gradients.md).

The uploaded graph takes a record to the logit of "this record is the target's". Each record's gradient is a function of
that record and of public values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from shared.mechanisms.clipped_sum import ClippedSum, SummedGradient
from shared.mechanisms.critic.domain_loss import target_cotangents
from shared.mechanisms.interface import Facts, FloatArray, Limits, Mechanism, RunSize, Step
from shared.privacy.events import Part
from shared.protocol.checks import Violation
from shared.protocol.payloads import MessagePayload, Wire
from shared.protocol.v1 import curator_pb2 as pb


@dataclass(frozen=True)
class CriticDeclaration(MessagePayload, message=pb.CriticDeclaration, field="parameters.declaration"):
    """What a run declares.

    Attributes:
        sum: of the clipped gradients of the critic's loss.
    """

    sum: ClippedSum


@dataclass(frozen=True, eq=False)
class CriticRequest(MessagePayload, message=pb.CriticRequest, field="payload"):
    """What a step brings.

    Attributes:
        adapted: (p,) values of the declared parameters; None for the uploaded ones.
    """

    adapted: Annotated[FloatArray | None, Wire("adapted_parameters")] = None


@dataclass(frozen=True, eq=False)
class CriticReply(MessagePayload, message=pb.CriticReply, field="reply"):
    """What a step returns.

    Attributes:
        gradient: (p,), the noised sum of clipped per-record gradients, in the declared order.
    """

    gradient: SummedGradient


class Critic(Mechanism[CriticDeclaration, CriticRequest, CriticReply]):
    """The gradient of log(1 + exp(-z)), z the logit of a record."""

    name = "critic"
    declaration = CriticDeclaration
    request = CriticRequest
    reply = CriticReply

    def violations(self, declared: CriticDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """See `Mechanism`."""
        broken = declared.sum.violations(run, facts, limits)
        if (d := facts.model.feature_dimension) != 1:
            broken.append(("parameters.graph_digest", f"computes {d} values for each record; a critic one logit"))
        return broken

    def synthetic(self, declared: CriticDeclaration, run: RunSize, facts: Facts) -> CriticRequest:
        """See `Mechanism`."""
        return CriticRequest(declared.sum.made_values(facts))

    def check(
        self, request: CriticRequest, declared: CriticDeclaration, facts: Facts, limits: Limits
    ) -> list[Violation]:
        """See `Mechanism`."""
        return declared.sum.check(request.adapted, facts)

    def parts(self, declared: CriticDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """See `Mechanism`."""
        return (declared.sum.part(facts),)

    def work(self, declared: CriticDeclaration) -> tuple[object, ...]:
        """See `Mechanism`."""
        return declared.sum.parameters

    def compute(self, declared: CriticDeclaration, request: CriticRequest, step: Step) -> CriticReply:
        """See `Mechanism`."""
        records, _ = step.sample.take(0, step.sample.count)
        logits = step.model.features(records, adapted=request.adapted, names=declared.sum.parameters)  # (b, 1)
        step.reached("extracted")
        per_record = step.model.gradients(target_cotangents(logits.to(step.device))).to(step.device)  # (b, p)
        gradient = declared.sum.released(per_record, step.noise)
        step.reached("sanitized")
        return CriticReply(gradient)

    def summary(self, declared: CriticDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        return f"a domain critic's {declared.sum.summary(facts).removeprefix('a ')}"


CRITIC = Critic()
