"""Adaptation by replaying stored releases: no gradient ever leaves the curator.

The curator releases the target's sliced quantile coefficients once (usually from a full batch, with the whole epsilon
spent on it). Everything after that is post-processing of public values, and free:

1. a *view*, a small model of how the target sees things (`views`), is fitted so that source records seen through it
   have the released coefficients; the target's class frequencies are fitted with it. The fit is the mode of a
   posterior: the noise's law gives the likelihood, what is usual between two devices the prior. It has local minima,
   so it begins at many random warps and drops the worse ones as it goes;
2. extractor and classifier are fine-tuned, with the source's labels, on source records seen through that view and
   varied a little.

docs/ml-team/recipe.md says how the numbers were chosen.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from public_client.data.datasets import Labelled
from public_client.data.progress import Reporter
from public_client.replay.missing_columns import TableView, find_gaps
from public_client.replay.prior_width import LinearModel
from public_client.replay.residuals import Residuals
from public_client.replay.views import CLASS_WIDTH, FeatureView, Fitted, View, moved_features, view_for

MOST_RECORDS = 20_000  # source records that are kept for fitting and tuning
CANDIDATES = 64  # random warps that are scored, beside the identity


@dataclass(frozen=True)
class _Round:
    """A part of the fit: the best `kept` candidates get `steps` more."""

    kept: int
    steps: int
    rate: float


# Few records leave modes that only whole fits can tell apart (docs/ml-team/small-hospitals.md): the halving is late.
_ROUNDS = (_Round(8, 8, 1.0), _Round(8, 25, 1.0), _Round(3, 100, 0.5))
VIEW_STEPS = sum(part.kept * part.steps for part in _ROUNDS)
"""Steps that `find_view` reports, at most."""
_SCORED = 256  # source records that score a candidate at first, four times as many later
_FIT_BATCH = 320  # source records a step, in two halves
_TUNE_BATCH = 128
_TUNE_RATE = 1e-3
_AVERAGED = 0.3  # the last part of the fit, over which its parameters are averaged
_CONVINCED = math.log(20.0)  # nats by which a view of features must be more probable than none, or none is used


class _Posterior:
    """Minus the logarithm of the posterior of a view and of class weights."""

    def __init__(
        self, extractor: nn.Module, source: Labelled, residuals: Residuals, generator: torch.Generator
    ) -> None:
        self._extractor = extractor
        self._source = source
        self._residuals = residuals
        self._generator = generator
        self.classes = int(source.labels.max()) + 1
        self.values = residuals.values * len(residuals)
        self._scored = torch.randperm(len(source), generator=generator)
        self.class_width = CLASS_WIDTH
        self.least_variance = 1.0

    def learn_widths(self, view: FeatureView) -> bool:
        """Sets the widths of the view's priors and of the classes' to the most probable ones.

        Returns:
            Whether the releases are more probable under them than under other class frequencies alone.
        """
        chosen = self._scored[: 4 * _SCORED]
        labels = self._source.labels[chosen]
        with torch.no_grad():
            features = self._extractor(self._source.images[chosen])
        d = features.shape[1]

        def moved(parameters: Tensor) -> Tensor:
            gain, bias, log_weights = parameters[:d], parameters[d : 2 * d], CLASS_WIDTH * parameters[2 * d :]
            seen, weights = moved_features(features, gain, bias, view.spread), torch.exp(log_weights)[labels]
            return self._residuals.of_all(seen, weights).flatten()

        def classes_alone(parameters: Tensor) -> Tensor:
            return moved(torch.cat((torch.zeros(2 * d).to(parameters), parameters)))

        found = LinearModel(moved, (d, d, self.classes), features).widths()
        without = LinearModel(classes_alone, (self.classes,), features).widths()
        view.factors.copy_(torch.tensor(found.factors[:2]))
        self.class_width = CLASS_WIDTH * found.factors[2]
        self.least_variance = found.variance
        return found.log_posterior - without.log_posterior > _CONVINCED

    def penalty(self, view: View, log_weights: Tensor) -> Tensor:
        return view.penalty() + 0.5 * (log_weights / self.class_width).square().sum()

    def loss(self, view: View, log_weights: Tensor, step: int, variance: float) -> Tensor:
        """One step's loss, a release alone standing for all of them.

        The product of two independent halves' residuals has no share of the source sample's own noise, which a square
        would have, and which would be made small by making the features small.
        """
        count, releases = len(self._source), len(self._residuals)
        chosen = torch.randint(count, (min(_FIT_BATCH, 2 * count),), generator=self._generator)
        first, second = (
            self._residuals.of(*self._seen(view, log_weights, half), step % releases) for half in chosen.chunk(2)
        )
        return (first * second).sum() * releases / (2 * variance) + self.penalty(view, log_weights)

    @torch.no_grad()
    def square(self, view: View, log_weights: Tensor, records: int) -> float:
        """Mean squared residual, from the same source records for each candidate."""
        return float(self._residuals.of_all(*self._seen(view, log_weights, self._scored[:records])).square().mean())

    @torch.no_grad()
    def left(self, view: View, log_weights: Tensor) -> float:
        seen = self._seen(view, log_weights, self._scored[: 4 * _SCORED])
        return self._residuals.distance(self._residuals.of_all(*seen))

    def _seen(self, view: View, log_weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Features of source records as the view sees them, (m, d), and their weights, (m,)."""
        features = view(self._extractor, self._source.images[chosen])
        return features, torch.exp(log_weights)[self._source.labels[chosen]]


@dataclass
class _Start:
    """One candidate of the fit."""

    view: View
    log_weights: Tensor


def find_view(
    extractor: nn.Module,
    source: Labelled,
    residuals: Residuals,
    *,
    learning_rate: float,
    generator: torch.Generator,
    bar: Reporter,
    view: View | None = None,
) -> Fitted:
    """The most probable view and class weights under which the source has the target's released coefficients.

    Args:
        extractor: frozen, records to features.
        source: labelled public records.
        residuals: from the releases.
        learning_rate: of the first rounds; half in the last; cosine to a twentieth in each.
        generator: of candidates and source batches.
        bar: told of each of at most `VIEW_STEPS` steps.
        view: the identity of the kind of view to fit; not changed. By default the ready one for the kind of record.
    """
    extractor = _laid_out(extractor, source.images)
    given = None if view is None else copy.deepcopy(view).to(source.images.device)
    if isinstance(given, TableView):
        return find_gaps(given, extractor, source, residuals, generator=generator, bar=bar)
    posterior = _Posterior(extractor, source, residuals, generator)
    with torch.no_grad():
        features = extractor(source.images[: 4 * _SCORED])
    identity = given if given is not None else view_for(source.images, features)
    if isinstance(identity, FeatureView) and not posterior.learn_widths(identity):
        even = torch.ones(posterior.classes).to(features)
        return Fitted(identity, even, posterior.left(identity, torch.log(even)), convinced=False)
    views = [identity, *identity.candidates(CANDIDATES, generator)]
    starts = [_Start(view, torch.zeros(posterior.classes).to(features)) for view in views]
    variance = _rank(starts, posterior, _SCORED)
    for part in _ROUNDS:
        del starts[part.kept :]
        for start in starts:
            _fit(start, posterior, variance, steps=part.steps, learning_rate=part.rate * learning_rate, bar=bar)
        variance = _rank(starts, posterior, 4 * _SCORED)
    best = starts[0]
    return Fitted(best.view, torch.exp(best.log_weights), posterior.left(best.view, best.log_weights))


def _rank(starts: list[_Start], posterior: _Posterior, records: int) -> float:
    """Sorts the starts, best first; returns the variance of a residual that the best of them suggests.

    A view is never quite right. What it cannot explain counts as noise: the variance is at least the release's own, 1,
    and otherwise what is left, so that a wrong model does not make the prior worthless.
    """
    squares = [posterior.square(start.view, start.log_weights, records) for start in starts]
    variance = max(posterior.least_variance, min(squares))
    with torch.no_grad():
        scores = [
            square * posterior.values / (2 * variance) + float(posterior.penalty(start.view, start.log_weights))
            for start, square in zip(starts, squares, strict=True)
        ]
    order = sorted(range(len(starts)), key=scores.__getitem__)
    starts[:] = [starts[i] for i in order]
    return variance


def _fit(
    start: _Start, posterior: _Posterior, variance: float, *, steps: int, learning_rate: float, bar: Reporter
) -> None:
    """Descends from one start, in place, and keeps the average of the last part."""
    log_weights = start.log_weights.requires_grad_(True)
    parameters = [*start.view.parameters(), log_weights]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, betas=(0.9, 0.99))
    first_averaged = math.ceil((1 - _AVERAGED) * steps)
    averages = [torch.zeros_like(parameter) for parameter in parameters]
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate * cosine(t / steps)
        loss = posterior.loss(start.view, log_weights, t, variance)
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=parameters)
        optimizer.step()
        if t >= first_averaged:
            for average, parameter in zip(averages, parameters, strict=True):
                average += parameter.detach() / (steps - first_averaged)
        bar.advance(f"loss {float(loss.detach()):.4g}")
    with torch.no_grad():
        for average, parameter in zip(averages, parameters, strict=True):
            parameter.copy_(average)
    log_weights.requires_grad_(False)


def tune(
    extractor: nn.Module,
    classifier: nn.Module,
    view: View,
    source: Labelled,
    *,
    steps: int,
    generator: torch.Generator,
    bar: Reporter,
) -> tuple[nn.Module, nn.Module]:
    """Copies of both modules, fine-tuned on labelled source records seen through the view.

    Images vary a little at random, which makes up for what the view missed. An extractor whose features the view
    changes stays as it is. A view that keeps scores is not given labels: the classifier learns to say of what is seen
    what it said of the record itself, so that the labels' chance adds nothing, and the identity changes nothing.

    Args:
        extractor: source-trained.
        classifier: source-trained.
        view: fitted.
        source: public.
        steps: updates.
        generator: of the batches.
        bar: told of each step.
    """
    extractor, classifier = _laid_out(extractor, source.images), copy.deepcopy(classifier)
    trained = [*(extractor.parameters() if view.tunes_extractor else ()), *classifier.parameters()]
    view.requires_grad_(False)
    scores: Tensor | None = None
    if view.keeps_scores:
        with torch.no_grad():
            scores = torch.softmax(classifier(extractor(source.images)), dim=1)
    for parameter in trained:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(trained, lr=_TUNE_RATE)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = _TUNE_RATE * (1.0 - t / steps)
        chosen = torch.randint(len(source), (min(_TUNE_BATCH, len(source)),), generator=generator)
        features = view(extractor, source.images[chosen], generator)
        wanted = source.labels[chosen] if scores is None else scores[chosen]
        loss = functional.cross_entropy(classifier(features), wanted)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        bar.advance(f"class loss {float(loss.detach()):.3f}")
    return extractor.eval(), classifier.eval()


def _laid_out(extractor: nn.Module, records: Tensor) -> nn.Module:
    """A copy; for images its weights are stored channels last, with which a processor computes a third faster."""
    copied = copy.deepcopy(extractor)
    return copied.to(memory_format=torch.channels_last) if records.dim() == 4 else copied  # type: ignore[call-overload]


def cosine(progress: float) -> float:
    """A rate's schedule, from 1 down to 0.05: large moves first, then the noise is averaged out."""
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * progress))
