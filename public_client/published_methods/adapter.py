"""A target-side adapter, trained by sanitized gradients.

The source-trained extractor and classifier stay as they are. A copy of the extractor with a few adapter parameters is
what private records go through; the sanitized gradient alone trains these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.recipe import not_counts, not_one_of
from dpswd.public_client.published_methods.adapters import ADAPTERS, adapter_names, with_adapters
from dpswd.public_client.published_methods.descent import PublicStep, align, descent_of
from dpswd.public_client.published_methods.gradient_method import GradientMethod
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.sites import Group, Model


@dataclass(frozen=True, kw_only=True)
class Adapter(GradientMethod):
    """Trains a target-side adapter by sanitized gradients.

    Attributes:
        adapter: kind of the adapter (`published_methods.adapting`); "auto" by the shape of the records.
        rank: of a "low-rank" adapter.
        knots: of each column of a "monotone" adapter.
    """

    name = "adapter"
    target_side = True

    adapter: Literal["auto", "warp", "channels", "features", "low-rank", "monotone"] = "auto"
    rank: int = 4
    knots: int = 5

    def problems(self) -> list[str]:
        broken = super().problems() + not_one_of(self, "adapter", ADAPTERS) + not_counts(self, "rank", "knots")
        if self.knots == 1:
            broken.append("knots is 1; it must be at least 2")
        return broken

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        kind = "" if self.adapter == "auto" else f" ({self.adapter})"
        return f"a target-side adapter{kind}; the classifier and the source side stay"

    def names(self, extractor: nn.Module) -> tuple[str, ...]:
        return adapter_names(extractor)

    def declarable(
        self,
        extractor: nn.Module,
        record_shape: tuple[int, ...],
        own: nn.Module | None,
        classifier: nn.Module | None = None,
    ) -> Declarable:
        return self.ready(self._adapted(extractor, record_shape, own), record_shape)

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`; the source side is fixed, so its features go up once."""
        shape = group.record_shape()
        target = self._adapted(training.model.extractor, shape, training.adapter, training.source)
        self.open_runs(group, target.to(training.device), training)

        group.each(lambda site: descent_of(site).upload(training.features))
        group.install(Model(target, training.model.classifier))  # only now: a refused run leaves the model as it was

    def fit(self, group: Group, training: Training) -> None:
        align(
            group,
            torch.optim.Adam(group.live[0].run.parameters, lr=self.learning_rate),
            lambda: PublicStep(training.features),
            lambda answer: 1.0 / answer.scale,  # steps of comparable size, whatever is left of the distance
            training,
            averaging=self.averaging,
        )

    def _adapted(
        self, extractor: nn.Module, shape: tuple[int, ...], own: nn.Module | None, source: Batches | None = None
    ) -> nn.Module:
        return with_adapters(
            extractor, shape, kind=self.adapter, rank=self.rank, knots=self.knots, source=source, own=own
        )
