"""The classifier for a target whose classes have moved, and whether it may be trusted.

The classifier is trained once more on source features that moved as the fit says, held to what it was, and the mean of
its weights before and after is delivered: half of the way loses little where the fit is right, and much less where it
is not (Wortsman and others 2022, on fine-tuned weights).

Whether that helps is tried where the labels are known: in worlds drawn from the posterior. Half of the source's records
become the target of such a world, with classes moved and reweighed, as few records, as much noise and as large a misfit
as the real one had; the other half takes the source's place; the whole procedure runs, and its classifier is compared
with the team's. Weak features, too much noise or a classifier that knows its training records by heart show here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from public_client.methods.pseudo_label_fit import Observed, Shifts, Source, fitted, spread

WORLDS = 4
_UPDATES = 100  # at most, each of all records
_USUAL_NORM = 3.0  # the length of features at which a weight's penalty is 1
_FIT_RECORDS = 1200  # more make the fit slower and hardly better


@dataclass(frozen=True)
class Gain:
    """Accuracy of the new classifier less that of the team's own in worlds like the target, in percentage points.

    Attributes:
        before: the team's accuracy there, in percent.
        mean: of the gain, over the worlds.
        error: its standard error.
    """

    before: float
    mean: float
    error: float

    def __str__(self) -> str:
        """In words."""
        return f"accuracy goes from {self.before:.1f} to {self.before + self.mean:.1f} ± {self.error:.1f} %"


def moved_fit(source: Source, observed: Observed, generator: torch.Generator) -> Shifts:
    """The posterior, from a part of the source where it is large."""
    chosen = torch.randperm(len(source.labels), generator=generator)[:_FIT_RECORDS]
    return fitted(source.part(chosen), observed)


def halfway(source: Source, shifts: Shifts) -> nn.Module:
    """A copy of the team's classifier, half of the way to what it learns on moved source features."""
    classifier = copy.deepcopy(source.sums.classifier).eval()
    features = source.moved(shifts.shifts())
    # As if every record weighed against the weights' squares, for features of a usual length.
    strength = (float(source.features.norm(dim=1).mean()) / _USUAL_NORM) ** 2 / len(features)
    parameters = [parameter.requires_grad_(True) for parameter in classifier.parameters()]
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.LBFGS(parameters, max_iter=_UPDATES, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        pairs = [pair for pair in zip(parameters, before, strict=True) if pair[0].dim() > 1]
        away = sum(((own - was).square().sum() for own, was in pairs), torch.zeros((), dtype=torch.float64))
        loss = functional.cross_entropy(classifier(features), source.labels) + 0.5 * strength * away
        torch.autograd.backward(loss)
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter, was in zip(parameters, before, strict=True):
            parameter.lerp_(was, 0.5)
            parameter.requires_grad_(False)
    return classifier


def expected_gain(
    source: Source, observed: Observed, shifts: Shifts, generator: torch.Generator, *, told: Callable[[], None]
) -> Gain:
    """What the procedure gains in worlds drawn from the posterior.

    Args:
        source: public.
        observed: what was released of the target.
        shifts: fitted to it.
        generator: of the worlds.
        told: after each world.
    """
    gains, before = [], []
    unit = shifts.misfit * spread(source)
    for _ in range(WORLDS):
        order = torch.randperm(len(source.labels), generator=generator)
        own, other = source.part(order[: len(order) // 2]), source.part(order[len(order) // 2 :])
        values = shifts.drawn(generator)
        moved = other.moved(shifts.shifts(values))
        weights = shifts.weights(values)[other.labels]
        taken = torch.multinomial(weights, observed.records, replacement=True, generator=generator)
        misfit = unit * torch.randn(source.dimension, generator=generator, dtype=torch.float64)
        released = observed.again(other.added(moved[taken]).mean(dim=0), misfit, generator)
        learned = halfway(own, moved_fit(own, released, generator))
        right = [_right(model, moved, other.labels) for model in (source.sums.classifier, learned)]
        shares = 100.0 * weights / weights.sum()
        before.append(float(shares @ right[0]))
        gains.append(float(shares @ (right[1] - right[0])))
        told()
    each = torch.tensor(gains)
    return Gain(sum(before) / len(before), float(each.mean()), float(each.std()) / math.sqrt(len(gains)))


@torch.no_grad()
def _right(classifier: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """(m,) whether each class is right, 0 or 1."""
    right: Tensor = classifier(features).argmax(dim=1) == labels
    return right.double()
