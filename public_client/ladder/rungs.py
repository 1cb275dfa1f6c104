"""What is asked of a hospital, from the cheapest to the dearest, and when it pays to ask on.

========  ==================================================  =========================================================
rung      asks                                                is asked where
========  ==================================================  =========================================================
glance    the statistics of all layers at once                layers can be found in the network
layers    the statistics of one layer after the other         the glance says that channels have moved
views     one release of projected features, replayed         records are images, and the glance is not "as it is"
labels    gradient and curvature of the loss in a correction  the hospital has labels of the model's classes
========  ==================================================  =========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.methods.normalisation import Normalisation
from dpswd.public_client.methods.recalibrate import Recalibrate
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan, make_plan
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import DpswdError, InvalidValue

GLANCE, LAYERS, VIEWS, LABELS = "glance", "layers", "views", "labels"


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


@dataclass(frozen=True)
class Ladder:
    """The rungs that one hospital can be asked for one model, priced together.

    Attributes:
        plans: by rung, in the order in which they may be asked.
        epsilon: that all of them together may cost.
        left_out: why other rungs are not there, by name.
        hospital: the data set's public name.
    """

    plans: Mapping[str, Plan]
    epsilon: float
    left_out: Mapping[str, str]
    hospital: str

    def to_json(self) -> dict[str, Any]:
        """Plain values; plans by rung."""
        plans = {name: plan.to_json() for name, plan in self.plans.items()}
        own = {"epsilon": self.epsilon, "left_out": dict(self.left_out), "hospital": self.hospital}
        return own | {"plans": plans}

    def __str__(self) -> str:
        """The recommendation first, then rung by rung the most it may cost."""
        why = {rung.name: rung.why for rung in RUNGS}
        first = next(iter(self.plans))
        head = f"Recommended for {self.hospital}: the ladder, which asks {first} first ({why[first]}) and goes on "
        head += f"while it pays. At most epsilon {self.epsilon:g} in all; what is not asked is not charged."
        lines = [head]
        for name, plan in self.plans.items():
            releases = f"{plan.steps} release{'s' if plan.steps > 1 else ''}"
            lines.append(f"  {name:<8} at most epsilon {plan.epsilon:.3f} alone, {releases}: {why[name]}")
        lines += [f"  {name:<8} not asked: {reason}" for name, reason in self.left_out.items()]
        return "\n".join(lines)


def applicable(told: Description, model: Model, *, classes: int) -> tuple[dict[str, Rung], dict[str, str]]:
    """Rungs that such a model can climb at such a hospital, and why not the others.

    Args:
        told: of the hospital.
        model: the team's.
        classes: that it tells apart.
    """
    asked, left_out = {}, {}
    for rung in RUNGS:
        try:
            rung.method.check_offered(told)
            if rung.name == VIEWS and len(told.record_shape) != 3:
                raise InvalidValue("its views are of images")
            if rung.name == LABELS and told.classes != classes:
                raise InvalidValue(f"the model tells {classes} classes apart, the hospital's labels {told.classes}")
            if rung.name in (GLANCE, LAYERS) and isinstance(model.classifier, nn.Identity):
                raise InvalidValue("the model is no network with layers")
            declarable_of(rung.method, model, told.record_shape)
        except DpswdError as error:
            left_out[rung.name] = str(error)
            continue
        asked[rung.name] = rung
    if LAYERS in asked and GLANCE not in asked:
        left_out[LAYERS] = left_out[GLANCE]
        del asked[LAYERS]
    return asked, left_out


def declarable_of(method: Method, model: Model, record_shape: tuple[int, ...]) -> Declarable:
    """What the curator is asked to evaluate for a model."""
    return method.declarable(model.extractor, record_shape, None, model.classifier)


def sized_plan(told: Description, method: Method, model: Model, *, epsilon: float) -> Plan:
    """A rung's plan alone, with the model's sizes and some noise."""
    plan = make_plan(told, method, epsilon=epsilon)
    return declarable_of(method, model, plan.record_shape).sized(plan)
