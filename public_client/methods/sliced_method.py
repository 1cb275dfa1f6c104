"""What the methods on sliced releases have in common: what a run declares, and how the runs of a group open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.methods.sliced_run import SlicedRun
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_counts, not_positive
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.sites import Group
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload
from dpswd.shared.core.mechanisms.quantiles.mechanism import QUANTILES
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration


@dataclass(frozen=True, kw_only=True)
class SlicedMethod(Method):
    """A method whose steps release quantile coefficients along random directions.

    Attributes:
        directions: k.
        coefficients: L of each direction.
        target_norm: the public map gives source features this mean norm; records are clipped at 1/2.
        run_kind: what its runs are.
    """

    run_kind: ClassVar[type[SlicedRun]] = SlicedRun

    directions: int = 200
    coefficients: int = 2
    target_norm: float = 0.4

    def problems(self) -> list[str]:
        """See `Method`."""
        return [
            *super().problems(),
            *not_counts(self, "directions", "coefficients"),
            *not_positive(self, "target_norm"),
        ]

    @property
    def mechanism(self) -> AnyMechanism:
        """See `Recipe`."""
        return QUANTILES

    @property
    def published_map_norm(self) -> float | None:
        """See `Method`."""
        return self.target_norm

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`."""
        return SlicedDeclaration(
            directions=self.directions,
            sigma=run.sliced_sigma(self.directions, self.coefficients),
            coefficients=self.coefficients,
            feature_map=run.feature_map,
        )

    def ready(self, extractor: nn.Module, record_shape: tuple[int, ...]) -> Declarable:
        """What a run of an extractor declares, its adapters within it."""
        return Declarable.of(extractor, record_shape)

    def open(self, curator: Curator, plan: Plan, extractor: nn.Module) -> SlicedRun:
        """See `Method`; the first step's source features make the public map."""
        ready = self.ready(extractor, plan.record_shape)
        return self.run_kind(curator, ready, plan, target_norm=self.target_norm)

    def open_runs(self, group: Group, extractor: nn.Module, training: Training) -> None:
        """Opens the sites' runs for one extractor, which charges all of each, or continues those of the directories."""
        ready = self.ready(extractor, group.record_shape())
        feature_map = map_from_source(training.features, target_norm=self.target_norm)
        group.charge_each(
            lambda site: self.run_kind(
                site.curator, ready, site.plan,
                target_norm=self.target_norm, feature_map=feature_map, checkpoint=site.store,
            )
        )  # fmt: skip
