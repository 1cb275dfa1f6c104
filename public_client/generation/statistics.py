"""What methods of generation share that read class statistics: one release of counts, class sums, second moments."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from public_client.curator.stub import Curator
from public_client.data.progress import reporting
from public_client.generation.method import Fitting, GenerationMethod
from public_client.methods.statistics import Statistics
from public_client.methods.statistics_head import Known
from public_client.methods.statistics_method import StatisticsRun
from public_client.plans.declarable import Declarable
from public_client.plans.plan import Plan
from public_client.plans.recipe import RunTerms
from public_client.training.checkpoint import Checkpoint
from public_client.training.run import ChargedRun
from shared.mechanisms.class_statistics.mechanism import CLASS_STATISTICS
from shared.mechanisms.interface import AnyMechanism, Payload

_RELEASED = Statistics(prior="none", moments="yes")
"""A generator always needs the spread of its records; at the weight that is used it is free."""


@dataclass(frozen=True, kw_only=True)
class StatisticsGeneration(GenerationMethod):
    """One release of class statistics with the whole epsilon; whatever is fitted to it costs nothing further."""

    @property
    def mechanism(self) -> AnyMechanism:
        """See `Recipe`."""
        return CLASS_STATISTICS

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`."""
        return _RELEASED.declaration(run)

    def open(self, curator: Curator, plan: Plan, features: nn.Module, store: Checkpoint | None) -> ChargedRun:
        """See `GenerationMethod`."""
        return StatisticsRun(curator, Declarable.of(features, plan.record_shape), plan, checkpoint=store)

    def known(self, run: ChargedRun, fitting: Fitting) -> Known:
        """What the run's releases say together; drawing them costs nothing further."""
        assert isinstance(run, StatisticsRun), "this method opened it"
        with reporting("labelled statistics", run.plan.steps, shown=fitting.progress) as bar:
            return run.known(fitting.store, bar=bar)
