"""Noised counts of a model's predictions on all labelled records (docs/privacy/evaluation.md).

The labels are private. Public is what the operator declares: the number of classes, and whether every record has a
label; one without counts nowhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from shared.errors import InvalidValue
from shared.kernels.noise import NoiseSource, grid_step
from shared.mechanisms.evaluation.counts import (
    CONFIDENCE_WEIGHT,
    EvaluationCounter,
    EvaluationReply,
    count_width,
    released,
)
from shared.mechanisms.interface import Facts, Limits, RunSize
from shared.mechanisms.linear import LinearMechanism, ShardSum
from shared.privacy.events import BoundedSum, Part
from shared.protocol import limits as protocol
from shared.protocol.checks import Violation, between, positive, positive_or_zero
from shared.protocol.payloads import MessagePayload, NoPayload
from shared.protocol.v1 import curator_pb2 as pb

CORRECT_SENSITIVITY = 1.0
"""Right against wrong."""

CONFUSION_SENSITIVITY = math.nextafter(math.sqrt(2.0), math.inf)
"""Two different cells."""

CALIBRATION_SENSITIVITY = math.nextafter(math.sqrt(2.0 + CONFIDENCE_WEIGHT**2), math.inf)
"""One bin, right against wrong, with confidences at its two ends."""


@dataclass(frozen=True)
class EvaluationDeclaration(MessagePayload, message=pb.EvaluationDeclaration, field="parameters.declaration"):
    """What a run declares.

    Attributes:
        classes: C.
        correct_sigma: noise on the number of correct predictions.
        confusion_sigma: noise on each of the C^2 cells of the confusion matrix; 0: it is not released.
        bins: B, bins of the confidence; 0 without calibration.
        calibration_sigma: noise on each of the 3 B calibration sums; 0: they are not released.
        partly_labelled: whether the number of wrong predictions is released beside that of correct ones, with the same
            noise: of records that may have no label their sum is private.
    """

    classes: int
    correct_sigma: float
    confusion_sigma: float = 0.0
    bins: int = 0
    calibration_sigma: float = 0.0
    partly_labelled: bool = False

    @property
    def correct_part(self) -> tuple[int, float]:
        """How many numbers tell how many are correct, and how far a replaced record moves them."""
        return (2, CONFUSION_SENSITIVITY) if self.partly_labelled else (1, CORRECT_SENSITIVITY)


class EvaluationRequest(NoPayload):
    """What a step brings: nothing, the uploaded weights are what is evaluated."""


class Evaluation(LinearMechanism[EvaluationDeclaration, EvaluationRequest, EvaluationReply]):
    """Accuracy, confusion matrix and calibration of a submitted model, as noised counts of one joint release."""

    name = "evaluation"
    declaration = EvaluationDeclaration
    request = EvaluationRequest
    reply = EvaluationReply
    needs_labels = True

    def violations(
        self, declared: EvaluationDeclaration, run: RunSize, facts: Facts, limits: Limits
    ) -> list[Violation]:
        """See `Mechanism`."""
        classes, scores = facts.data.classes, facts.model.feature_dimension
        broken = between("declaration.bins", declared.bins, protocol.MAX_BINS, least=0)
        if declared.classes != classes:
            broken.append(("declaration.classes", f"is {declared.classes}; the data set's labels have {classes}"))
        if scores != classes:
            text = f"computes {scores} scores for each record; needed is one for each of {classes} classes"
            broken.append(("parameters.graph_digest", text))
        if declared.partly_labelled != facts.data.partly_labelled:
            text = f"is {declared.partly_labelled}; of this data set it is {facts.data.partly_labelled}"
            broken.append(("declaration.partly_labelled", text))
        if (declared.bins == 0) != (declared.calibration_sigma == 0.0):
            broken.append(("declaration.bins", "and calibration_sigma belong together; declare both, or neither"))
        for name in ("correct_sigma", "confusion_sigma", "calibration_sigma"):
            field, sigma = f"declaration.{name}", getattr(declared, name)
            wrong = positive(field, sigma) if name == "correct_sigma" else positive_or_zero(field, sigma)
            if sigma and not wrong:
                try:
                    count_width(records=facts.data.records, sigma=sigma)
                except InvalidValue as error:
                    wrong = [(field, str(error))]
            broken += wrong
        return broken

    def parts(self, declared: EvaluationDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """See `Mechanism`."""
        cells, sums = declared.classes**2, 3 * declared.bins
        # Of the calibration sums two bins differ in four, one bin in three.
        released = (
            (*declared.correct_part, declared.correct_part[0], declared.correct_sigma),
            (cells, CONFUSION_SENSITIVITY, 2, declared.confusion_sigma),
            (sums, CALIBRATION_SENSITIVITY, min(4, sums), declared.calibration_sigma),
        )
        return tuple(
            BoundedSum(values=values, sensitivity=moved, changed=changed, sigma=sigma, grid_step=grid_step(sigma))
            for values, moved, changed, sigma in released
            if sigma
        )

    def work(self, declared: EvaluationDeclaration) -> tuple[object, ...]:
        """See `Mechanism`."""
        return (declared.classes, declared.bins)

    def accumulator(self, declared: EvaluationDeclaration, facts: Facts, device: torch.device) -> EvaluationCounter:
        """See `LinearMechanism`."""
        return EvaluationCounter(classes=declared.classes, bins=declared.bins)

    def released(
        self, declared: EvaluationDeclaration, facts: Facts, total: ShardSum, noise: NoiseSource
    ) -> EvaluationReply:
        """See `LinearMechanism`."""
        return released(
            total.sums,
            records=facts.data.records,
            correct_sigma=declared.correct_sigma,
            confusion_sigma=declared.confusion_sigma,
            calibration_sigma=declared.calibration_sigma,
            noise=noise,
            partly_labelled=declared.partly_labelled,
        )

    def summary(self, declared: EvaluationDeclaration, facts: Facts) -> str:
        """See `Mechanism`."""
        told = ["the number of correct predictions"]
        if declared.partly_labelled:
            told = ["the numbers of correct and of wrong predictions"]
        told += [f"{declared.classes} x {declared.classes} counts"] * bool(declared.confusion_sigma)
        told += [f"{declared.bins} bins of confidences"] * bool(declared.calibration_sigma)
        return f"noised counts: {', '.join(told)}"


EVALUATION = Evaluation()
