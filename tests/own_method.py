"""A method that only tests define, over the mechanism of `own_mechanism`, which only tests define too.

It moves the target's features by the difference of the means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from own_mechanism import CLIPPED_MEAN, MeanDeclaration, MeanRequest
from torch import Tensor, nn

from dpswd import Method
from dpswd.public_client.plans.recipe import not_positive
from dpswd.public_client.published_methods.descent import AnsweredStep, DescentRun, PublicStep, align
from dpswd.public_client.training.run import DrawnStep
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.mechanisms.interface import RunSize

BATCH, STEPS = 50, 5
TAG = 7
"""What each step brings, and its reply repeats."""


@dataclass(frozen=True, kw_only=True)
class MatchMeans(Method):
    """Moves the target's features until their mean is the source's."""

    name = "match-means"

    clip_norm: float = 4.0

    def problems(self):
        return super().problems() + not_positive(self, "clip_norm")

    @property
    def mechanism(self):
        return CLIPPED_MEAN

    def usual_size(self, description):
        return RunSize(batch=BATCH, steps=STEPS)

    def declaration(self, run):
        return MeanDeclaration(self.clip_norm, 2.0 * self.clip_norm * run.noise)

    def open(self, curator, plan, extractor):
        ready = self.declarable(extractor, plan.record_shape)
        return MeansRun(curator, ready, plan, move=Move(ready.graph.feature_dimension)).open()

    def begin(self, group, training):
        shape = group.record_shape()
        ready = self.declarable(training.model.extractor, shape)
        move = Move(ready.graph.feature_dimension)

        group.charge_each(
            lambda site: MeansRun(site.curator, ready, site.plan, move=move, checkpoint=site.store).open()
        )
        for site in group.live:
            site.model = Model(nn.Sequential(training.model.extractor, move).eval(), training.model.classifier)

    def fit(self, group, training):
        optimizer = torch.optim.Adam(group.live[0].run.move.parameters(), lr=self.learning_rate)
        step = PublicStep(training.features)
        align(group, optimizer, lambda: step, training, averaging=self.averaging)


class Move(nn.Module):
    """Adds one number to each feature."""

    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, features)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.layer.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def parameters(self, recurse=True):
        return iter([self.layer.bias])


class MeansRun(DescentRun):
    """A run of clipped means; `move` is what its loss moves.

    Attributes:
        drawn: every step that was answered.
    """

    def __init__(self, *parts, move, **options):
        self.move = move
        self.drawn: list[DrawnStep] = []
        super().__init__(*parts, **options)

    def request(self, half):
        return MeanRequest(TAG)

    def answered(self, half, drawn):
        self.drawn.append(drawn)
        target = drawn.reply.total.to_tensor() / self.plan.batch_size
        loss = (target + self.move.layer.bias - half.features.mean(dim=0)).square().sum()
        return AnsweredStep(loss, float(loss.detach()))
