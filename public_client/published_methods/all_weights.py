"""All weights of the extractor, on both sides: the DP-SWD paper's Algorithm 2, and the same with quantiles.

A step releases projections along random directions and, for them, the sanitized gradient. One extractor serves both
sides; every step adds the class loss, the distance's gradient through the source branch (autograd) and its sanitized
gradient through the target branch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_between, not_counts, not_positive
from dpswd.public_client.published_methods.descent import AnsweredStep, DescentRun, PublicStep, align, unfinished
from dpswd.public_client.published_methods.losses import gradient_term, sliced_loss
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import DrawnStep
from dpswd.public_client.training.sites import Group
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import FloatArray, Payload, RunSize
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import (
    GRADIENT,
    GradientDeclaration,
    GradientReply,
    GradientRequest,
)


@dataclass(frozen=True, kw_only=True)
class AllWeights(Method):
    """Trains all weights on both sides, with sliced quantile coefficients.

    Attributes:
        release: what the gradient is taken of; see `SLICED` of its mechanism.
        directions: k.
        coefficients: L of each direction; without meaning for rows.
        target_norm: the public map gives source features this mean norm; records are clipped at 1/2.
        gradient_share: part of a step's price that pays for the gradient.
        clip_norm: C, the largest norm of one record's gradient.
        alignment_weight: of the distance beside the class loss.
        batch_records: the most public records of one step's source batch, of all processes together.
    """

    name = "all-weights"
    mechanism = GRADIENT
    trains_shared = True
    release: ClassVar[str] = "quantiles"

    # The paper's loop: every step trains the classes as well, so it needs thousands of them.
    learning_rate: float = 1e-3
    source_records: int = 128
    directions: int = 200
    coefficients: int = 2
    target_norm: float = 0.25
    gradient_share: float = 0.5
    clip_norm: float = 1.0
    alignment_weight: float = 1.0
    batch_records: int = 256

    def problems(self) -> list[str]:
        return [
            *super().problems(),
            *not_counts(self, "directions", "coefficients", "batch_records"),
            *not_between(self, 0.0, 1.0, "gradient_share"),
            *not_positive(self, "target_norm", "gradient_share", "clip_norm", "alignment_weight"),
        ]

    def usual_size(self, description: Description) -> RunSize:
        return RunSize(batch=128, steps=2000)

    @property
    def step_features(self) -> int:
        """M, the most source features that a step brings."""
        return max(self.batch_records, self.source_records)

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        return "all weights of the extractor, on both sides"

    def declaration(self, run: RunTerms) -> Payload:
        if not run.names:
            raise InvalidValue(f"the extractor has no parameters that {self.name} could adapt")
        share, coefficients = self.gradient_share, self.coefficients if self.release == "quantiles" else 0
        sliced = SlicedDeclaration(
            directions=self.directions,
            sigma=run.sliced_sigma(self.directions, coefficients, share=1.0 - share),
            coefficients=coefficients,
            feature_map=run.feature_map,
        )
        sigma = run.noise * 2.0 * self.clip_norm / math.sqrt(share)
        return GradientDeclaration(
            self.release, sliced, ClippedSum(run.names, self.clip_norm, sigma), self.step_features
        )

    def declarable(
        self, extractor: nn.Module, record_shape: tuple[int, ...], classifier: nn.Module | None = None
    ) -> Declarable:
        return Declarable.of(extractor, record_shape, tuple(name for name, _ in extractor.named_parameters()))

    def open(self, curator: Curator, plan: Plan, extractor: nn.Module) -> AlignedRun:
        return AlignedRun(curator, self.declarable(extractor, plan.record_shape), plan).open()

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
        ready = self.declarable(training.model.extractor.eval(), group.record_shape())
        group.charge_each(lambda site: AlignedRun(site.curator, ready, site.plan, checkpoint=site.store).open())
        for site in group.live:
            site.model = training.model

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`; sites share the weights, and the source features change with each step."""
        extractor, classifier = training.model.extractor, training.model.classifier
        batches = itertools.chain.from_iterable(itertools.repeat(training.source))  # passes in the loader's own orders

        def public() -> PublicStep:
            images, labels = _next_batch(group, batches)
            own = extractor(images.to(training.device))  # (m, d), of this process
            class_loss = functional.cross_entropy(classifier(own), labels.to(training.device))
            return PublicStep(training.ranks.gather(own), class_loss)

        trained = [*group.live[0].run.parameters, *classifier.parameters()]
        optimizer = torch.optim.Adam(trained, lr=self.learning_rate)
        align(group, optimizer, public, training, averaging=self.averaging, weight=self.alignment_weight)


@dataclass(frozen=True, kw_only=True)
class Rows(AllWeights):
    """The DP-SWD paper's Algorithm 2: noisy projections row by row, all weights, both sides."""

    name = "rows"
    release = "rows"


class AlignedRun(DescentRun[GradientReply]):
    """A run of `plan` for one extractor; each step brings the public map of its own source features."""

    def request(self, half: PublicStep) -> Payload:
        sent: FloatArray = half.features.detach().cpu().numpy()
        return GradientRequest(sent, self.adapted_values(), self._map_of(half))

    def answered(self, half: PublicStep, drawn: DrawnStep[GradientReply]) -> AnsweredStep:
        """See `DescentRun`: the value is the estimated distance F of `losses`."""
        reply, declared, batch = drawn.reply, self.declared.sliced, self.plan.batch_size
        loss = sliced_loss(half.features, reply.sliced, declared, feature_map=self._map_of(half), batch=batch)
        # The noised sum over b records of clipped gradients is taken for cotangents divided by the public scale.
        gradient = reply.gradient.to_tensor() * (reply.cotangent_scale / batch)
        return AnsweredStep(loss + gradient_term(self.parameters, gradient), float(loss.detach()))

    def _map_of(self, half: PublicStep) -> FeatureMap:
        """Public statistics follow the weights; the map is a constant of the step, as it is at the curator."""
        assert isinstance(self.plan.method, AllWeights), "its plan's"
        return map_from_source(half.features.detach(), target_norm=self.plan.method.target_norm)


def _next_batch(group: Group, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The loader's next batch; for a step that was under way when the process ended, the batch it was asked with."""
    waiting = any(site.run.pending is not None and not site.stale for site in unfinished(group))
    name = f"batch-{Ranks.current().rank}"
    stored = group.store.read_own(name) if group.store is not None and waiting else None
    if stored is not None:
        return stored["images"], stored["labels"]
    images, labels = next(batches)
    if group.store is not None:
        group.store.write_own(name, {"images": images, "labels": labels})
    return images, labels
