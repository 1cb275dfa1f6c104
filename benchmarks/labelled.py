"""Labelled statistics in this process: the curator's own admission, price, computation and noise, without its service.

The records are given to a mock curator in the place of made ones; a release passes through the wire format, is admitted
and priced as at a curator, and its noise is drawn by the mechanism, from the run's seed.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from dpswd.public_client.curator.values import PendingStep, new_request_id
from dpswd.public_client.methods.statistics import Statistics
from dpswd.public_client.methods.statistics_head import ClassSums
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights, root_up
from dpswd.shared.core.mechanisms.class_statistics.mechanism import (
    CLASS_STATISTICS,
    StatisticsDeclaration,
    StatisticsRequest,
)
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, FloatArray, ModelFacts, RunSize
from dpswd.shared.core.privacy.budget import MAX_EPSILON
from dpswd.shared.core.privacy.events import BoundedSum, RunEvent, StepEvent
from dpswd.shared.core.wire.messages import RunParameters

REPLACE, ADD = "replace-one", "add-or-remove"
WITHOUT = 0.05
"""Noise, in units of the sensitivity, that stands for none: epsilon is then in the hundreds."""


@dataclass(frozen=True, eq=False)
class Site:
    """A hospital.

    Attributes:
        records: (n, ...), float32, or float16 to save memory.
        labels: (n,) classes.
    """

    records: npt.NDArray[np.floating[Any]]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class SizeFacts:
    """What the price depends on.

    Attributes:
        records: n.
        dimension: d.
        classes: C.
    """

    records: int
    dimension: int
    classes: int

    @property
    def whole(self) -> Facts:
        """As the mechanism takes it; the records' own shape does not enter the price."""
        return Facts(DataSetFacts(self.records, (1,), self.classes), ModelFacts((1,), self.dimension, {}))


class HeldRecords(MockCurator):
    """A mock curator of given records.

    Args:
        site: its records and labels.
        classes: C.
        delta: of its budget, which is as large as a budget can be: the release is priced by its own declaration.
        seed: of the noise.
    """

    def __init__(self, site: Site, *, classes: int, delta: float, seed: int) -> None:
        description = mock_description(
            records=len(site.labels),
            record_shape=site.records.shape[1:],
            epsilon=MAX_EPSILON,
            delta=delta,
            classes=classes,
        )
        super().__init__(description, randomness=np.random.default_rng(seed).bytes, labels=site.labels)
        self._held = site.records

    def take(self, indices: npt.NDArray[np.int64]) -> FloatArray:
        """The records of these numbers."""
        return self._held[indices].astype(np.float32)


def record_norm(weights: Weights) -> float:
    """The largest norm of one record's vector, rounded up: what adding or removing one record moves the sum by.

    Curators price replacements, where n is public; this is for comparisons with work that prices additions.
    """
    return root_up((1.0 - weights.overlap) * (1.0 + weights.count * weights.count) + weights.moment * weights.moment)


@functools.cache
def declaration_of(
    method: Statistics, *, relation: str, epsilon: float | None, delta: float, facts: SizeFacts
) -> StatisticsDeclaration:
    """What a run declares that costs epsilon under a relation; nearly without noise for no epsilon.

    Under replace-one it is the method's own declaration at the product's price. Under add-or-remove the blocks weigh
    the same, but what one record moves is the largest norm of its vector, in the place of the largest distance of two.
    """

    def declared(noise: float) -> StatisticsDeclaration:
        weights = method.weights(noise, records=facts.records, dimension=facts.dimension, classes=facts.classes)
        moved = weights.sensitivity() if relation == REPLACE else record_norm(weights)
        return StatisticsDeclaration(facts.classes, weights.count, weights.moment, weights.centring, noise * moved)

    def run(noise: float) -> RunEvent:
        declaration = declared(noise)
        (part,) = CLASS_STATISTICS.parts(declaration, RunSize(facts.records), facts.whole)
        assert isinstance(part, BoundedSum)
        if relation == ADD:
            part = replace(part, sensitivity=record_norm(declaration.weights))
        return RunEvent(StepEvent(facts.records, facts.records, (part,)), 1)

    return declared(WITHOUT if epsilon is None else calibrate_sigma(run, epsilon=epsilon, delta=delta))


def released(
    site: Site,
    extractor: nn.Module,
    *,
    classes: int,
    epsilon: float | None,
    delta: float,
    seed: int,
    method: Statistics,
    relation: str = REPLACE,
) -> tuple[ClassSums, float]:
    """One release of a hospital's class statistics.

    Returns:
        What is known, and epsilon of the run under replace-one by the product's accountant, from the admitted event:
        what was asked under replace-one, and more under add-or-remove, which the curator does not know.
    """
    curator = HeldRecords(site, classes=classes, delta=delta, seed=seed)
    ready = Declarable.of(extractor, site.records.shape[1:])
    uploaded, d, n = ready.uploaded(curator), ready.graph.feature_dimension, len(site.labels)
    declared = declaration_of(method, relation=relation, epsilon=epsilon, delta=delta, facts=SizeFacts(n, d, classes))
    parameters = RunParameters(
        graph_digest=uploaded.graph_digest,
        weights_digest=uploaded.weights_digest,
        mechanism=CLASS_STATISTICS.name,
        declaration=declared.to_bytes(),
        batch_size=n,
        steps=1,
    )
    run = curator.open_run(parameters, request_id=new_request_id())
    answer = curator.send(PendingStep(run.run_id, new_request_id(), StatisticsRequest().to_bytes()))
    reply = CLASS_STATISTICS.reply.from_bytes(answer.payload)
    priced = math.nan if epsilon is None else epsilon_of(curator.charges[0].run.event, delta)
    return ClassSums.of(reply, declared, records=n, dimension=d), priced
