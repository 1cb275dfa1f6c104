"""Labelled statistics, released once: a linear head on the team's extractor, learned from the hospital's labels.

The head is computed from the noised sums of all hospitals; those that share a model share its weights, and each has its
own class shares.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from dpswd.public_client.data.accuracy import features as features_of
from dpswd.public_client.data.source import collect
from dpswd.public_client.methods.statistics_head import Head, Known, Prior, Values, discriminant, shares_of
from dpswd.public_client.methods.statistics_method import StatisticsMethod, common_map
from dpswd.public_client.plans.recipe import not_one_of
from dpswd.public_client.training.loop import Training, write_histories
from dpswd.public_client.training.sites import Group, Model, Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.models.free_weights import free_count


@dataclass(frozen=True, kw_only=True)
class Statistics(StatisticsMethod):
    """One release of class counts, sums and second moments: a linear head from the hospital's labels.

    Attributes:
        prior: "source": shrink towards the public source's class means and covariance; "none": towards nothing.
        own_shares: sites that share a model each get the class shares of their own counts.
        learns: "all": a discriminant; "shares": the team's classifier is kept, but for the classes' shares, which
            follow from the noised counts. Right where the classes differ in little else, or are no normal laws.
    """

    name = "statistics"

    prior: Literal["source", "none"] = "source"
    own_shares: bool = True
    learns: Literal["all", "shares"] = "all"

    def problems(self) -> list[str]:
        """See `Method`."""
        words = [*not_one_of(self, "prior", ("source", "none")), *not_one_of(self, "learns", ("all", "shares"))]
        return [*super().problems(), *words]

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        """See `Recipe`."""
        what = "the classes' shares in the classifier" if self.learns == "shares" else "the classifier"
        return f"{what}, from the hospital's labels; the extractor stays"

    def weights(
        self, noise: float, *, records: int, dimension: int, classes: int, number_private: bool = False
    ) -> Weights:
        """See `StatisticsMethod`; where shares alone are learned the counts get all that the class sums leave free."""
        if self.learns == "shares":
            plain = Weights(classes, 0.0, 0.0, 0.0)
            return Weights(classes, free_count(plain), 0.0, 0.0)
        told = {"records": records, "dimension": dimension, "classes": classes}
        return super().weights(noise, **told, number_private=number_private)

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`.

        Raises:
            InvalidValue: the classifier does not end in a linear layer whose bias could follow the shares.
        """
        if self.learns == "shares":
            _last(training.model.classifier)
        super().begin(group, training)

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`."""
        known = self.learned(group, training)
        live = [site for site in group.live if site.name in known]
        feature_map = common_map(live)
        together = Known.together([known[site.name] for site in live])
        if self.learns == "shares":
            before = self._source_shares(training, classes=len(together.counts))
            for site in live:
                counted = known[site.name] if self.own_shares else together
                classifier = _with_shares(training.model.classifier, before, shares_of(counted, around=before))
                self._done(site, classifier, training)
            write_histories(group)
            return
        head = discriminant(together, self._prior(training, feature_map, classes=len(together.counts)))
        shares = shares_of(together)
        for site in live:
            own = head
            if self.own_shares and len(live) > 1:
                own = head.with_shares(shares, shares_of(known[site.name], around=shares))
            self._done(site, _linear(own, feature_map).to(training.device), training)
        write_histories(group)

    def _done(self, site: Site, classifier: nn.Module, training: Training) -> None:
        site.model = Model(training.model.extractor, classifier)
        site.steps = site.plan.steps
        training.record(site, site.steps, math.nan)

    def _source_shares(self, training: Training, *, classes: int) -> Values:
        """(C,) of the classes in the public source, to which the classifier was trained."""
        source = collect(training.source, most=max(1, self.source_records // training.ranks.size))
        labels = training.ranks.gather(source.labels.to(training.device)).cpu().numpy()
        counts = np.bincount(labels, minlength=classes) + 0.5  # a class that the source lacks is rare, not absent
        return np.asarray(counts / counts.sum())

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


def _last(classifier: nn.Module) -> nn.Linear:
    """The linear layer whose scores are the classifier's."""
    layer = classifier[-1] if isinstance(classifier, nn.Sequential) and len(classifier) else classifier
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise InvalidValue(
            f"the classifier ends in a {type(layer).__name__}; for learns='shares' it must end in nn.Linear with a bias"
        )
    return layer


def _with_shares(classifier: nn.Module, before: Values, after: Values) -> nn.Module:
    """A copy for records whose classes have other shares (C,)."""
    made = copy.deepcopy(classifier)
    bias = _last(made).bias
    with torch.no_grad():
        bias.add_(torch.from_numpy(np.log(after) - np.log(before)).to(bias))
    return made


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
