"""What the methods on sliced releases have in common: what a run declares, and how the runs of a group open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.methods.aligned_run import AlignedRun
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_between, not_counts, not_one_of, not_positive
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.sites import Group
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload, RunSize
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GRADIENT, SLICED, GradientDeclaration


@dataclass(frozen=True, kw_only=True)
class SlicedMethod(Method):
    """A method whose steps release projections along random directions, or coefficients of them.

    Attributes:
        release: "quantiles" or "rows".
        directions: k.
        coefficients: L of each direction; without meaning for rows.
        target_norm: the public map gives source features this mean norm; records are clipped at 1/2.
    """

    release: Literal["quantiles", "rows"] = "quantiles"
    directions: int = 200
    coefficients: int = 2
    target_norm: float = 0.4

    def problems(self) -> list[str]:
        """See `Method`."""
        return [
            *super().problems(),
            *not_one_of(self, "release", SLICED),
            *not_counts(self, "directions", "coefficients"),
            *not_positive(self, "target_norm"),
        ]

    @property
    def mechanism(self) -> AnyMechanism:
        """See `Recipe`."""
        return SLICED[self.release]

    @property
    def published_map_norm(self) -> float | None:
        """See `Method`."""
        return self.target_norm

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`."""
        return self.sliced(run)

    def sliced(self, run: RunTerms, *, share: float = 1.0) -> SlicedDeclaration:
        """The sliced release; `share` is its part of a step's mean squared shift at noise 1."""
        coefficients = self.coefficients if self.release == "quantiles" else 0
        return SlicedDeclaration(
            directions=self.directions,
            sigma=run.sliced_sigma(self.directions, coefficients, share=share),
            coefficients=coefficients,
            feature_map=run.feature_map,
        )

    def names(self, extractor: nn.Module) -> tuple[str, ...]:
        """Names of the parameters that receive the sanitized gradient."""
        return ()

    def declarable(
        self,
        extractor: nn.Module,
        record_shape: tuple[int, ...],
        own: nn.Module | None,
        classifier: nn.Module | None = None,
    ) -> Declarable:
        """See `Method`."""
        return Declarable.of(extractor, record_shape, self.names(extractor))

    def open(self, curator: Curator, plan: Plan, extractor: nn.Module) -> AlignedRun:
        """See `Method`; the first step's source features make the public map."""
        ready = Declarable.of(extractor, plan.record_shape, self.names(extractor))
        return AlignedRun(curator, ready, plan, target_norm=self.target_norm)

    def open_runs(self, group: Group, extractor: nn.Module, training: Training) -> None:
        """Opens the sites' runs for one extractor, which charges all of each, or continues those of the directories."""
        ready = Declarable.of(extractor, group.record_shape(), self.names(extractor))
        feature_map = map_from_source(training.features, target_norm=self.target_norm)
        group.charge_each(
            lambda site: AlignedRun(
                site.curator, ready, site.plan,
                target_norm=self.target_norm, feature_map=feature_map, checkpoint=site.store,
            )
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GradientMethod(SlicedMethod):
    """A method whose steps also release the sanitized gradient through the target branch.

    Attributes:
        gradient_share: part of a step's price that pays for the gradient.
        clip_norm: C, the largest norm of one record's gradient.
    """

    gradient_share: float = 0.5
    clip_norm: float = 0.5

    def problems(self) -> list[str]:
        """See `Method`."""
        broken = super().problems() + not_between(self, 0.0, 1.0, "gradient_share")
        if self.gradient_share == 0.0:
            broken.append("gradient_share is 0; it must be above 0")
        return broken + not_positive(self, "clip_norm")

    @property
    def mechanism(self) -> AnyMechanism:
        """See `Recipe`."""
        return GRADIENT

    @property
    def published_map_norm(self) -> float | None:
        """See `Method`: the gradient follows the model that the last step made."""
        return None

    @property
    def step_features(self) -> int:
        """M, the most source features that a step brings."""
        return self.source_records

    def usual_size(self, description: Description) -> RunSize:
        """See `Recipe`."""
        return RunSize(batch=512, steps=60)

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`."""
        if not run.names:
            raise InvalidValue(f"the extractor has no parameters that {self.name} could adapt")
        share = self.gradient_share
        sliced = self.sliced(run, share=1.0 - share)
        sigma = run.noise * 2.0 * self.clip_norm / math.sqrt(share)
        return GradientDeclaration(
            self.release, sliced, ClippedSum(run.names, self.clip_norm, sigma), self.step_features
        )
