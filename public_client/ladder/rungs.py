"""What is asked of a hospital, from the cheapest to the dearest, and when it pays to ask on (`RUNGS`)."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.ladder.pricing import priced_together
from dpswd.public_client.methods.comparison import Compare
from dpswd.public_client.methods.normalisation import Normalisation
from dpswd.public_client.methods.recalibrate import Recalibrate
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.models.trees import OfEstimator
from dpswd.public_client.plans.declarable import Declarable, quoted
from dpswd.public_client.plans.plan import Plan, make_plan
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import DpswdError, ExtractorUnsupported, InvalidValue, rounded
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.events import NeighbouringRelation

GLANCE, LAYERS, VIEWS, LABELS = "glance", "layers", "views", "labels"
_TIMED, _LONG = 32, 20.0  # records, by which is told how long a fit takes; seconds from which on, but of views, it is


@dataclass(frozen=True)
class Rung:
    """One question.

    Attributes:
        name: short.
        method: that asks it.
        share: of the squared budget, beside the others'.
        why: when it is asked, in words for a plan.
    """

    name: str
    method: Method
    share: float
    why: str


RUNGS = (
    Rung(GLANCE, Normalisation(asks="first"), 0.15, "tells whether classes are as frequent, and channels as they were"),
    Rung(LAYERS, Normalisation(asks="layers"), 0.35, "where channels have moved: new statistics, layer by layer"),
    Rung(VIEWS, Replay(), 0.5, "where more than classes has changed: a view of images that explains it"),
    Rung(LABELS, Recalibrate(), 1.0, "from the hospital's labels: biases, slopes and head, as far as they are known"),
)
SHARES = {rung.name: rung.share for rung in RUNGS}

_REASONS = {
    GLANCE: "a glance at what your model sees there tells for little whether anything has moved",
    VIEWS: "its records are images, and one release tells whether they are turned, paler or of other strokes",
    LABELS: "it has labels of your model's classes, and one release of them corrects its probabilities",
}


@dataclass(frozen=True)
class Ladder:
    """The rungs that one hospital can be asked for one model, priced together.

    Attributes:
        plans: by rung, in the order in which they may be asked.
        epsilon: that all of them together may cost.
        left_out: why other rungs are not there, by name.
        hospital: the data set's public name.
        budgets: by whose filters the rungs are priced; none of a published release.
        comparison: of the model that they lead to with the team's own, beside epsilon; None where it is not wished.
        seconds: that a rung's fit takes on this machine, at most, where it is long; none unless it was `timed`.
    """

    plans: Mapping[str, Plan]
    epsilon: float
    left_out: Mapping[str, str]
    hospital: str
    budgets: tuple[PrivacyBudget, ...] = ()
    comparison: Plan | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    def timed(self, model: Model, record_shape: tuple[int, ...]) -> Ladder:
        """The same, saying how long the rungs' fits take on this machine, at most; of those that are quick nothing.

        Args:
            model: extractor and classifier.
            record_shape: of one record.
        """
        passes = {name: plan.method.record_passes(record_shape) for name, plan in self.plans.items()}
        one = pass_seconds(model, record_shape) if any(passes.values()) else 0.0
        long = {name: one * count for name, count in passes.items() if one * count > (0.0 if name == VIEWS else _LONG)}
        return replace(self, seconds=long)

    def without(self, skipped: Collection[str], asked: Sequence[str]) -> Ladder:
        """The ladder whose last rungs have the budget of those that are not asked.

        Args:
            skipped: rungs that the evidence makes needless.
            asked: those that were charged, in order.
        """
        left = {name: plan for name, plan in self.plans.items() if name not in skipped and name not in asked}
        freed = [name for name in skipped if name in self.plans]
        if not (left and freed and self.budgets):
            return self
        before = [self.plans[name] for name in asked]
        again = priced_together(self.budgets, left, SHARES, epsilon=self.epsilon, asked=before)
        return replace(self, plans={**self.plans, **again})

    def to_json(self) -> dict[str, Any]:
        """Plain values; plans by rung."""
        plans = {name: plan.to_json() for name, plan in self.plans.items()}
        budgets = [[one.epsilon, one.delta, one.relation.value] for one in self.budgets]
        own = {"epsilon": self.epsilon, "left_out": dict(self.left_out), "hospital": self.hospital}
        own |= {"comparison": None if self.comparison is None else self.comparison.to_json()}
        return own | {"budgets": budgets, "plans": plans, "seconds": dict(self.seconds)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Ladder:
        """The inverse of `to_json`."""
        kinds = {rung.name: type(rung.method) for rung in RUNGS}
        plans = {name: Plan.from_json(plan, method=kinds[name]) for name, plan in values["plans"].items()}
        budgets = tuple(PrivacyBudget(e, d, NeighbouringRelation(kind)) for e, d, kind in values["budgets"])
        compared = values["comparison"] and Plan.from_json(values["comparison"], method=Compare)
        fields = {name: values[name] for name in ("epsilon", "left_out", "hospital", "seconds")}
        return cls(plans=plans, budgets=budgets, comparison=compared, **fields)

    def __str__(self) -> str:
        """The recommendation and its reason first, then rung by rung the most it may cost."""
        why = {rung.name: rung.why for rung in RUNGS}
        first = next(iter(self.plans))
        lines = [
            f"Recommended for {self.hospital}: the ladder, because {_REASONS[first]}.",
            f"It goes on while it pays. At most epsilon {self.epsilon:g} in all; what is not asked is not charged.",
        ]
        for name, plan in self.plans.items():
            releases = f"{plan.steps} release{'s' if plan.steps > 1 else ''}"
            lines.append(f"  {name:<8} at most epsilon {rounded(plan.epsilon, up=True)} alone, {releases}: {why[name]}")
            if name in self.seconds:
                lines.append(f"  {'':<8} if it comes to that, it takes {in_words(self.seconds[name])} on this machine")
        if self.comparison is not None:
            price = f"epsilon {rounded(self.comparison.epsilon, up=True)} alone, beside these, if the model was changed"
            lines.append(f"  {'compare':<8} {price}: labels decide between your model and the new one")
        lines += [f"  {name:<8} not asked: {reason}" for name, reason in self.left_out.items()]
        return "\n".join(lines)


def applicable(facts: Description, model: Model, *, classes: int) -> tuple[dict[str, Rung], dict[str, str]]:
    """Rungs that such a model can climb at such a hospital, and why not the others.

    Args:
        facts: of the hospital.
        model: the team's.
        classes: that it tells apart.
    """
    asked, left_out = dict[str, Rung](), dict[str, str]()
    for rung in RUNGS:
        try:
            rung.method.check_offered(facts)
            if rung.name == VIEWS and len(facts.record_shape) != 3:
                raise InvalidValue("its views are of images")
            if rung.name == LABELS and facts.classes != classes:
                raise InvalidValue(f"the model tells {classes} classes apart, the hospital's labels {facts.classes}")
            if rung.name == LAYERS and isinstance(model.extractor, OfEstimator):
                raise InvalidValue("the model is no network with layers")
            if rung.name == GLANCE and isinstance(model.extractor, OfEstimator) and model.extractor.has_codes:
                raise InvalidValue("codes of missing values would move with their columns")
            declarable(rung.method, model, facts.record_shape)
            asked[rung.name] = rung
        except DpswdError as error:
            again = isinstance(error, ExtractorUnsupported) and "cannot travel" in left_out.get(GLANCE, "")
            left_out[rung.name] = f"as {GLANCE}" if again else str(error)
    if LAYERS in asked and GLANCE not in asked:
        left_out[LAYERS] = left_out[GLANCE]
        del asked[LAYERS]
    return asked, left_out


def declarable(method: Method, model: Model, record_shape: tuple[int, ...]) -> Declarable:
    """What the curator is asked to evaluate for a model."""
    return method.declarable(model.extractor, record_shape, model.classifier)


def admits(curator: Curator, plan: Plan, model: Model) -> bool:
    """Whether a curator would admit a rung's run for this model now; spends nothing.

    Args:
        curator: a connection.
        plan: of the rung.
        model: extractor and classifier.
    """
    assert isinstance(plan.method, Method), "a rung's method trains"
    ready = declarable(plan.method, model, plan.record_shape)
    return quoted(curator, ready, plan)[1].fits


def sized_plan(description: Description, method: Method, model: Model, *, epsilon: float) -> Plan:
    """A rung's plan alone, with the model's sizes and some noise."""
    plan = make_plan(description, method, epsilon=epsilon)
    return declarable(method, model, plan.record_shape).sized(plan)


def pass_seconds(model: Model, record_shape: tuple[int, ...]) -> float:
    """Seconds of one record of a shape forward and backward through a model, where it is: the shortest of three."""
    module = copy.deepcopy(model.whole()).requires_grad_(True)
    device = next(module.parameters(), torch.zeros(0)).device
    return min(_update(module, torch.zeros(_TIMED, *record_shape, device=device)) for _ in range(3))


def _update(module: nn.Module, records: torch.Tensor) -> float:
    begun = time.perf_counter()
    scores: torch.Tensor = module(records)
    if scores.requires_grad:
        torch.autograd.backward(scores.square().mean())
        float(next(p.grad.sum() for p in module.parameters() if p.grad is not None))  # waits for a device
    return (1.0 if scores.requires_grad else 3.0) * (time.perf_counter() - begun) / len(records)  # back takes two


def in_words(seconds: float) -> str:
    """To a minute, or less than one."""
    return f"about {seconds / 60.0:.0f} min" if seconds >= 90.0 else "about a minute or less"
