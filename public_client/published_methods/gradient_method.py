"""What the methods have in common whose steps release something sliced and, for it, a sanitized gradient."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.methods.sliced_method import SlicedMethod
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.recipe import RunTerms, not_between, not_one_of, not_positive
from dpswd.public_client.published_methods.aligned_run import AlignedRun
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload, RunSize
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GRADIENT, SLICED, GradientDeclaration


@dataclass(frozen=True, kw_only=True)
class GradientMethod(SlicedMethod):
    """A method whose steps also release the sanitized gradient through the target branch.

    Attributes:
        release: "quantiles" or "rows", for which `coefficients` are without meaning.
        gradient_share: part of a step's price that pays for the gradient.
        clip_norm: C, the largest norm of one record's gradient.
    """

    run_kind: ClassVar[type[AlignedRun]] = AlignedRun

    release: Literal["quantiles", "rows"] = "quantiles"
    gradient_share: float = 0.5
    clip_norm: float = 0.5

    def problems(self) -> list[str]:
        """See `Method`."""
        broken = (
            super().problems() + not_one_of(self, "release", SLICED) + not_between(self, 0.0, 1.0, "gradient_share")
        )
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
        """See `SlicedMethod`."""
        return Declarable.of(extractor, record_shape, self.names(extractor))

    def declarable(
        self,
        extractor: nn.Module,
        record_shape: tuple[int, ...],
        own: nn.Module | None,
        classifier: nn.Module | None = None,
    ) -> Declarable:
        """See `Method`."""
        return self.ready(extractor, record_shape)
