"""Evaluation under privacy: what one costs before it is made, the submission, and the report.

The noise follows from the asked epsilon: the squared shift of the joint release (docs/privacy/evaluation.md) is split
between the number of correct predictions, the confusion matrix and the calibration sums, and one common factor of
their noises is solved for, so that the evaluation alone costs the asked epsilon at the data set's delta and not more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from public_client.curator.description import Description
from public_client.curator.values import Quote, new_request_id
from public_client.methods.evaluation_report import Report
from public_client.training.saved_model import load_adapted
from shared.errors import InvalidValue
from shared.extractor.graph import ExtractorGraph
from shared.extractor.tracing import trace
from shared.extractor.weights import module_weights, weights_to_bytes
from shared.models.adapted import AdaptedModel
from shared.privacy.calibration import calibrate_sigma
from shared.privacy.calibration import epsilon as epsilon_of
from shared.privacy.evaluation_parts import CALIBRATION_SENSITIVITY, CONFUSION_SENSITIVITY, CORRECT_SENSITIVITY
from shared.protocol.limits import MAX_BINS
from shared.protocol.messages import Evaluation, RunParameters
from shared.protocol.pricing import evaluation_event

if TYPE_CHECKING:
    from public_client.curator.stub import Curator

DEFAULT_SHARES = {"correct": 0.5, "confusion": 0.25, "calibration": 0.25}
"""Parts of the price. The accuracy is what decisions are made on, and it also gains from what the others say."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """One evaluation of one curator's labelled records.

    Attributes:
        epsilon: what it costs alone, at `delta`; the ledger composes it with every other run more tightly than by sums.
        delta: the data set's delta.
        records: n.
        declared: classes, bins and noise.
        remaining: epsilon that was left, by the ledger's count, when the plan was made.
        quote: the curator's own answer for a submitted model, where it was asked; nothing was spent.
    """

    epsilon: float
    delta: float
    records: int
    declared: Evaluation
    remaining: float
    quote: Quote | None = None

    def price(self) -> float:
        """Epsilon of the evaluation alone by the exact accountant, rounded up."""
        return epsilon_of(evaluation_event(self.declared, records=self.records), self.delta)

    @property
    def accuracy_error(self) -> float:
        """Half the width of the accuracy's 95% interval, as a share of all records, whatever the model."""
        from public_client.methods.evaluation_report import correct_variance

        return 1.96 * math.sqrt(correct_variance(self.declared)) / self.records

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``--format json``."""
        quote = None if self.quote is None else {"epsilon": self.quote.epsilon, "fits": self.quote.fits}
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "records": self.records,
            "declared": asdict(self.declared),
            "accuracy_error": self.accuracy_error,
            "remaining": self.remaining,
            "quote": quote,
        }

    def __str__(self) -> str:
        """A few lines for a terminal; costs are rounded up, what is left down."""
        declared = self.declared
        lines = [
            f"evaluation on all {self.records} labelled records, {declared.classes} classes",
            f"  accuracy     known to within {100 * self.accuracy_error:.2g} percentage points (95%)",
        ]
        if declared.confusion_sigma:
            lines.append(
                f"  confusion    {declared.classes} x {declared.classes} counts, noise {declared.confusion_sigma:.3g}"
            )
        if declared.calibration_sigma:
            lines.append(f"  calibration  {declared.bins} bins, noise {declared.calibration_sigma:.3g} on each count")
        lines.append(
            f"  costs        epsilon {_up(self.epsilon)} alone, at delta {self.delta:g}; charged when it is made"
        )
        if self.quote is not None:
            fits = "fits" if self.quote.fits else "does NOT fit"
            lines.append(f"  the ledger   counts epsilon {_up(self.quote.epsilon)} for it alone; it {fits}")
        return "\n".join(lines)


@dataclass(frozen=True)
class EvaluationIds:
    """The two request ids of an evaluation; with the same ids and the same model a repeat is free.

    Attributes:
        run: of the charge.
        step: of the release.
    """

    run: str
    step: str

    @classmethod
    def fresh(cls) -> EvaluationIds:
        """New ids for a new evaluation."""
        return cls(new_request_id(), new_request_id())


def plan_evaluation(
    description: Description,
    *,
    epsilon: float,
    confusion: bool = True,
    bins: int = 10,
    shares: Mapping[str, float] | None = None,
) -> EvaluationPlan:
    """What an evaluation would release for an epsilon; nothing is spent.

    Args:
        description: from `Curator.describe`.
        epsilon: what the evaluation alone may cost at the data set's delta.
        confusion: whether the confusion matrix is released.
        bins: B of the reliability diagram; 0 without calibration.
        shares: parts of the price for "correct", "confusion" and "calibration"; those that are not released count
            nothing, the others are scaled to add up to 1.

    Raises:
        InvalidValue: the curator evaluates nothing, or a wish is out of range.
    """
    if not description.classes:
        raise InvalidValue(
            f"{description.data_set} offers no evaluation: its operator declares no classes of the records' labels; "
            "ask the operator (dpswd-curator, records.classes)"
        )
    if isinstance(bins, bool) or not 0 <= bins <= MAX_BINS:
        raise InvalidValue(f"bins is {bins}; allowed are 0 (no calibration) to {MAX_BINS}")
    parts = _shares(shares, confusion=confusion, calibration=bins > 0)
    # With the factor 1 the parts' squared shifts are their shares, 1 together.
    base = Evaluation(
        classes=description.classes,
        correct_sigma=CORRECT_SENSITIVITY / math.sqrt(parts["correct"]),
        confusion_sigma=CONFUSION_SENSITIVITY / math.sqrt(parts["confusion"]) if confusion else 0.0,
        bins=bins,
        calibration_sigma=CALIBRATION_SENSITIVITY / math.sqrt(parts["calibration"]) if bins else 0.0,
    )

    def noisy(factor: float) -> Evaluation:
        return replace(
            base,
            correct_sigma=base.correct_sigma * factor,
            confusion_sigma=base.confusion_sigma * factor,
            calibration_sigma=base.calibration_sigma * factor,
        )

    delta, records = description.data_set_budget.delta, description.records
    factor = calibrate_sigma(
        lambda value: evaluation_event(noisy(value), records=records), epsilon=epsilon, delta=delta
    )
    return EvaluationPlan(
        epsilon=epsilon, delta=delta, records=records, declared=noisy(factor), remaining=description.remaining
    )


def evaluate(curator: Curator, model: Any, plan: EvaluationPlan, *, request_ids: EvaluationIds | None = None) -> Report:
    """Submits a model, charges the evaluation and reads its release.

    Args:
        curator: a connection.
        model: an adapted model, the path of its file, or an `nn.Module` from records to scores.
        plan: from `plan_evaluation`.
        request_ids: of an earlier attempt, to repeat it free.

    Raises:
        BudgetExhausted: the budget does not allow it; nothing was spent.
        InvalidValue: the model does not fit the data set.
    """
    ids = request_ids or EvaluationIds.fresh()
    run = curator.open_run(submit(curator, model, plan), request_id=ids.run)
    release = curator.evaluate_model(run, request_id=ids.step)
    description = curator.describe()
    return Report.of(
        release,
        declared=plan.declared,
        records=plan.records,
        epsilon=plan.epsilon,
        delta=plan.delta,
        spent=description.spent,
        remaining=description.remaining,
        class_names=description.class_names,
    )


def quoted(curator: Curator, model: Any, plan: EvaluationPlan) -> EvaluationPlan:
    """The plan with the curator's own price for this model; nothing is spent."""
    return replace(plan, quote=curator.price_run(submit(curator, model, plan)))


def submit(curator: Curator, model: Any, plan: EvaluationPlan) -> RunParameters:
    """Uploads the model as one graph, which is free, and returns the declaration of its evaluation.

    Raises:
        InvalidValue: the model takes other records, or gives another number of scores.
        ExtractorUnsupported: a module cannot travel as data; the message names the layer.
    """
    description = curator.describe()
    graph, weights = whole_model(model, description.record_shape)
    if graph.input_shape != description.record_shape:
        raise InvalidValue(
            f"the model takes records of shape {graph.input_shape}; {description.data_set} holds records of shape "
            f"{description.record_shape}"
        )
    if graph.feature_dimension != plan.declared.classes:
        raise InvalidValue(
            f"the model gives {graph.feature_dimension} scores for each record; {description.data_set} has "
            f"{plan.declared.classes} classes"
        )
    uploaded = curator.upload_extractor(graph.to_bytes(), weights_to_bytes(weights))
    return RunParameters(
        graph_digest=uploaded.graph_digest,
        weights_digest=uploaded.weights_digest,
        directions=0,
        batch_size=plan.records,
        steps=1,
        release=plan.declared,
    )


def whole_model(model: Any, record_shape: tuple[int, ...]) -> tuple[ExtractorGraph, dict[str, Tensor]]:
    """A model as one graph from a record to its scores, with its weights.

    Args:
        model: see `evaluate`.
        record_shape: of one record, to trace a module with.

    Raises:
        InvalidValue: it is none of the kinds that are understood, or not an adapted model's file.
    """
    if isinstance(model, (str, Path)):
        model = load_adapted(model, device="cpu")
    if isinstance(model, AdaptedModel):
        return model.composed()
    if isinstance(model, nn.Module):
        graph = trace(model, record_shape)
        return graph, module_weights(model, graph)
    raise InvalidValue(
        f"a {type(model).__name__} cannot be evaluated; pass an adapted model, the path of its file, or an nn.Module "
        "from records to scores, such as nn.Sequential(extractor, classifier)"
    )


def _shares(given: Mapping[str, float] | None, *, confusion: bool, calibration: bool) -> dict[str, float]:
    wanted = dict(DEFAULT_SHARES if given is None else given)
    released = {"correct": True, "confusion": confusion, "calibration": calibration}
    unknown = sorted(set(wanted) - set(released))
    if unknown:
        raise InvalidValue(f"shares holds {unknown}; it has correct, confusion and calibration")
    kept = {name: wanted.get(name, 0.0) for name, is_released in released.items() if is_released}
    for name, share in kept.items():
        if not (math.isfinite(share) and share > 0.0):
            raise InvalidValue(f"the share of {name} is {share}; it must be positive, or {name} must not be asked for")
    total = math.fsum(kept.values())
    return {name: share / total for name, share in kept.items()}


def _up(value: float) -> str:
    return f"{math.ceil(value * 1e4) / 1e4:.4f}"
