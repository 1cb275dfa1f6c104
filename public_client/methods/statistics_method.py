"""What the methods have in common that learn from one release of a hospital's labelled statistics.

Each hospital releases one noised sum over its labelled records (docs/privacy/class-statistics.md). What is made of the
sums costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.methods.statistics_head import ClassSums
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_one_of, not_positive
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import Release
from dpswd.public_client.training.sites import Group, Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.core.mechanisms.class_statistics.mechanism import (
    CLASS_STATISTICS,
    StatisticsDeclaration,
    StatisticsReply,
)
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.models.free_weights import free_moment_weight, with_free_counts

PLENTY = 30.0
"""Records for each unit of noise along all features, above which everything is released of two classes; below it, what
tells them apart. Like the next chosen on Adult in hospitals of 30 to 199 records (docs/ml-team/labelled.md)."""
COUNTED = 10.0
"""Records for each unit of noise at which the counts of two classes get half of their largest weight."""
_MOST_MOMENTS = 1024  # features: 4 MB a release, and half a second for the head


def declared(run: RunTerms, weights: Weights) -> StatisticsDeclaration:
    """What a run of these weights declares."""
    return StatisticsDeclaration(
        run.classes, weights.count, weights.moment, weights.centring, run.noise * weights.sensitivity(), run.feature_map
    )


@dataclass(frozen=True, kw_only=True)
class StatisticsMethod(Method):
    """A method whose run is one release of class counts, sums and second moments.

    Attributes:
        target_norm: the public map gives public features this mean norm; records are clipped at 1/2.
        moments: whether second moments are released; "auto": where they are free, of at most 1024 features.
    """

    mechanism = CLASS_STATISTICS

    target_norm: float = 0.7
    moments: Literal["auto", "yes", "no"] = "auto"

    def problems(self) -> list[str]:
        return [
            *super().problems(),
            *not_positive(self, "target_norm"),
            *not_one_of(self, "moments", ("auto", "yes", "no")),
        ]

    @property
    def published_map_norm(self) -> float | None:
        return self.target_norm

    def declaration(self, run: RunTerms) -> Payload:
        weights = self.weights(
            run.noise,
            records=run.labelled,
            dimension=run.dimension,
            classes=run.classes,
            number_private=run.number_private,
        )
        return declared(run, weights)

    def weights(
        self, noise: float, *, records: int, dimension: int, classes: int, number_private: bool = False
    ) -> Weights:
        """What a record's blocks weigh, from public numbers: with few records for the noise, class differences alone.

        Args:
            noise: deviation in units of the sensitivity.
            records: labelled ones; n where their number is private.
            dimension: d.
            classes: C.
            number_private: whether that number must follow from the counts.
        """
        plenty = number_private or classes > 2 or records / (noise * math.sqrt(dimension)) > PLENTY
        if plenty or self.moments == "yes":
            moments = self.moments == "yes" or (self.moments == "auto" and dimension <= _MOST_MOMENTS)
            return with_free_counts(classes, free_moment_weight(classes, 0.0) if moments else 0.0)
        counted = (records / noise) ** 2
        return Weights(classes, 0.5 * counted / (counted + COUNTED**2), 0.0, 1.0)

    def open(self, curator: Curator, plan: Plan, extractor: nn.Module) -> StatisticsRun:
        """See `Method`; features are taken as they are and clipped at 1/2. `StatisticsRun.sums` reads the release."""
        return StatisticsRun(curator, Declarable.of(extractor, plan.record_shape), plan).open()

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`: one map for all sites, so that their sums add up."""
        ready = Declarable.of(training.model.extractor, group.record_shape())
        feature_map = map_from_source(training.features, target_norm=self.target_norm)
        group.charge_each(
            lambda site: StatisticsRun(
                site.curator, ready, site.plan, feature_map=feature_map, checkpoint=site.store
            ).open()
        )

    def learned(self, group: Group, training: Training) -> Mapping[str, ClassSums]:
        """What each site of a group released; sites that gave up are not in it."""
        return training.read_each(group, "labelled statistics", lambda site, bar: site.run_of(StatisticsRun).sums(bar))


class StatisticsRun(Release[StatisticsReply]):
    """A run of class statistics. See `Release`."""

    @property
    def feature_map(self) -> FeatureMap:
        """The public map that the run declares."""
        declared: FeatureMap | None = self.declared.feature_map
        return FeatureMap.identity(self._dimension) if declared is None else declared

    @property
    def _dimension(self) -> int:
        dimension = self.plan.feature_dimension
        assert dimension is not None, "known once the run is open"
        return dimension

    def sums(self, bar: Reporter | None = None) -> ClassSums:
        """Draws all steps, at no further cost, and returns what they say together; see `Release.ask_all`."""
        size = {"records": self.plan.with_label, "dimension": self._dimension}
        hidden = self.plan.number_private
        return ClassSums.mean(
            [ClassSums.of(reply, self.declared, **size, number_private=hidden) for reply in self.ask_all(bar)]
        )


def common_map(sites: Sequence[Site]) -> FeatureMap:
    """The public map of all sites' releases.

    Raises:
        InvalidValue: they have several, so that their sums are no sums of the same numbers.
    """
    first, *others = (site.run_of(StatisticsRun).feature_map for site in sites)
    if any(not _same(other, first) for other in others):
        raise InvalidValue(
            "the hospitals' statistics are of different public maps and do not add up; train from each alone, or "
            "have them prepared from one source with one extractor (`dpswd-client prepare --extractor`)"
        )
    return first


def _same(one: FeatureMap, other: FeatureMap) -> bool:
    return torch.equal(one.center.cpu(), other.center.cpu()) and torch.equal(one.scale.cpu(), other.scale.cpu())
