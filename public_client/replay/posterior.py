"""How probable an explanation of releases is, and the most probable view of each family."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.linear_evidence import LinearModel, Widths
from dpswd.public_client.replay.class_frequencies import FrequencyModel
from dpswd.public_client.replay.low_rank import LowRankView, find_low_rank, low_rank_view
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.verdict import Evidence
from dpswd.public_client.replay.views import CLASS_WIDTH, FeatureView, View, moved_features

CANDIDATES = 80  # random warps that are scored, beside the identity
SCORED = 256
"""Source records that score a candidate at first, four times as many later."""
_JUDGED = 4096  # source records that an explanation is judged by
_LEAST_WEIGHT = 1e-3
FIT_BATCH = 320  # source records a step, in two halves
_DIFFERENCE = 0.05  # of a prior's width, on either side
_CONVINCED = math.log(20.0)  # nats by which a view of features must be more probable than none, or none is used


@dataclass(frozen=True)
class _Round:
    """A part of the fit: the best `kept` candidates get `steps` more."""

    survivors: int
    steps: int
    rate: float


# Few records leave modes that only whole fits can tell apart (docs/ml-team/results.md): the halving is late.
_ROUNDS = (_Round(8, 8, 1.0), _Round(8, 25, 1.0), _Round(3, 50, 0.5), _Round(2, 60, 0.5))
VIEW_STEPS = sum(part.survivors * part.steps for part in _ROUNDS)
"""Steps that `find_view` reports, at most."""
VIEW_PASSES = VIEW_STEPS * FIT_BATCH
"""Records that `find_view` sends forward and backward through the extractor, at most."""
_HOPELESS = 40.0
"""Nats behind the best start that a fit of a whole round does not make up for, with what no view explains as noise."""
_TRIED_LONG = 3  # rounds that the identity is fitted in, unless it is hopeless
_LIKELY = 0.01  # of the most probable view's probability, from which on models are tuned by a view too
_MOST_LIKELY = 4  # views that models are tuned by
_AVERAGED = 0.3  # the last part of the fit, over which its parameters are averaged


@dataclass(eq=False)
class _Start:
    """One candidate of the fit.

    Attributes:
        view: in the making.
        weights: (classes,), the target's frequency of each over the source's.
        frequencies: (classes,), the same as frequencies; None before they were fitted.
        score: its log evidence when it was last ranked.
    """

    view: View
    weights: Tensor
    frequencies: Tensor | None = None
    score: float = 0.0


@dataclass(frozen=True)
class Explained:
    """The best view of a family.

    Attributes:
        view: fitted.
        evidence: its own.
        words: for it.
        likely: the most probable of all that were fitted, with their probabilities; none where one view is enough.
    """

    view: View
    evidence: Evidence
    words: str
    likely: tuple[tuple[View, float], ...] = ()


class Posterior:
    """Minus the logarithm of the posterior of a view, and the class frequencies that are most probable under it.

    Args:
        extractor: frozen, records to features.
        source: labelled public records.
        residuals: from the releases.
        generator: of candidates and source batches.
        ranks: processes with the same source that share the fits, and end alike.
    """

    def __init__(
        self, extractor: nn.Module, source: Labelled, residuals: Residuals, generator: torch.Generator, ranks: Ranks
    ) -> None:
        self._extractor = extractor
        self._source = source
        self._residuals = residuals
        self._generator = generator
        self.ranks = ranks
        self.classes = int(source.labels.max()) + 1
        self.values = residuals.values * len(residuals)
        self._shuffled = torch.randperm(len(source), generator=generator)

    def families(
        self, identity: View, given: View | None, *, alone_fits: bool, learning_rate: float, bar: Reporter
    ) -> Iterator[Explained]:
        """The best view of each family, the simplest first.

        Args:
            identity: of the kind of view to fit.
            given: the same where the team brings it.
            alone_fits: whether class frequencies fit: then only what moves a small part of the variance is looked for.
            learning_rate: of the first rounds; half in the last; cosine to a twentieth in each.
            bar: told of each of at most `VIEW_STEPS` steps.
        """
        judging = self._source.part(self._shuffled[: _JUDGED // 2])
        searched = not alone_fits and not isinstance(identity, LowRankView)
        if searched and (not isinstance(identity, FeatureView) or self._learn_widths(identity)):
            yield self._best_view(identity, learning_rate, bar)
        if isinstance(given, LowRankView) or (given is None and isinstance(identity, FeatureView)):
            with torch.no_grad():
                seen = Labelled(self._extractor(judging.images), judging.labels)
            begun = given if isinstance(given, LowRankView) else low_rank_view(seen.images)
            view = find_low_rank(begun, seen, self._residuals, self.ranks)
            statement = f"features that moved along few directions ({view}) explain"
            yield Explained(view, self.judged(view), statement)

    def _learn_widths(self, view: FeatureView) -> bool:
        """Sets the widths of the view's priors to the most probable ones.

        Returns:
            Whether the releases are more probable under them than under other class frequencies alone.
        """
        chosen = self._shuffled[: 4 * SCORED]
        labels = self._source.labels[chosen]
        with torch.no_grad():
            features = self._extractor(self._source.images[chosen])
        d = features.shape[1]

        def moved(parameters: Tensor) -> Tensor:
            gain, bias, log_weights = parameters[:d], parameters[d : 2 * d], CLASS_WIDTH * parameters[2 * d :]
            seen, weights = moved_features(features, gain, bias, view.spread), torch.exp(log_weights)[labels]
            return self._residuals.of_all(seen, weights).flatten()

        def fitted() -> tuple[Widths, Widths]:
            model = LinearModel.at_identity(moved, (d, d, self.classes), features)
            return model.widths(), model.alone(2).widths()

        widths, without = self.ranks.share(fitted)
        view.factors.copy_(torch.tensor(widths.factors[:2]))
        return widths.log_posterior - without.log_posterior > _CONVINCED

    def _best_view(self, identity: View, learning_rate: float, bar: Reporter) -> Explained:
        """The most probable view: its fit and that of the class frequencies alternate."""
        even = torch.ones(self.classes).to(next(identity.parameters()))
        starts = [_Start(view, even) for view in (identity, *identity.candidates(CANDIDATES, self._generator))]
        squares = self.ranks.divided(len(starts), lambda i: self.square(starts[i].view, even, SCORED))
        variance = max(1.0, min(squares))
        with torch.no_grad():
            costs = [
                square * self.values / (2 * variance) + float(start.view.penalty())
                for start, square in zip(starts, squares, strict=True)
            ]
        order = sorted(range(len(starts)), key=costs.__getitem__)
        least, dropped = starts[0], list[_Start]()
        starts = [starts[i] for i in order]
        for number, part in enumerate(_ROUNDS):
            starts, others = starts[: part.survivors], starts[part.survivors :]
            if number < _TRIED_LONG and least in others:
                # What leads to less change is worth more, but its worth shows late: thin releases of a shift that is
                # none of the family's were explained by far warps, 16 nats worse than what the identity comes to.
                others[others.index(least)], starts[-1] = starts[-1], least
            if number > 0:  # they have been fitted, and ranked
                dropped += others
            self._fit_all(starts, variance, part, learning_rate, bar)
            variance = self._rank(starts)
            if number > 0:  # with many records one start stands out soon; with few, none does
                starts = [start for start in starts if start.score > starts[0].score - _HOPELESS * variance]
        best = starts[0]
        seen = self.judged(best.view, start=best.frequencies)
        likely = _likely([*starts, *dropped]) if best.view.few_parameters else ()
        return Explained(best.view, seen, "a view explains", likely)

    def _rank(self, starts: list[_Start]) -> float:
        """Sorts the starts, best first, with their class frequencies fitted anew; returns the variance of a residual.

        A view is never quite right. What it cannot explain counts as noise: the variance is at least the release's own,
        1, and otherwise what is left, so that a wrong model does not make the prior worthless.
        """
        evidences = self.ranks.divided(
            len(starts), lambda i: self.evidence(starts[i].view, start=starts[i].frequencies, quick=True)
        )
        order = sorted(range(len(starts)), key=lambda i: evidences[i].log_evidence, reverse=True)
        for start, evidence in zip(starts, evidences, strict=True):
            start.frequencies = evidence.frequencies.frequencies
            start.weights = evidence.frequencies.weights.to(start.weights)
            start.score = evidence.log_evidence
        starts[:] = [starts[i] for i in order]
        return max(1.0, evidences[order[0]].frequencies.chi_square)

    def _fit_all(
        self, starts: list[_Start], variance: float, part: _Round, learning_rate: float, bar: Reporter
    ) -> None:
        """A part of the fit, of all starts in place; each draws for itself, so that it is the same whoever fits it."""
        seeds, ranks, rate = torch.randint(2**31, (len(starts),), generator=self._generator), self.ranks, part.rate

        def one(number: int) -> list[Tensor]:
            own = torch.Generator().manual_seed(int(seeds[number]))
            return self._fit(starts[number], variance, own, part.steps, rate * learning_rate, bar)

        fitted = ranks.divided(len(starts), one)
        for start, values in zip(starts, fitted, strict=True):
            with torch.no_grad():
                for parameter, value in zip(start.view.parameters(), values, strict=True):
                    parameter.copy_(value)
        elsewhere = len(starts) - len(range(ranks.rank, len(starts), ranks.size))
        for _ in range(elsewhere * part.steps):
            bar.advance("fitted by another process")

    def _fit(
        self,
        start: _Start,
        variance: float,
        generator: torch.Generator,
        steps: int,
        learning_rate: float,
        bar: Reporter,
    ) -> list[Tensor]:
        """Descends from one start; returns the average of the view's parameters over the last part."""
        parameters = list(start.view.parameters())
        optimizer = torch.optim.Adam(parameters, lr=learning_rate, betas=(0.9, 0.99))
        first_averaged = math.ceil((1 - _AVERAGED) * steps)
        averages = [torch.zeros_like(parameter) for parameter in parameters]
        for t in range(steps):
            optimizer.param_groups[0]["lr"] = learning_rate * cosine(t / steps)
            loss = self.loss(start.view, start.weights, t, variance, generator)
            optimizer.zero_grad()
            torch.autograd.backward(loss, inputs=parameters)
            optimizer.step()
            if t >= first_averaged:
                for average, parameter in zip(averages, parameters, strict=True):
                    average += parameter.detach() / (steps - first_averaged)
            bar.advance(f"loss {float(loss.detach()):.4g}")
        return averages

    def loss(self, view: View, class_weights: Tensor, step: int, variance: float, generator: torch.Generator) -> Tensor:
        """One step's loss, a release alone standing for all of them.

        The product of two independent halves' residuals has no share of the source sample's own noise, which a square
        would have, and which would be made small by making the features small.
        """
        count, releases = len(self._source), len(self._residuals)
        chosen = torch.randint(count, (min(FIT_BATCH, 2 * count),), generator=generator)
        if view.draws_noise:  # the same for either half
            halves = [self._seen(view, class_weights, half) for half in chosen.chunk(2)]
        else:  # in one pass: a step takes two thirds of the time
            features, weights = self._seen(view, class_weights, chosen)
            halves = list(zip(features.chunk(2), weights.chunk(2), strict=True))
        first, second = (self._residuals.of(*half, step % releases) for half in halves)
        return (first * second).sum() * releases / (2 * variance) + view.penalty()

    @torch.no_grad()
    def square(self, view: View, class_weights: Tensor, records: int) -> float:
        """Mean squared residual, from the same source records for each candidate."""
        return float(self._residuals.of_all(*self._seen(view, class_weights, self._shuffled[:records])).square().mean())

    def judged(self, view: View, *, start: Tensor | None = None) -> Evidence:
        """Its `evidence`, the first rank's on all: what is decided by it must not depend on how a processor rounds."""
        return self.ranks.share(lambda: self.evidence(view, start=start))

    @torch.no_grad()
    def evidence(self, view: View, *, start: Tensor | None = None, quick: bool = False) -> Evidence:
        """Of one view, with the class frequencies that are most probable under it.

        Args:
            view: to judge.
            start: (classes,) frequencies to begin from.
            quick: of fewer records, for a comparison of fits of one kind: the posterior's height, not its mass.
        """
        frequencies = self.model(view, quick=quick).free(start)
        penalty = float(view.penalty())
        if view.few_parameters and not quick:
            penalty += self._freedom(view, frequencies.weights.to(next(view.parameters())))
        return Evidence(frequencies, penalty)

    def _freedom(self, view: View, class_weights: Tensor) -> float:
        """Nats that the view's parameters cost by being free to fit: 1/2 log det(I + W J^T J W).

        Laplace's method at the view as it is (MacKay 1992): J are the residuals' derivatives, by differences, and W
        the priors' widths, by the penalty's curvature, which is the same everywhere. Rather too much: in units of the
        release's noise alone, without the chance of either side's records, and with a nat or so for noise at 0, which a
        fit does not move.
        """
        parameters = list(view.parameters())
        middle = nn.utils.parameters_to_vector(parameters).detach()
        chosen = self._shuffled[: 4 * SCORED]

        def at(values: Tensor) -> Tensor:
            nn.utils.vector_to_parameters(values, parameters)
            return self._residuals.of_all(*self._seen(view, class_weights, chosen)).double().flatten()

        def penalty_at(values: Tensor) -> float:
            nn.utils.vector_to_parameters(values, parameters)
            return float(view.penalty())

        height, slopes = penalty_at(middle), []
        for one in torch.eye(len(middle)).to(middle):
            curvature = penalty_at(middle + one) + penalty_at(middle - one) - 2.0 * height
            step = _DIFFERENCE * one / math.sqrt(curvature)
            slopes.append((at(middle + step) - at(middle - step)) / (2.0 * _DIFFERENCE))
        nn.utils.vector_to_parameters(middle, parameters)
        J = torch.stack(slopes, dim=1)
        return float(LinearModel(J, J[:, 0], (len(middle),)).under((1.0,)).volume)

    @torch.no_grad()
    def model(self, view: View, *, quick: bool = False) -> FrequencyModel:
        """Of the class frequencies under a view as it is now; from fewer records if it is to be quick."""
        chosen = self._shuffled[: 4 * SCORED if quick else _JUDGED]
        parts = [view(self._extractor, self._source.images[part]) for part in torch.split(chosen, _JUDGED // 4)]
        labels = self._source.labels[chosen]
        return FrequencyModel(torch.cat(parts), labels, self._residuals, self.classes, quick=quick)

    @torch.no_grad()
    def left(self, view: View, weights: Tensor) -> float:
        """Estimated distance F between the release and what the view sees, with these weights of classes."""
        seen = self._seen(view, weights, self._shuffled[: 4 * SCORED])
        return self._residuals.distance(self._residuals.of_all(*seen))

    def _seen(self, view: View, class_weights: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Features of source records as the view sees them, (m, d), and their weights, (m,)."""
        features = view(self._extractor, self._source.images[chosen])
        # A class that seems absent keeps a little weight: its records still say where the others end.
        return features, class_weights[self._source.labels[chosen]].clamp(min=_LEAST_WEIGHT)


def _likely(starts: list[_Start]) -> tuple[tuple[View, float], ...]:
    """The views that are hardly less probable than the best, with their probabilities."""
    most = max(start.score for start in starts)
    likely = sorted((start for start in starts if start.score > most + math.log(_LIKELY)), key=lambda one: -one.score)
    chances = [math.exp(start.score - most) for start in likely[:_MOST_LIKELY]]
    return tuple((start.view, chance / sum(chances)) for start, chance in zip(likely, chances, strict=False))


def cosine(progress: float) -> float:
    """A rate's schedule, from 1 down to 0.05: large moves first, then the noise is averaged out."""
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * progress))
