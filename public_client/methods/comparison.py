"""Several models compared on the hospital's labelled records by one private evaluation; the best one is known after.

One release holds the noised number of correct predictions of each model. A record can change all of them at once, so
M models cost sqrt(M) times the noise of one (docs/privacy/evaluation.md), not M evaluations. Where the number of
labelled records is private, it is released beside them at no further cost. Where differences are
smaller than the noise, the winner is any of the best: it is chosen by the same noised figures that are told.
"""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.methods.evaluation import accuracy_error
from dpswd.public_client.methods.evaluation_ratio import FEWEST
from dpswd.public_client.plans.declarable import Declarable, quoted_evaluation
from dpswd.public_client.plans.plan import Plan, make_plan
from dpswd.public_client.plans.recipe import Recipe, RunTerms, refuse
from dpswd.public_client.training.run import Release, RequestIds
from dpswd.shared.core.errors import InvalidValue, rounded
from dpswd.shared.core.mechanisms.evaluation import mechanism as released
from dpswd.shared.core.mechanisms.evaluation.counts import EvaluationReply, number_weight
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.sandbox.graph import ExtractorGraph

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Compare(Recipe):
    """The accuracies of several models on the hospital's labelled records, in one release.

    Attributes:
        models: M, 2 to 8.
    """

    name = "comparison"
    mechanism = released.EVALUATION

    models: int = 3

    def __post_init__(self) -> None:
        wrong = type(self.models) is not int or not 2 <= self.models <= released.MAX_MODELS
        refuse([f"models is {self.models!r}; allowed are 2 to {released.MAX_MODELS}"] if wrong else [])

    def declaration(self, run: RunTerms) -> Payload:
        sigma = run.noise * released.correct_sensitivity(self.models)
        return released.EvaluationDeclaration(
            classes=run.classes, correct_sigma=sigma, models=self.models, partly_labelled=run.number_private
        )

    def notes(self, plan: Plan) -> list[tuple[str, str]]:
        if plan.noise is None:
            return []
        if plan.number_private:
            text = f"of each of {self.models} models; how well it is known depends on how many have a label, private"
            return [("accuracy", text)]
        error = 100 * accuracy_error(plan)
        return [("accuracy", f"of each of {self.models} models, known to within {error:.2g} percentage points (95%)")]


@dataclass(frozen=True)
class Comparison:
    """What one release said of several models.

    Attributes:
        accuracies: percent on all labelled records, with noise, by the models' names; NaN where too few are labelled
            to tell a share from the noise.
        error: half the width of each one's 95% interval, in percentage points; 100 where nothing is known.
        winner: name of the model with the highest figure; the first named of equals.
        epsilon: what the comparison cost alone.
    """

    accuracies: dict[str, float]
    error: float
    winner: str
    epsilon: float

    @property
    def difference(self) -> float:
        """Two standard errors of a difference between two of the figures, in percentage points."""
        return 2.0 * math.sqrt(2.0) * self.error / 1.96

    @property
    def clear(self) -> bool:
        """Whether the winner exceeds each of the others by two standard errors of their difference."""
        others = [value for other, value in self.accuracies.items() if other != self.winner]
        return all(self.accuracies[self.winner] - value > self.difference for value in others)

    def __str__(self) -> str:
        """In words."""
        cost = f"epsilon {rounded(self.epsilon, up=True)} alone"
        if any(math.isnan(value) for value in self.accuracies.values()):
            return f"a private evaluation found too few labels against its noise ({cost})"
        figures = ", ".join(f"{name} {value:.1f}" for name, value in self.accuracies.items())
        return f"a private evaluation says {figures} % (each ± {self.error:.1f}, {cost})"


def plan_comparison(description: Description, models: int, *, epsilon: float) -> Plan:
    """What comparing so many models would release and cost; nothing is spent.

    Raises:
        InvalidValue: the curator evaluates nothing, or a number is out of range.
    """
    plan = make_plan(description, Compare(models=models), epsilon=epsilon)
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
    ids: RequestIds

    @classmethod
    def of(cls, curator: Curator, models: Mapping[str, nn.Module], plan: Plan, *, charged: bool = False) -> Asked:
        """What would be sent for these models; spends nothing.

        Args:
            curator: a connection.
            models: records to one score for each class, by name; those named first win a draw.
            plan: from `plan_comparison`, for as many.
            charged: see `quoted_evaluation`.

        Raises:
            InvalidValue: a model does not fit the data set.
        """
        plan = quoted_evaluation(curator, ready := declarable(models, plan), plan, charged=charged)[0]
        return cls(tuple(models), ready.graph.to_bytes(), ready.weights, plan, RequestIds())

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        data = {name: base64.b64encode(getattr(self, name)).decode("ascii") for name in ("graph", "weights")}
        return data | {"names": list(self.names), "plan": self.plan.to_json(), "ids": asdict(self.ids)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Asked:
        """The inverse of `to_json`."""
        plan = Plan.from_json(values["plan"], method=Compare)
        data = {name: base64.b64decode(values[name]) for name in ("graph", "weights")}
        return cls(names=tuple(values["names"]), plan=plan, ids=RequestIds(**values["ids"]), **data)

    def answered(self, curator: Curator) -> Comparison:
        """Charges the evaluation, or repeats it, and reads what is released.

        Raises:
            BudgetExhausted: the budget does not allow it; nothing was spent.
        """
        ready = Declarable(ExtractorGraph.from_bytes(self.graph), self.weights)
        run = Release[EvaluationReply](curator, ready, self.plan, ids=self.ids).open()
        numbers = run.draw().reply.correct.to_numpy()
        declared = len(self.names) + self.plan.number_private
        if len(numbers) != declared:
            raise InvalidValue(f"the release holds {len(numbers)} numbers; {declared} were declared")
        shares, error = self._shares(numbers) if self.plan.number_private else self._of_all(numbers)
        enough = not math.isnan(shares[0])  # too few labels: noise would choose
        best = self.names[int(numbers[: len(self.names)].argmax())] if enough else self.names[-1]
        accuracies = {name: float(np.clip(100.0 * p, 0.0, 100.0)) for name, p in zip(self.names, shares, strict=True)}
        return Comparison(accuracies, min(100.0 * error, 100.0), best, self.plan.epsilon)

    def _of_all(self, numbers: Floats) -> tuple[list[float], float]:
        """Shares of correct ones, and half the width of their intervals, where the number of labels is public."""
        return [float(value) / self.plan.with_label for value in numbers], accuracy_error(self.plan)

    def _shares(self, numbers: Floats) -> tuple[list[float], float]:
        """The same where that number is part of the release: by half the excess of correct ones, and by the number."""
        sigma, weight = self.plan.declared().correct_sigma, number_weight(len(self.names))
        labelled = float(numbers[-1]) / weight
        if labelled < FEWEST * sigma / weight:
            return [math.nan] * len(self.names), 1.0
        # For the true share p, excess + (1/2 - p) labelled has mean 0; at p = 0 or 1 its variance is the largest.
        error = 1.96 * sigma * math.sqrt(1.0 + 0.25 / weight**2) / labelled
        return [0.5 + float(value) / labelled for value in numbers[:-1]], error


def compare(curator: Curator, models: Mapping[str, nn.Module], *, epsilon: float) -> Comparison:
    """See `Hospital.compare`."""
    plan = plan_comparison(curator.describe(), len(models), epsilon=epsilon)
    return Asked.of(curator, models, plan).answered(curator)


def declarable(models: Mapping[str, nn.Module], plan: Plan) -> Declarable:
    """The models as one graph, from a record to the scores of all.

    Args:
        models: see `Asked.of`.
        plan: from `plan_comparison`, for as many.

    Raises:
        InvalidValue: a model does not fit the data set.
        ExtractorUnsupported: a module cannot travel as data; the message names the layer.
    """
    models = {name: copy.deepcopy(model).cpu() for name, model in models.items()}  # they may lie on a device
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
