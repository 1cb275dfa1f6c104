"""Labelled statistics, released once: a linear head on the team's extractor, learned from the hospital's labels.

Each hospital releases one noised sum over its labelled records (docs/privacy/class-statistics.md). The head is computed
from the sums, at no further cost; hospitals that share a model share its weights, and each has its own class shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from public_client.curator.stub import Curator
from public_client.data.accuracy import features as features_of
from public_client.data.progress import Reporter, reporting
from public_client.data.source import collect
from public_client.methods.statistics_head import Head, Known, Prior, discriminant, shares_of
from public_client.plans.declarable import Declarable
from public_client.plans.plan import Plan
from public_client.plans.recipe import RunTerms, not_one_of, not_positive
from public_client.training.checkpoint import Checkpoint
from public_client.training.drawing import draw_all
from public_client.training.loop import Training, write_histories
from public_client.training.method import Method
from public_client.training.run import AnsweredStep, ChargedRun, DrawnStep, PublicSource
from public_client.training.sites import Group, Model, Site
from shared.errors import InvalidValue
from shared.kernels.clipping import RECORD_NORM
from shared.kernels.feature_map import FeatureMap
from shared.mechanisms.class_statistics.geometry import Weights, free_moment_weight
from shared.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration, StatisticsRequest
from shared.mechanisms.interface import AnyMechanism, Payload

PLENTY = 30.0
"""Records for each unit of noise along all features, above which everything is released of two classes; below it, what
tells them apart. Like the next chosen on Adult in hospitals of 30 to 199 records (docs/ml-team/labelled.md)."""
COUNTED = 10.0
"""Records for each unit of noise at which the counts of two classes get half of their largest weight."""
_MOST_MOMENTS = 1024  # features: 4 MB a release, and half a second for the head


@dataclass(frozen=True, kw_only=True)
class Statistics(Method):
    """One release of class counts, sums and second moments: a linear head from the hospital's labels.

    Attributes:
        target_norm: the public map gives source features this mean norm; records are clipped at 1/2.
        moments: whether second moments are released; "auto": where they are free, of at most 1024 features.
        prior: "source": shrink towards the public source's class means and covariance; "none": towards nothing.
        own_shares: sites that share a model each get the class shares of their own counts.
    """

    name = "statistics"

    target_norm: float = 0.7
    moments: Literal["auto", "yes", "no"] = "auto"
    prior: Literal["source", "none"] = "source"
    own_shares: bool = True

    def problems(self) -> list[str]:
        """See `Method`."""
        return [
            *super().problems(),
            *not_positive(self, "target_norm"),
            *not_one_of(self, "moments", ("auto", "yes", "no")),
            *not_one_of(self, "prior", ("source", "none")),
        ]

    @property
    def mechanism(self) -> AnyMechanism:
        """See `Recipe`."""
        return CLASS_STATISTICS

    @property
    def published_map_norm(self) -> float | None:
        """See `Method`."""
        return self.target_norm

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`."""
        weights = self.weights(run.noise, records=run.batch, dimension=run.dimension, classes=run.classes)
        return StatisticsDeclaration(
            classes=run.classes,
            count_weight=weights.count,
            moment_weight=weights.moment,
            centring=weights.centring,
            sigma=run.noise * weights.sensitivity(),
            feature_map=run.feature_map,
        )

    def weights(self, noise: float, *, records: int, dimension: int, classes: int) -> Weights:
        """What a record's blocks weigh, from public numbers: with few records for the noise, class differences alone.

        Args:
            noise: deviation in units of the sensitivity.
            records: n.
            dimension: d.
            classes: C.
        """
        plenty = classes > 2 or records / (noise * math.sqrt(dimension)) > PLENTY
        if plenty or self.moments == "yes":
            moments = self.moments == "yes" or (self.moments == "auto" and dimension <= _MOST_MOMENTS)
            plain = Weights(classes, 0.0, free_moment_weight(classes, 0.0) if moments else 0.0, 0.0)
            return Weights(classes, plain.free_count(), plain.moment, 0.0)
        counted = (records / noise) ** 2
        return Weights(classes, 0.5 * counted / (counted + COUNTED**2), 0.0, 1.0)

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        """See `Recipe`."""
        return "the classifier, from the hospital's labels; the extractor stays"

    def open(self, curator: Curator, plan: Plan, extractor: nn.Module) -> StatisticsRun:
        """See `Method`; features are taken as they are and clipped at 1/2. `StatisticsRun.known` reads the release."""
        return StatisticsRun(curator, Declarable.of(extractor, plan.record_shape), plan)

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`: one map for all sites, so that their sums add up."""
        ready = Declarable.of(training.model.extractor, group.record_shape())
        feature_map = FeatureMap.from_source(training.features, target_norm=self.target_norm)
        group.each(
            lambda site: site.begin(
                StatisticsRun(site.curator, ready, site.plan, feature_map=feature_map, checkpoint=site.store)
            )
        )

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`."""
        for site in group.live:
            training.record(site, 0, math.nan)

        def known_of(site: Site) -> Known:
            with reporting(f"labelled statistics of {site.name}", site.plan.steps, shown=training.progress) as bar:
                return _run_of(site).known(site.store, bar=bar)

        known = group.each(known_of)
        live = [site for site in group.live if site.name in known]
        feature_map = _run_of(live[0]).feature_map
        if any(not _same(_run_of(site).feature_map, feature_map) for site in live):
            raise InvalidValue(
                "the hospitals' statistics are of different public maps and do not add up; train from each alone, or "
                "have them prepared from one source with one extractor (`dpswd-client prepare --extractor`)"
            )
        together = Known.together([known[site.name] for site in live])
        head = discriminant(together, self._prior(training, feature_map, classes=len(together.counts)))
        shares = shares_of(together)
        for site in live:
            own = head
            if self.own_shares and len(live) > 1:
                own = head.with_shares(shares, shares_of(known[site.name], around=shares))
            site.model = Model(training.model.extractor, _linear(own, feature_map).to(training.device))
            site.steps = site.plan.steps
            training.record(site, site.steps, math.nan)
        write_histories(group)

    def _prior(self, training: Training, feature_map: FeatureMap, *, classes: int) -> Prior | None:
        """What the public source says of the classes, in the same features."""
        if self.prior == "none":
            return None
        source = collect(training.source, most=max(1, self.source_records // training.ranks.size))
        features = features_of(training.model.extractor, source.images.to(training.device))
        labels = training.ranks.gather(source.labels.to(training.device)).cpu().numpy()
        gathered = training.ranks.gather(features).to(feature_map.center.device)
        u = feature_map.clipped(gathered).to("cpu", torch.float64) / RECORD_NORM
        return Prior.from_source(u.numpy(), labels, classes=classes)


class StatisticsRun(ChargedRun):
    """A run of class statistics; making it charges the whole run. See `ChargedRun`."""

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

    def known(self, store: Checkpoint | None = None, *, bar: Reporter | None = None) -> Known:
        """Draws all steps, at no further cost, and returns what they say together.

        Args:
            store: of a run that can be resumed.
            bar: told of every step.

        Raises:
            RunFinished: they were drawn before, without a store.
            InvalidValue: the curator has given up every step.
        """
        drawn = draw_all(self, store, bar or Reporter())
        if not drawn:
            raise InvalidValue("the curator gave up every step of this run; nothing was released")
        told = {"records": self.plan.records, "dimension": self._dimension}
        return Known.mean([Known.of(reply, self.declared, **told) for reply in drawn])

    def request(self, source: Tensor | PublicSource | None, feature_map: FeatureMap | None) -> Payload:
        """See `ChargedRun`."""
        return StatisticsRequest()

    def answered(
        self, source: Tensor | PublicSource, drawn: DrawnStep, *, feature_map: FeatureMap | None = None
    ) -> AnsweredStep:
        """See `ChargedRun`.

        Raises:
            InvalidValue: always: statistics are no loss.
        """
        raise InvalidValue("class statistics are no loss to descend on; read them with `known`")


def _same(one: FeatureMap, other: FeatureMap) -> bool:
    return torch.equal(one.center.cpu(), other.center.cpu()) and torch.equal(one.scale.cpu(), other.scale.cpu())


def _run_of(site: Site) -> StatisticsRun:
    assert isinstance(site.run, StatisticsRun), "this method opened it"
    return site.run


def _linear(head: Head, feature_map: FeatureMap) -> nn.Linear:
    """The head on raw features: u = (f - center) * scale / (1/2) is part of it, the clip is not."""
    classes, dimension = head.weight.shape
    gain = feature_map.scale.to("cpu", torch.float64) / RECORD_NORM
    weight = torch.from_numpy(head.weight) * gain
    bias = torch.from_numpy(head.bias) - weight @ feature_map.center.to("cpu", torch.float64)
    made = nn.Linear(dimension, classes)
    with torch.no_grad():
        made.weight.copy_(weight)
        made.bias.copy_(bias)
    return made
