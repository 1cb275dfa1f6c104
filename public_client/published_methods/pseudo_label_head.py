"""The classifier for a target whose classes have moved, and whether it may be trusted.

The classifier is trained once more on source features that moved as the fit says, held to what it was, and a mean of
its weights before and after is delivered: three quarters of the way lose little where the fit is right, and less than
the whole where it is not (Wortsman and others 2022, on fine-tuned weights).

Whether that helps is tried where the labels are known: in worlds drawn from the posterior. Half of the source's records
become the target of such a world, with classes moved and reweighed, as few records, as much noise and as large a misfit
as the real one had; the other half takes the source's place; the whole procedure runs, and its classifier is compared
with the team's, and with what the same training makes of the team's without a release, for only what the release brings
is its gain. Weak features, too much noise or a classifier that knows its training records by heart show here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.published_methods.pseudo_label_fit import Observed, Shifts, Source, fitted

WORLDS = 4
_WAY = 0.75  # of the way from the team's classifier to the new one
_DRAWS = 8
_UPDATES = 100  # at most, each of all records
_USUAL_NORM = 3.0  # the length of features at which a weight's penalty is 1


@dataclass(frozen=True)
class Gain:
    """What classifiers reach in worlds like the target, in percent and percentage points.

    Attributes:
        before: accuracy of the team's.
        retrained: of the team's after the same training without any move, hence without a release.
        mean: of what the new classifier is better than the better of the two, over the worlds.
        error: its standard error.
    """

    before: float
    retrained: float
    mean: float
    error: float

    @property
    def best(self) -> float:
        """Accuracy that takes no release, in percent."""
        return max(self.before, self.retrained)

    def __str__(self) -> str:
        """In words."""
        return (
            f"accuracy goes from {self.best:.1f} to {self.best + self.mean:.1f} ± {self.error:.1f} %; without the "
            f"release, by training the classifier for longer on the source alone, from {self.before:.1f} to "
            f"{self.retrained:.1f} %"
        )


def learned(source: Source, shifts: Shifts, generator: torch.Generator) -> nn.Module:
    """A copy of the team's classifier, a part of the way to what it learns on moved source features.

    Each part of the records moves by a draw from the posterior of its own: what the release leaves open is learned as
    open.
    """
    classifier = copy.deepcopy(source.sums.classifier).eval()
    order = torch.randperm(len(source.labels), generator=generator)
    parts = [source.part(chosen) for chosen in order.chunk(_DRAWS)]
    features = torch.cat([part.moved(shifts.drawn(generator)) for part in parts])
    labels = torch.cat([part.labels for part in parts])
    # As if every record weighed against the weights' squares, for features of a usual length.
    strength = (float(source.features.norm(dim=1).mean()) / _USUAL_NORM) ** 2 / len(features)
    parameters = [parameter.requires_grad_(True) for parameter in classifier.parameters()]
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.LBFGS(parameters, max_iter=_UPDATES, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        pairs = [pair for pair in zip(parameters, before, strict=True) if pair[0].dim() > 1]
        away = sum(((own - was).square().sum() for own, was in pairs), torch.zeros((), dtype=torch.float64))
        loss = functional.cross_entropy(classifier(features), labels) + 0.5 * strength * away
        torch.autograd.backward(loss)
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter, was in zip(parameters, before, strict=True):
            parameter.lerp_(was, 1.0 - _WAY)
            parameter.requires_grad_(False)
    return classifier


def expected_gain(
    source: Source, observed: Observed, shifts: Shifts, generator: torch.Generator, *, advance: Callable[[], None]
) -> Gain:
    """What the procedure gains in worlds drawn from the posterior.

    Args:
        source: public.
        observed: what was released of the target.
        shifts: fitted to it.
        generator: of the worlds.
        advance: after each world.
    """
    reached = []
    unit = max(shifts.priors.misfit, shifts.doubt) * source.spread
    for _ in range(WORLDS):
        order = torch.randperm(len(source.labels), generator=generator)
        own, other = source.part(order[: len(order) // 2]), source.part(order[len(order) // 2 :])
        values = shifts.drawn(generator)
        moved, weights = other.moved(values), other.weights(values)
        taken = torch.multinomial(weights, observed.records, replacement=True, generator=generator)
        misfit = unit * torch.randn(source.dimension, generator=generator, dtype=torch.float64)
        # By how often each was taken: the memory does not grow with the hospital's records.
        shares = torch.bincount(taken, minlength=len(moved)).double() / observed.records
        released = observed.again(shares @ other.added(moved) + misfit, generator)
        fit = fitted(own, released, generator, frequencies=False)  # as was found of the real one
        models = source.sums.classifier, learned(own, Shifts.none(own), generator), learned(own, fit, generator)
        with torch.no_grad():
            right = torch.stack([model(moved).argmax(dim=1) == other.labels for model in models])  # (3, m)
        reached.append(100.0 * right.double() @ weights)
        advance()
    before, retrained, new = torch.stack(reached, dim=1)  # (WORLDS,) each
    gains = new - torch.maximum(before, retrained)
    error = float(gains.std()) / math.sqrt(WORLDS)
    return Gain(float(before.mean()), float(retrained.mean()), float(gains.mean()), error)
