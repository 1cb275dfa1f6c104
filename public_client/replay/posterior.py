"""How probable an explanation of releases is: a view's loss, its evidence, and the class frequencies under it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.linear_evidence import LinearModel
from dpswd.public_client.replay.class_frequencies import FrequencyModel
from dpswd.public_client.replay.columns import MOST_COLUMNS, ColumnView, column_view, find_units
from dpswd.public_client.replay.low_rank import LowRankView, find_low_rank, low_rank_view
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.verdict import Evidence
from dpswd.public_client.replay.views import CLASS_WIDTH, FeatureView, View, moved_features

SCORED = 256
"""Source records that score a candidate at first, four times as many later."""
_JUDGED = 4096  # source records that an explanation is judged by
_LEAST_WEIGHT = 1e-3
FIT_BATCH = 320  # source records a step, in two halves
_DIFFERENCE = 0.05  # of a prior's width, on either side
_CONVINCED = math.log(20.0)  # nats by which a view of features must be more probable than none, or none is used


class Posterior:
    """Minus the logarithm of the posterior of a view, and the class frequencies that are most probable under it."""

    def __init__(
        self, extractor: nn.Module, source: Labelled, residuals: Residuals, generator: torch.Generator, ranks: Ranks
    ) -> None:
        self._extractor = extractor
        self._source = source
        self._residuals = residuals
        self.ranks = ranks
        self.classes = int(source.labels.max()) + 1
        self.values = residuals.values * len(residuals)
        self._shuffled = torch.randperm(len(source), generator=generator)

    def learn_widths(self, view: FeatureView) -> bool:
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

        def classes_alone(parameters: Tensor) -> Tensor:
            return moved(torch.cat((torch.zeros(2 * d).to(parameters), parameters)))

        widths, without = self.ranks.share(
            lambda: (
                LinearModel.at_identity(moved, (d, d, self.classes), features).widths(),
                LinearModel.at_identity(classes_alone, (self.classes,), features).widths(),
            )
        )
        view.factors.copy_(torch.tensor(widths.factors[:2]))
        return widths.log_posterior - without.log_posterior > _CONVINCED

    def columns(self) -> ColumnView | None:
        """The identity in units of columns, for records that have few of them and are no words."""
        records = self._source.images
        if any(isinstance(module, nn.Embedding) for module in self._extractor.modules()):
            return None
        return column_view(records) if records.dim() == 2 and records.shape[1] <= MOST_COLUMNS else None

    def units(self, identity: ColumnView) -> ColumnView:
        """The most probable units of columns."""
        chosen = self._shuffled[: _JUDGED // 2]
        source = self._source.part(chosen)
        return self.ranks.share(lambda: find_units(identity, self._extractor, source, self._residuals))

    @torch.no_grad()
    def low_rank(self, identity: LowRankView | None) -> LowRankView:
        """The most probable mean move, map of low rank and noise along few directions."""
        chosen = self._shuffled[: _JUDGED // 2]
        source = Labelled(self._extractor(self._source.images[chosen]), self._source.labels[chosen])
        return find_low_rank(identity or low_rank_view(source.images), source, self._residuals, self.ranks)

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
