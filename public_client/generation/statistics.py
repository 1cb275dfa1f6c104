"""What methods of generation share that read class statistics: one release of counts, class sums, second moments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dpswd.public_client.data.progress import reporting
from dpswd.public_client.generation.method import Fitting, GenerationMethod
from dpswd.public_client.methods.statistics_head import ClassSums
from dpswd.public_client.methods.statistics_method import StatisticsRun, declared
from dpswd.public_client.plans.recipe import RunTerms
from dpswd.public_client.training.run import Release
from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload
from dpswd.shared.models.free_weights import with_free_counts


@dataclass(frozen=True, kw_only=True)
class StatisticsGeneration(GenerationMethod):
    """One release of class statistics with the whole epsilon; whatever is fitted to it costs nothing further."""

    run_kind: ClassVar[type[Release[Any]]] = StatisticsRun
    moment_weight: ClassVar[float] = math.sqrt(0.5)
    """beta: a generator always needs the spread of its records, and so much of it is free."""

    @property
    def mechanism(self) -> AnyMechanism:
        return CLASS_STATISTICS

    def declaration(self, run: RunTerms) -> Payload:
        return declared(run, with_free_counts(run.classes, self.moment_weight))

    def read(self, run: Release[Any], fitting: Fitting) -> ClassSums:
        """What the run's releases say together; drawing them costs nothing further."""
        assert isinstance(run, StatisticsRun), "this method opened it"
        with reporting("labelled statistics", run.plan.steps, shown=fitting.progress) as bar:
            return run.sums(bar)
