"""What methods of generation share that read class statistics: one release of counts, class sums, second moments."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dpswd.public_client.data.progress import reporting
from dpswd.public_client.generation.method import Fitting, GenerationMethod
from dpswd.public_client.methods.statistics_head import ClassSums
from dpswd.public_client.methods.statistics_method import StatisticsRun
from dpswd.public_client.plans.recipe import RunTerms
from dpswd.public_client.training.run import Release
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload
from dpswd.shared.models.free_weights import free_count


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
        plain = Weights(run.classes, 0.0, self.moment_weight, 0.0)
        weights = replace(plain, count=free_count(plain))
        return StatisticsDeclaration(
            classes=run.classes, count_weight=weights.count, moment_weight=weights.moment, centring=0.0,
            sigma=run.noise * weights.sensitivity(), feature_map=run.feature_map,
        )  # fmt: skip

    def read(self, run: Release[Any], fitting: Fitting) -> ClassSums:
        """What the run's releases say together; drawing them costs nothing further."""
        assert isinstance(run, StatisticsRun), "this method opened it"
        with reporting("labelled statistics", run.plan.steps, shown=fitting.progress) as bar:
            return run.sums(bar)
