"""Evaluation under privacy: what one costs before it is made, the submission, and the report.

The noise follows from the asked epsilon: the squared shift of the joint release (docs/privacy/evaluation.md) is split
between the number of correct predictions, the confusion matrix and the calibration sums, and the plan's one factor
scales their noises, so that the evaluation alone costs the asked epsilon at the data set's delta and not more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import Quote
from dpswd.public_client.extractor.tracing import weights_to_bytes
from dpswd.public_client.methods.evaluation_report import Report, correct_variance
from dpswd.public_client.plans.declarable import Declarable, quoted_evaluation
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import Recipe, RunTerms, not_positive, refuse
from dpswd.public_client.training.run import Release, RequestIds
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.evaluation import mechanism as released
from dpswd.shared.core.mechanisms.evaluation.counts import EvaluationReply
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.wire.limits import MAX_BINS
from dpswd.shared.models.adapted import AdaptedModel


@dataclass(frozen=True, kw_only=True)
class Evaluate(Recipe):
    """Accuracy, confusion matrix and calibration of a model on the hospital's labelled records.

    Attributes:
        confusion: whether the confusion matrix is released.
        bins: B of the reliability diagram; 0 without calibration.
        correct_share: part of the price for the number of correct predictions. The accuracy is what decisions are made
            on, and it also gains from what the others say. Shares of what is not released count nothing.
        confusion_share: for the confusion matrix.
        calibration_share: for the calibration sums.
    """

    name = "evaluation"
    mechanism = released.EVALUATION

    confusion: bool = True
    bins: int = 10
    correct_share: float = 0.5
    confusion_share: float = 0.25
    calibration_share: float = 0.25

    def __post_init__(self) -> None:
        problems = not_positive(self, "correct_share", "confusion_share", "calibration_share")
        if not isinstance(self.bins, int) or isinstance(self.bins, bool) or not 0 <= self.bins <= MAX_BINS:
            problems.append(f"bins is {self.bins!r}; allowed are 0 (no calibration) to {MAX_BINS}")
        refuse(problems)

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`. At noise 1 the squared shifts are the shares."""
        confusion = self.confusion_share if self.confusion else 0.0
        calibration = self.calibration_share if self.bins else 0.0
        total = self.correct_share + confusion + calibration

        def sigma(sensitivity: float, share: float) -> float:
            return run.noise * sensitivity * math.sqrt(total / share) if share else 0.0

        moved = released.CONFUSION_SENSITIVITY if run.number_private else released.CORRECT_SENSITIVITY
        return released.EvaluationDeclaration(
            classes=run.classes,
            correct_sigma=sigma(moved, self.correct_share),
            confusion_sigma=sigma(released.CONFUSION_SENSITIVITY, confusion),
            bins=self.bins,
            calibration_sigma=sigma(released.CALIBRATION_SENSITIVITY, calibration),
            partly_labelled=run.number_private,
        )

    def notes(self, plan: Plan) -> list[tuple[str, str]]:
        if plan.noise is None:
            return []
        if plan.number_private:
            return [("accuracy", "of the labelled records; how well it is known depends on how many they are, private")]
        error = 100 * accuracy_error(plan)
        return [("accuracy", f"known to within {error:.2g} percentage points (95%), whatever the model")]


def accuracy_error(plan: Plan) -> float:
    """Half the width of the accuracy's 95% interval, as a share of the labelled records, whatever the model."""
    return 1.96 * math.sqrt(correct_variance(plan.declared())) / plan.with_label


def evaluate(curator: Curator, model: Any, plan: Plan, *, request_ids: RequestIds | None = None) -> Report:
    """Submits a model, charges the evaluation and reads its release.

    Args:
        curator: a connection.
        model: an adapted model, the path of its file, or an `nn.Module` from records to scores.
        plan: of the method `Evaluate`, with its noise.
        request_ids: of an earlier attempt, to repeat it free.

    Raises:
        BudgetExhausted: the budget does not allow it; nothing was spent.
        InvalidValue: the model does not fit the data set.
    """
    run = Release[EvaluationReply](curator, submitted(model, plan), plan, ids=request_ids or RequestIds()).open()
    reply, facts = run.draw().reply, curator.describe()
    cost = {"epsilon": plan.epsilon, "delta": plan.delta, "spent": facts.spent, "remaining": facts.remaining}
    return Report.of(
        reply,
        declared=plan.declared(),
        records=plan.records,
        number=plan.labelled,
        class_names=facts.contract.class_names,
        **cost,
    )


def quoted_for(curator: Curator, model: Any, plan: Plan) -> tuple[Plan, Quote]:
    """The plan as this curator would open it for this model now, and its answer; see `quoted_evaluation`.

    Keep the plan where the evaluation may have to be repeated: after its own charge the curator's answer is another.
    """
    return quoted_evaluation(curator, submitted(model, plan), plan)


def submitted(model: Any, plan: Plan) -> Declarable:
    """The model as one graph from a record to its scores, with its weights.

    Args:
        model: see `evaluate`.
        plan: of the evaluation.

    Raises:
        InvalidValue: it is none of the kinds that are understood, takes other records, or gives another number of
            scores.
        ExtractorUnsupported: a module cannot travel as data; the message names the layer.
    """
    if isinstance(model, (str, Path)):
        model = load_adapted(model, device="cpu")
    if isinstance(model, AdaptedModel):
        graph, weights = model.composed()
        ready = Declarable(graph, weights_to_bytes(weights))
    elif isinstance(model, nn.Module):
        ready = Declarable.of(model, plan.record_shape)
    else:
        raise InvalidValue(
            f"a {type(model).__name__} cannot be evaluated; pass an adapted model, the path of its file, or an "
            "nn.Module from records to scores, such as nn.Sequential(extractor, classifier)"
        )
    if ready.graph.input_shape != plan.record_shape:
        raise InvalidValue(
            f"the model takes records of shape {ready.graph.input_shape}; the data set holds records of shape "
            f"{plan.record_shape}"
        )
    if ready.graph.feature_dimension != plan.classes:
        raise InvalidValue(
            f"the model gives {ready.graph.feature_dimension} scores for each record; the data set has {plan.classes} "
            "classes"
        )
    return ready
