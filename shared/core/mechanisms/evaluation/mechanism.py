"""Noised counts of a model's predictions on all labelled records (docs/privacy/evaluation.md).

The labels are private. Public is what the operator declares: the number of classes, and whether every record has a
label; one without counts nowhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.evaluation.counts import (
    CONFIDENCE_WEIGHT,
    PLACE_UNITS,
    EvaluationCounter,
    EvaluationReply,
    count_width,
    largest_count,
    released,
)
from dpswd.shared.core.mechanisms.interface import Facts, Limits, RunSize
from dpswd.shared.core.mechanisms.linear import LinearMechanism, Reach, ShardSum
from dpswd.shared.core.noise.noise import NoiseSource, grid_step
from dpswd.shared.core.privacy.events import BoundedSum, Part
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.checks import Violation, between, positive, positive_or_zero
from dpswd.shared.core.wire.payloads import MessagePayload, NoPayload
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

CORRECT_SENSITIVITY = 1.0
"""Right against wrong."""

MAX_MODELS = 8
"""Models that one release compares: source-only, a control and what was adapted are three."""


def correct_sensitivity(models: int) -> float:
    """Of the numbers of correct predictions of M models together: all of them right against all wrong."""
    return CORRECT_SENSITIVITY if models == 1 else math.nextafter(math.sqrt(models), math.inf)


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
        models: M that are compared; with more than one the numbers of correct predictions alone are released.
        partly_labelled: whether the number of labelled records is private: what is released beside the correct
            predictions, with the same noise, tells it (`EvaluationReply.correct`).
    """

    classes: int
    correct_sigma: float
    confusion_sigma: float = 0.0
    bins: int = 0
    calibration_sigma: float = 0.0
    models: int = 1
    partly_labelled: bool = False


class EvaluationRequest(NoPayload):
    """What a step brings: nothing, the uploaded weights are what is evaluated."""


class Evaluation(LinearMechanism[EvaluationDeclaration, EvaluationRequest, EvaluationReply]):
    """Accuracy, confusion matrix and calibration of a submitted model, or the accuracies of several: one release."""

    name = "evaluation"
    declaration = EvaluationDeclaration
    request = EvaluationRequest
    reply = EvaluationReply
    needs_labels = True
    partial_labels = True

    def violations(
        self, declared: EvaluationDeclaration, run: RunSize, facts: Facts, limits: Limits
    ) -> list[Violation]:
        """See `Mechanism`."""
        classes, scores = facts.data.classes, facts.model.feature_dimension
        broken = between("declaration.bins", declared.bins, protocol.MAX_BINS, least=0)
        broken += between("declaration.models", declared.models, MAX_MODELS)
        if declared.models > 1 and (declared.confusion_sigma or declared.bins):
            broken.append(("declaration.models", "is more than 1: confusion matrix and calibration are of one model"))
        if declared.classes != classes:
            broken.append(("declaration.classes", f"is {declared.classes}; the data set's labels have {classes}"))
        if scores != classes * declared.models:
            of_each = f", of each of {declared.models} models" if declared.models > 1 else ""
            text = f"computes {scores} scores for each record; needed is one for each of {classes} classes{of_each}"
            broken.append(("parameters.graph_digest", text))
        if declared.partly_labelled != facts.data.number_private:
            text = f"is {declared.partly_labelled}; of this data set it is {facts.data.number_private}"
            broken.append(("declaration.partly_labelled", text))
        if (declared.bins == 0) != (declared.calibration_sigma == 0.0):
            broken.append(("declaration.bins", "and calibration_sigma belong together; declare both, or neither"))
        most = largest_count(
            facts.data.records, models=max(1, declared.models), partly_labelled=declared.partly_labelled
        )
        for name in ("correct_sigma", "confusion_sigma", "calibration_sigma"):
            field, sigma = f"declaration.{name}", getattr(declared, name)
            wrong = positive(field, sigma) if name == "correct_sigma" else positive_or_zero(field, sigma)
            if sigma and not wrong:
                try:
                    count_width(records=most, sigma=sigma)
                except InvalidValue as error:
                    wrong = [(field, str(error))]
            broken += wrong
        return broken

    def parts(self, declared: EvaluationDeclaration, run: RunSize, facts: Facts) -> tuple[Part, ...]:
        """See `Mechanism`."""
        cells, sums = declared.classes**2, 3 * declared.bins
        # Of the calibration sums two bins differ in four, one bin in three.
        released = (
            (*self._correct_part(declared), declared.correct_sigma),
            (cells, CONFUSION_SENSITIVITY, 2, declared.confusion_sigma),
            (sums, CALIBRATION_SENSITIVITY, min(4, sums), declared.calibration_sigma),
        )
        return tuple(
            BoundedSum(values=values, sensitivity=moved, changed=changed, sigma=sigma, grid_step=grid_step(sigma))
            for values, moved, changed, sigma in released
            if sigma
        )

    def _correct_part(self, declared: EvaluationDeclaration) -> tuple[int, float, int]:
        """How many numbers tell how many are correct, how far a replaced record moves them, and how many of them."""
        if declared.partly_labelled and declared.models == 1:
            return 2, CONFUSION_SENSITIVITY, 2
        if declared.partly_labelled:
            return declared.models + 1, correct_sensitivity(declared.models), declared.models + 1
        return declared.models, correct_sensitivity(declared.models), declared.models

    def work(self, declared: EvaluationDeclaration) -> tuple[object, ...]:
        """See `Mechanism`."""
        return (declared.classes, declared.bins, declared.models)

    def accumulator(self, declared: EvaluationDeclaration, facts: Facts, device: torch.device) -> EvaluationCounter:
        """See `LinearMechanism`."""
        return EvaluationCounter(classes=declared.classes, bins=declared.bins, models=declared.models)

    def reaches(self, declared: EvaluationDeclaration, facts: Facts) -> tuple[Reach, ...]:
        """See `LinearMechanism`: one cell, one bin, a place in it, each model right or wrong, one label."""
        one = Reach(1, counts=True)
        return one, one, Reach(PLACE_UNITS / 2), Reach(1, counts=True, axes=()), one

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
        of_each = f" of each of {declared.models} models" if declared.models > 1 else ""
        statistics = [f"the number of correct predictions{of_each}"]
        if declared.partly_labelled and declared.models == 1:
            statistics = ["the numbers of correct and of wrong predictions"]
        elif declared.partly_labelled:
            statistics += ["the number of labelled records"]
        statistics += [f"{declared.classes} x {declared.classes} counts"] * bool(declared.confusion_sigma)
        statistics += [f"{declared.bins} bins of confidences"] * bool(declared.calibration_sigma)
        return f"noised counts: {', '.join(statistics)}"


EVALUATION = Evaluation()
