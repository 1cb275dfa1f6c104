"""What methods of generation share that read class statistics: one release of counts, class sums, second moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dpswd.public_client.data.progress import reporting
from dpswd.public_client.generation.method import Fitting, GenerationMethod
from dpswd.public_client.methods.statistics import Statistics
from dpswd.public_client.methods.statistics_head import ClassSums
from dpswd.public_client.methods.statistics_method import StatisticsRun
from dpswd.public_client.plans.recipe import RunTerms
from dpswd.public_client.training.run import Release
from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload

_RELEASED = Statistics(prior="none", moments="yes")
"""A generator always needs the spread of its records; at the weight that is used it is free."""


@dataclass(frozen=True, kw_only=True)
class StatisticsGeneration(GenerationMethod):
    """One release of class statistics with the whole epsilon; whatever is fitted to it costs nothing further."""

    run_kind: ClassVar[type[Release[Any]]] = StatisticsRun

    @property
    def mechanism(self) -> AnyMechanism:
        return CLASS_STATISTICS

    def declaration(self, run: RunTerms) -> Payload:
        return _RELEASED.declaration(run)

    def read(self, run: Release[Any], fitting: Fitting) -> ClassSums:
        """What the run's releases say together; drawing them costs nothing further."""
        assert isinstance(run, StatisticsRun), "this method opened it"
        with reporting("labelled statistics", run.plan.steps, shown=fitting.progress) as bar:
            return run.sums(bar)
