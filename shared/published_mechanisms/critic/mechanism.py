"""The sanitized gradient of a client's domain critic on a sample of target records (docs/privacy/critic-gradients.md).

The uploaded graph takes a record to the logit of "this record is the target's". Each record's gradient is a function of
that record and of public values alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpswd.shared.core.mechanisms.interface import Facts, LabelArray, Limits, RunSize
from dpswd.shared.core.wire.checks import Violation
from dpswd.shared.core.wire.payloads import MessagePayload
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.critic.domain_loss import target_cotangents
from dpswd.shared.published_mechanisms.loss_gradient import LossGradient


@dataclass(frozen=True)
class CriticDeclaration(MessagePayload, message=pb.CriticDeclaration, field="parameters.declaration"):
    """What a run declares.

    Attributes:
        sum: of the clipped gradients of the critic's loss.
    """

    sum: ClippedSum


class Critic(LossGradient[CriticDeclaration]):
    """The gradient of log(1 + exp(-z)), z the logit of a record."""

    name = "critic"
    declaration = CriticDeclaration

    def violations(self, declared: CriticDeclaration, run: RunSize, facts: Facts, limits: Limits) -> list[Violation]:
        """See `Mechanism`."""
        broken = super().violations(declared, run, facts, limits)
        if (d := facts.model.feature_dimension) != 1:
            broken.append(("parameters.graph_digest", f"computes {d} values for each record; a critic one logit"))
        return broken

    def cotangents(self, outputs: Tensor, labels: LabelArray | None) -> Tensor:
        """See `LossGradient`."""
        return target_cotangents(outputs)

    def summary(self, declared: CriticDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        return f"a domain critic's {declared.sum.summary(facts).removeprefix('a ')}"


CRITIC = Critic()
