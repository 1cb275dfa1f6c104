"""Several models compared on the hospital's labelled records by one private evaluation; the best one is known after.

One release holds the noised number of correct predictions of each model. A record can change all of them at once, so
M models cost sqrt(M) times the noise of one (docs/privacy/evaluation.md), not M evaluations. Where differences are
smaller than the noise, the winner is any of the best: it is chosen by the same noised figures that are told.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from public_client.curator.stub import Curator
from public_client.curator.values import PendingStep
from public_client.methods.evaluation import EvaluationIds, accuracy_error
from public_client.plans.declarable import Declarable, quoted
from public_client.plans.plan import Plan, make_plan
from public_client.plans.recipe import Recipe, RunTerms, refuse
from shared.errors import InvalidValue
from shared.mechanisms.evaluation import mechanism as released
from shared.mechanisms.interface import AnyMechanism, Payload


@dataclass(frozen=True, kw_only=True)
class Compare(Recipe):
    """The accuracies of several models on the hospital's labelled records, in one release.

    Attributes:
        models: M, 2 to 8.
    """

    name = "comparison"

    models: int = 3

    def __post_init__(self) -> None:
        wrong = type(self.models) is not int or not 2 <= self.models <= released.MAX_MODELS
        refuse([f"models is {self.models!r}; allowed are 2 to {released.MAX_MODELS}"] if wrong else [])

    @property
    def mechanism(self) -> AnyMechanism:
        """See `Recipe`."""
        return released.EVALUATION

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`."""
        sigma = run.noise * released.correct_sensitivity(self.models)
        return released.EvaluationDeclaration(classes=run.classes, correct_sigma=sigma, models=self.models)

    def notes(self, plan: Plan) -> list[tuple[str, str]]:
        """See `Recipe`."""
        if plan.noise is None:
            return []
        error = 100 * accuracy_error(plan)
        return [("accuracy", f"of each of {self.models} models, known to within {error:.2g} percentage points (95%)")]


@dataclass(frozen=True)
class Comparison:
    """What one release said of several models.

    Attributes:
        accuracies: percent on all labelled records, with noise, by the models' names.
        error: half the width of each one's 95% interval, in percentage points.
        winner: name of the model with the highest figure; the first named of equals.
        epsilon: what the comparison cost alone.
    """

    accuracies: dict[str, float]
    error: float
    winner: str
    epsilon: float

    def __str__(self) -> str:
        """In words."""
        told = ", ".join(f"{name} {value:.1f}" for name, value in self.accuracies.items())
        return f"a private evaluation says {told} % (each ± {self.error:.1f}, epsilon {self.epsilon:g})"


def plan_comparison(curator: Curator, models: int, *, epsilon: float) -> Plan:
    """What comparing so many models would release and cost; nothing is spent.

    Raises:
        InvalidValue: the curator evaluates nothing, some of its records have no label, or a number is out of range.
    """
    told = curator.describe()
    plan = make_plan(told, Compare(models=models), epsilon=epsilon)
    if told.partly_labelled:
        raise InvalidValue(
            "some of the data set's records have no label, and how many is private: the accuracies of several models "
            "cannot be told by one release. Leave keep-best out, or evaluate one model (Hospital.evaluate); nothing "
            "was spent"
        )
    return plan.for_model(feature_dimension=models * plan.classes, gradient_parameters=0)


@dataclass(frozen=True)
class Asked:
    """A comparison, complete: sent again after a crash it costs nothing more.

    Attributes:
        names: of the models, in their order.
        graph: from a record to the scores of all models.
        weights: safetensors.
        plan: with its noise.
        ids: of the charge and of the release.
    """

    names: tuple[str, ...]
    graph: bytes
    weights: bytes
    plan: Plan
    ids: EvaluationIds

    @classmethod
    def of(cls, curator: Curator, models: Mapping[str, nn.Module], plan: Plan) -> Asked:
        """What would be sent for these models; spends nothing.

        Args:
            curator: a connection.
            models: records to one score for each class, by name; those named first win a draw.
            plan: from `plan_comparison`, for as many.

        Raises:
            InvalidValue: a model does not fit the data set.
        """
        ready = declarable(models, plan)
        plan = quoted(curator, ready, plan)[0]
        return cls(tuple(models), ready.graph.to_bytes(), ready.weights, plan, EvaluationIds())

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        data = {name: base64.b64encode(getattr(self, name)).decode("ascii") for name in ("graph", "weights")}
        return data | {"names": list(self.names), "plan": self.plan.to_json(), "ids": asdict(self.ids)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Asked:
        """The inverse of `to_json`."""
        plan = Plan.from_json(values["plan"], method=Compare)
        data = {name: base64.b64decode(values[name]) for name in ("graph", "weights")}
        return cls(names=tuple(values["names"]), plan=plan, ids=EvaluationIds(**values["ids"]), **data)

    def answered(self, curator: Curator) -> Comparison:
        """Charges the evaluation, or repeats it, and reads what is released.

        Raises:
            BudgetExhausted: the budget does not allow it; nothing was spent.
        """
        uploaded = curator.upload_extractor(self.graph, self.weights)
        run = curator.open_run(self.plan.parameters(uploaded), request_id=self.ids.run)
        request = released.EvaluationRequest().to_bytes()
        release = curator.send(PendingStep(run.run_id, self.ids.step, request))
        correct = released.EVALUATION.reply.from_bytes(release.payload).correct.to_numpy()
        if len(correct) != len(self.names):
            raise InvalidValue(f"the release holds {len(correct)} accuracies; {len(self.names)} were declared")
        each = (100.0 * float(value) / self.plan.records for value in correct)
        found = dict(zip(self.names, each, strict=True))
        best = max(found, key=lambda name: found[name])
        told = {name: min(max(value, 0.0), 100.0) for name, value in found.items()}
        return Comparison(told, 100.0 * accuracy_error(self.plan), best, self.plan.epsilon)


def compare(curator: Curator, models: Mapping[str, nn.Module], *, epsilon: float) -> Comparison:
    """See `Hospital.compare`."""
    return Asked.of(curator, models, plan_comparison(curator, len(models), epsilon=epsilon)).answered(curator)


def declarable(models: Mapping[str, nn.Module], plan: Plan) -> Declarable:
    """The models as one graph, from a record to the scores of all.

    Args:
        models: see `Asked.of`.
        plan: from `plan_comparison`, for as many.

    Raises:
        InvalidValue: a model does not fit the data set.
        ExtractorUnsupported: a module cannot travel as data; the message names the layer.
    """
    _check(models, plan)
    return Declarable.of(_SideBySide(models), plan.record_shape)


class _SideBySide(nn.Module):
    """Scores (b, M C) of all models, the first one's first."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models.values())

    def forward(self, records: Tensor) -> Tensor:
        return torch.cat([model(records) for model in self.models], dim=1)


def _check(models: Mapping[str, nn.Module], plan: Plan) -> None:
    """Holds the models to the plan and the data set.

    Raises:
        InvalidValue: another number of them, or one gives another number of scores.
    """
    if not isinstance(plan.method, Compare) or plan.method.models != len(models):
        raise InvalidValue(f"{len(models)} models need a plan to compare {len(models)}; make it with plan_comparison")
    for name, model in models.items():
        with torch.no_grad():
            scores = model(torch.zeros(2, *plan.record_shape))
        if tuple(scores.shape) != (2, plan.classes):
            raise InvalidValue(
                f"{name} gives scores of shape {tuple(scores.shape[1:])} for each record; the data set has "
                f"{plan.classes} classes"
            )
        if not bool(torch.isfinite(scores).all()):
            raise InvalidValue(f"{name} gives scores that are not finite; its weights are broken")
