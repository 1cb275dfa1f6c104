"""The sanitized gradient of a model's cross-entropy on a sample of labelled records: DP-SGD where the labels are.

docs/privacy/labelled-gradients.md derives the price: each record's gradient is a function of that record, its label and
public values alone, so replacing a record replaces one clipped vector of the sum. The uploaded graph takes a record to
one score for each class. The labels are private; public is what the operator declares: the number of classes, and
whether every record has a label; one without has no loss, so its gradient is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.mechanisms.interface import Facts, FloatArray, Limits, Mechanism, RunSize, Step
from dpswd.shared.core.noise.clipping import neutralise
from dpswd.shared.core.privacy.events import Part
from dpswd.shared.core.wire.checks import Violation
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.core.wire.payloads import MessagePayload, Wire
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum, SummedGradient


@dataclass(frozen=True)
class LabelledGradientDeclaration(
    MessagePayload, message=pb.LabelledGradientDeclaration, field="parameters.declaration"
):
    """What a run declares.

    Attributes:
        classes: C.
        sum: of the clipped gradients of the cross-entropy.
    """

    classes: int
    sum: ClippedSum


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


class LabelledGradient(Mechanism[LabelledGradientDeclaration, LossGradientRequest, LossGradientReply]):
    """The noised sum of clipped gradients of -log softmax(scores)[label], record by record."""

    name = "labelled_gradient"
    declaration = LabelledGradientDeclaration
    request = LossGradientRequest
    reply = LossGradientReply
    needs_labels = True
    partial_labels = True

    def violations(
        self, declared: LabelledGradientDeclaration, run: RunSize, facts: Facts, limits: Limits
    ) -> list[Violation]:
        broken = declared.sum.violations(run, facts, limits)
        classes, scores = facts.data.classes, facts.model.feature_dimension
        if declared.classes != classes:
            broken.append(("declaration.classes", f"is {declared.classes}; the data set's labels have {classes}"))
        if scores != classes:
            text = f"computes {scores} scores for each record; needed is one for each of {classes} classes"
            broken.append(("parameters.graph_digest", text))
        return broken

    def synthetic(self, declared: LabelledGradientDeclaration, run: RunSize, facts: Facts) -> LossGradientRequest:
        return LossGradientRequest(declared.sum.made_values(facts))

    def check(
        self, request: LossGradientRequest, declared: LabelledGradientDeclaration, facts: Facts, limits: Limits
    ) -> list[Violation]:
        return declared.sum.check(request.adapted, facts)

    def parts(self, declared: LabelledGradientDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        return (declared.sum.part(run, facts),)

    def work(self, declared: LabelledGradientDeclaration) -> tuple[object, ...]:
        return declared.sum.parameters

    def compute(
        self, declared: LabelledGradientDeclaration, request: LossGradientRequest, step: Step
    ) -> LossGradientReply:
        records, labels = step.sample.take(0, step.sample.count)
        assert labels is not None, "offered only where there are labels"
        scores = step.model.features(records, adapted=request.adapted, names=declared.sum.parameters)  # (b, C)
        step.reached("extracted")
        cotangents = entropy_cotangents(scores.to(step.device), torch.from_numpy(labels).to(step.device))
        per_record = step.model.gradients(cotangents).to(step.device)  # (b, p)
        gradient = declared.sum.released(per_record, step.noise)
        step.reached("sanitized")
        return LossGradientReply(gradient)

    def summary(self, declared: LabelledGradientDeclaration, facts: Facts) -> str:
        return f"the cross-entropy's {declared.sum.summary(facts).removeprefix('a ')}"


def entropy_cotangents(scores: Tensor, labels: Tensor) -> Tensor:
    """The derivative of each record's cross-entropy in its scores, softmax(scores) - e_label, row by row.

    Args:
        scores: (b, C); NaN and infinities count as 0.
        labels: (b,), 0 to C - 1, or `UNLABELLED`: such a record has no loss.

    Returns:
        (b, C), rows of norm at most the root of 2.
    """
    kinds = functional.one_hot(labels.clamp(min=0), scores.shape[1]).to(scores.dtype)
    return (torch.softmax(neutralise(scores), dim=1) - kinds) * (labels != UNLABELLED)[:, None]


LABELLED_GRADIENT = LabelledGradient()
