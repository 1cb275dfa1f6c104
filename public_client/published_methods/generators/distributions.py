"""One release of class-wise sliced distributions of every record, and a network whose records have the same.

DP-SWD's generator by sums in the place of samples: the hospital adds up, over all of its records and once, how many
projections of each class lie above many thresholds in each direction (docs/privacy/sliced-distributions.md). The
network descends on the squared distance of these functions, a sliced Cramer distance by class, for as long as it likes:
nothing further is asked, and the cost at the hospital is one pass over its records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.generation.generator import Generator
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.scaled import Scaled
from dpswd.public_client.plans.recipe import RunTerms, not_counts, not_positive
from dpswd.public_client.published_methods.generators.descent import LEAST_ROWS, Network
from dpswd.public_client.training.run import Release
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.distributions.encoding import THRESHOLDS, encoded
from dpswd.shared.published_mechanisms.distributions.histograms import public_directions
from dpswd.shared.published_mechanisms.distributions.mechanism import (
    LABELLED_DISTRIBUTIONS,
    MOST_WINDOW,
    DistributionsDeclaration,
    Released,
)

_COUNTED = 0.05
"""Of the squared sensitivity, for the classes' counts."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """What a run's releases say together.

    Attributes:
        shares: (C,) of the classes, positive, adding up to 1.
        coefficients: (C, L, k), of each class, over the number of all records that have a label.
    """

    shares: npt.NDArray[np.float64]
    coefficients: npt.NDArray[np.float64]


class DistributionsRun(Release[Any]):
    """A run of sliced distributions by class. See `Release`."""

    def estimate(self, released: list[Released]) -> Estimate:
        """The mean of the run's releases."""
        counts = np.mean([one.counts for one in released], axis=0).clip(min=1.0)
        # How many records have a label is public where all have one.
        records = counts.sum() if self.plan.partly_labelled else float(self.plan.records)
        coefficients = np.mean([one.coefficients for one in released], axis=0) / records
        return Estimate(counts / counts.sum(), coefficients)

    def encoded(self, features: Tensor) -> Tensor:
        """What raw features (m, d) of generated records add to the release, (m, L, k); differentiable."""
        declared: DistributionsDeclaration = self.declared
        own = FeatureMap.identity(features.shape[1]) if declared.feature_map is None else declared.feature_map
        U = public_directions(declared.directions_seed, features.shape[1], declared.directions).to(features)
        projections = own.to(features.device).clipped(features) @ U
        return encoded(projections, window=declared.window, coefficients=declared.coefficients)


@dataclass(frozen=True, kw_only=True)
class SlicedDistributions(Network):
    """Class-wise sliced distributions, released once, and a network that draws records with the same.

    Attributes:
        directions: at least so many, in whole groups of as many orthogonal ones as a record has values.
        coefficients: L of each class and direction; more of them cost no epsilon.
        window: width of the thresholds' window, times the root of the number of values: a typical record's projections
            lie at 1/2 in these units.
        typical: root mean square of a typical record's values in units of high - low; it is brought to the clip norm,
            and larger records are clipped.
        directions_seed: public.
        updates: of the network; they cost nothing.
        draws: generated records of an update, in two halves.
    """

    name = "sliced-distributions"
    run_kind: ClassVar[type[Release[Any]]] = DistributionsRun

    directions: int = 200
    coefficients: int = 16
    window: float = 4.0
    typical: float = 0.4
    directions_seed: int = 0
    updates: int = 1500
    draws: int = 200

    def problems(self) -> list[str]:
        """See `GenerationMethod`."""
        problems = [
            *super().problems(),
            *not_counts(self, "directions", "coefficients", "updates", "draws"),
            *not_positive(self, "window", "typical"),
        ]
        if self.draws < 2 * LEAST_ROWS:
            problems.append(f"draws is {self.draws!r}; two halves of them need {2 * LEAST_ROWS} or more")
        return problems

    @property
    def mechanism(self) -> AnyMechanism:
        """See `Recipe`."""
        return LABELLED_DISTRIBUTIONS

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`."""
        plain = DistributionsDeclaration(
            classes=run.classes,
            directions=run.dimension * -(-self.directions // run.dimension),
            coefficients=min(self.coefficients, THRESHOLDS),
            window=min(MOST_WINDOW, self.window / math.sqrt(run.dimension)),
            count_weight=0.0,
            sigma=1.0,
            directions_seed=self.directions_seed,
            feature_map=run.feature_map,
        )
        counted = replace(plain, count_weight=math.sqrt(0.5 * _COUNTED) * plain.sensitivity(run.dimension))
        return replace(counted, sigma=run.noise * counted.sensitivity(run.dimension))

    def features(self, description: Description) -> nn.Module:
        """See `GenerationMethod`: the values themselves, on the scale of the clip."""
        return Scaled(self.low, self.high, self.typical * math.sqrt(math.prod(description.record_shape))).eval()

    def fit(self, run: Release[Any], features: nn.Module, fitting: Fitting) -> Generator:
        """See `GenerationMethod`."""
        assert isinstance(run, DistributionsRun), "this method opened it"
        with reporting("sliced distributions", run.plan.steps, shown=fitting.progress) as bar:
            released = run.ask_all(bar)
        estimate = run.estimate([Released.of(reply, run.declared) for reply in released])
        trained, features = self.made(run, fitting), features.to(fitting.device)
        own = torch.Generator().manual_seed(fitting.seed)
        target = torch.from_numpy(estimate.coefficients).float().to(fitting.device)
        shares = torch.from_numpy(estimate.shares)

        def loss() -> Tensor:
            labels = torch.multinomial(shares, self.draws, replacement=True, generator=own).to(fitting.device)
            latents = self.latents(labels, run.plan.classes, own)
            # The product of two independent halves has no share of the draws' own chance, which a square would
            # have, and which would be made small by drawing all records alike.
            halves = [
                self._means(run, features, trained, *half, fitting.ranks)
                for half in zip(latents.chunk(2), labels.chunk(2), strict=True)
            ]
            first, second = (half - target for half in halves)
            return (first * second).sum() / target.shape[2]

        self.updated(trained, loss, self.updates, fitting)
        return self.finished(trained, run, tuple(float(share) for share in estimate.shares))

    def _means(
        self,
        run: DistributionsRun,
        features: nn.Module,
        trained: nn.Module,
        latents: Tensor,
        labels: Tensor,
        ranks: Ranks,
    ) -> Tensor:
        """Coefficients (C, L, k) of m drawn records by class, over m; each rank computes those of its part of them."""
        if len(latents) < LEAST_ROWS * ranks.size:
            ranks = Ranks()  # each computes all of them
        own = slice(ranks.rank, None, ranks.size)
        each = run.encoded(self.features_on(features, trained(latents[own]), run))  # (m, L, k)
        kinds = nn.functional.one_hot(labels[own], run.plan.classes).to(each)
        return ranks.gather(torch.einsum("mc,mlk->clk", kinds, each)[None]).sum(dim=0) / len(latents)
