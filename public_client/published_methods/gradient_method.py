"""What the methods have in common whose steps release something sliced and, for it, a sanitized gradient."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_between, not_counts, not_one_of, not_positive
from dpswd.public_client.published_methods.aligned_run import AlignedRun
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.sites import Group
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Payload, RunSize
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GRADIENT, SLICED, GradientDeclaration


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """A method whose steps release projections along random directions and the sanitized gradient for them.

    Attributes:
        release: "quantiles" or "rows".
        directions: k.
        coefficients: L of each direction; without meaning for rows.
        target_norm: the public map gives source features this mean norm; records are clipped at 1/2.
        gradient_share: part of a step's price that pays for the gradient.
        clip_norm: C, the largest norm of one record's gradient.
    """

    mechanism = GRADIENT

    release: Literal["quantiles", "rows"] = "quantiles"
    directions: int = 200
    coefficients: int = 2
    target_norm: float = 0.4
    gradient_share: float = 0.5
    clip_norm: float = 0.5

    def problems(self) -> list[str]:
        broken = [
            *super().problems(),
            *not_one_of(self, "release", SLICED),
            *not_counts(self, "directions", "coefficients"),
            *not_between(self, 0.0, 1.0, "gradient_share"),
            *not_positive(self, "target_norm", "clip_norm"),
        ]
        return broken + ["gradient_share is 0; it must be above 0"] * (self.gradient_share == 0.0)

    @property
    def step_features(self) -> int:
        """M, the most source features that a step brings."""
        return self.source_records

    def usual_size(self, description: Description) -> RunSize:
        return RunSize(batch=512, steps=60)

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

    @abc.abstractmethod
    def names(self, extractor: nn.Module) -> tuple[str, ...]:
        """Names of the parameters that receive the sanitized gradient."""

    def ready(self, extractor: nn.Module, record_shape: tuple[int, ...]) -> Declarable:
        """What a run of an extractor declares."""
        return Declarable.of(extractor, record_shape, self.names(extractor))

    def declarable(
        self, extractor: nn.Module, record_shape: tuple[int, ...], classifier: nn.Module | None = None
    ) -> Declarable:
        return self.ready(extractor, record_shape)

    def open(self, curator: Curator, plan: Plan, extractor: nn.Module) -> AlignedRun:
        """See `Method`; the first step's source features make the public map."""
        ready = self.ready(extractor, plan.record_shape)
        return AlignedRun(curator, ready, plan, target_norm=self.target_norm).open()

    def open_runs(self, group: Group, extractor: nn.Module, training: Training) -> None:
        """Opens the sites' runs for one extractor, which charges all of each, or continues those of the directories."""
        ready, norm = self.ready(extractor, group.record_shape()), self.target_norm
        own: dict[str, Any] = {"target_norm": norm, "feature_map": map_from_source(training.features, target_norm=norm)}
        group.charge_each(lambda site: AlignedRun(site.curator, ready, site.plan, **own, checkpoint=site.store).open())
