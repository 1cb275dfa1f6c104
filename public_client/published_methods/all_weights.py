"""All weights of the extractor, on both sides: the DP-SWD paper's Algorithm 2, and the same with quantiles.

One extractor serves both sides; every step adds the class loss, the distance's gradient through the source branch
(autograd) and its sanitized gradient through the target branch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.plans.recipe import not_counts, not_positive
from dpswd.public_client.published_methods.descent import PublicStep, align
from dpswd.public_client.published_methods.gradient_method import GradientMethod
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.sites import Group
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import RunSize


@dataclass(frozen=True, kw_only=True)
class AllWeights(GradientMethod):
    """Trains all weights on both sides, with sliced quantile coefficients.

    Attributes:
        alignment_weight: of the distance beside the class loss.
        batch_records: the most public records of one step's source batch, of all processes together.
    """

    name = "all-weights"
    trains_shared = True

    # The paper's loop: every step trains the classes as well, so it needs thousands of them.
    learning_rate: float = 1e-3
    target_norm: float = 0.25
    clip_norm: float = 1.0
    source_records: int = 128
    alignment_weight: float = 1.0
    batch_records: int = 256

    def problems(self) -> list[str]:
        return super().problems() + not_positive(self, "alignment_weight") + not_counts(self, "batch_records")

    def usual_size(self, description: Description) -> RunSize:
        return RunSize(batch=128, steps=2000)

    @property
    def step_features(self) -> int:
        return max(self.batch_records, self.source_records)

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        return "all weights of the extractor, on both sides"

    def names(self, extractor: nn.Module) -> tuple[str, ...]:
        return tuple(name for name, _ in extractor.named_parameters())

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`.

        Raises:
            InvalidValue: the source's batches are larger than the plan's `batch_records`; nothing was spent.
        """
        images, _ = next(iter(training.source))
        if (count := len(images) * training.ranks.size) > self.step_features:
            raise InvalidValue(
                f"the source's batches have {count} records; a step of this plan brings at most {self.step_features}: "
                f"plan with batch_records={count}, or load smaller batches"
            )
        self.open_runs(group, training.model.extractor.eval(), training)
        group.install(training.model)

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`; sites share the weights, and the source features change with each step."""
        extractor, classifier = training.model.extractor, training.model.classifier
        batches = _endless(training.source)

        def public() -> PublicStep:
            images, labels = _next_batch(group, batches)
            own = extractor(images.to(training.device))  # (m, d), of this process
            class_loss = functional.cross_entropy(classifier(own), labels.to(training.device))
            features = training.ranks.gather(own)
            # Public statistics follow the weights; the map is a constant of the step, as it is at the curator.
            feature_map = map_from_source(features.detach(), target_norm=self.target_norm)
            return PublicStep(features, feature_map, class_loss)

        trained = [*group.live[0].run.parameters, *classifier.parameters()]
        optimizer = torch.optim.Adam(trained, lr=self.learning_rate)
        align(group, optimizer, public, training, averaging=self.averaging, weight=self.alignment_weight)


@dataclass(frozen=True, kw_only=True)
class Rows(AllWeights):
    """The DP-SWD paper's Algorithm 2: noisy projections row by row, all weights, both sides."""

    name = "rows"

    release: Literal["quantiles", "rows"] = "rows"


def _next_batch(group: Group, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The loader's next batch; for a step that was under way when the process ended, the batch it was asked with."""
    waiting = any(site.run.has_pending and not site.stale for site in group.unfinished)
    stored = group.store.read_batch() if group.store is not None and waiting else None
    if stored is not None:
        return stored
    images, labels = next(batches)
    if group.store is not None:
        group.store.write_batch(images, labels)
    return images, labels


def _endless(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Passes over the source again and again, each in the loader's own order."""
    return itertools.chain.from_iterable(itertools.repeat(batches))
