"""Labelled statistics, released once: a linear head on the team's extractor, learned from the hospital's labels.

The head is computed from the noised sums of all hospitals; those that share a model share its weights, and each has its
own class shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.methods.statistics_head import ClassSums, Head, Prior, discriminant, shares_of
from dpswd.public_client.methods.statistics_method import StatisticsMethod, common_map
from dpswd.public_client.plans.recipe import not_one_of
from dpswd.public_client.training.loop import Training, write_histories
from dpswd.public_client.training.sites import Group, Model
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.feature_map import FeatureMap


@dataclass(frozen=True, kw_only=True)
class Statistics(StatisticsMethod):
    """One release of class counts, sums and second moments: a linear head from the hospital's labels.

    Attributes:
        prior: "source": shrink towards the public source's class means and covariance; "none": towards nothing.
        own_shares: sites that share a model each get the class shares of their own counts.
    """

    name = "statistics"

    prior: Literal["source", "none"] = "source"
    own_shares: bool = True

    def problems(self) -> list[str]:
        return [*super().problems(), *not_one_of(self, "prior", ("source", "none"))]

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        return "the classifier, from the hospital's labels; the extractor stays"

    def fit(self, group: Group, training: Training) -> None:
        released = self.learned(group, training)
        live = [site for site in group.live if site.name in released]
        feature_map = common_map(live)
        together = ClassSums.together([released[site.name] for site in live])
        head = discriminant(together, self._prior(training, feature_map, classes=len(together.counts)))
        shares = shares_of(together)
        for site in live:
            own = head
            if self.own_shares and len(live) > 1:
                own = head.with_shares(shares, shares_of(released[site.name], around=shares))
            classifier = _linear(own, feature_map).to(training.device)
            training.deliver(site, Model(training.model.extractor, classifier))
        write_histories(group)

    def _prior(self, training: Training, feature_map: FeatureMap, *, classes: int) -> Prior | None:
        """What the public source says of the classes, in the same features."""
        if self.prior == "none":
            return None
        features, labels = training.source_features(self.source_records)
        u = feature_map.clipped(features.to(feature_map.center.device)).to("cpu", torch.float64) / RECORD_NORM
        return Prior.from_source(u.numpy(), labels.cpu().numpy(), classes=classes)


def _linear(head: Head, feature_map: FeatureMap) -> nn.Linear:
    """The head on raw features: u = (f - center) * scale / (1/2) is part of it, the clip is not."""
    gain = feature_map.scale.to("cpu", torch.float64) / RECORD_NORM
    weight = torch.from_numpy(head.weight) * gain
    bias = torch.from_numpy(head.bias) - weight @ feature_map.center.to("cpu", torch.float64)
    return filled_linear(weight, bias)
