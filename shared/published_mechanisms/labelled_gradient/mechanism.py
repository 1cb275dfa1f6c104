"""The sanitized gradient of a model's cross-entropy on a sample of labelled records: DP-SGD where the labels are.

docs/privacy/labelled-gradients.md derives the price. The uploaded graph takes a record to one score for each class.
The labels are private; public is what the operator declares: the number of classes, and whether every record has a
label; one without has no loss, so its gradient is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.mechanisms.interface import Facts, LabelArray, Limits, RunSize
from dpswd.shared.core.noise.clipping import neutralise
from dpswd.shared.core.wire.checks import Violation
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.core.wire.payloads import MessagePayload
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.loss_gradient import LossGradient


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


class LabelledGradient(LossGradient[LabelledGradientDeclaration]):
    """The gradient of -log softmax(scores)[label]."""

    name = "labelled_gradient"
    declaration = LabelledGradientDeclaration
    needs_labels = True
    partial_labels = True

    def violations(
        self, declared: LabelledGradientDeclaration, run: RunSize, facts: Facts, limits: Limits
    ) -> list[Violation]:
        """See `Mechanism`."""
        broken = super().violations(declared, run, facts, limits)
        classes, scores = facts.data.classes, facts.model.feature_dimension
        if declared.classes != classes:
            broken.append(("declaration.classes", f"is {declared.classes}; the data set's labels have {classes}"))
        if scores != classes:
            text = f"computes {scores} scores for each record; needed is one for each of {classes} classes"
            broken.append(("parameters.graph_digest", text))
        return broken

    def cotangents(self, outputs: Tensor, labels: LabelArray | None) -> Tensor:
        """See `LossGradient`."""
        assert labels is not None, "offered only where there are labels"
        return entropy_cotangents(outputs, torch.from_numpy(labels).to(outputs.device))

    def summary(self, declared: LabelledGradientDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
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
