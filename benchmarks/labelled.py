"""Labelled statistics in this process: the curator's own admission, price, computation and noise, without its service.

The records are given to a mock curator in the place of made ones; a release passes through the wire format, is admitted
and priced as at a curator, and its noise is drawn by the mechanism, from the run's seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from public_client.curator.values import PendingStep, new_request_id
from public_client.methods.statistics import Statistics
from public_client.methods.statistics_head import Known
from public_client.plans.declarable import Declarable
from public_client.testing.mock import MockCurator, mock_description
from shared.kernels.feature_map import FeatureMap
from shared.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration, StatisticsRequest
from shared.mechanisms.interface import FloatArray
from shared.privacy.budget import MAX_EPSILON
from shared.privacy.calibration import calibrate_sigma
from shared.privacy.calibration import epsilon as epsilon_of
from shared.privacy.events import BoundedSum, RunEvent, StepEvent
from shared.protocol.messages import RunParameters

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


class HeldRecords(MockCurator):
    """A mock curator of given records.

    Args:
        site: its records and labels.
        classes: C.
        delta: of its budget, which is as large as a budget can be: the release is priced by its own declaration.
        seed: of the noise.
    """

    def __init__(self, site: Site, *, classes: int, delta: float, seed: int) -> None:
        told = mock_description(
            records=len(site.labels),
            record_shape=site.records.shape[1:],
            epsilon=MAX_EPSILON,
            delta=delta,
            classes=classes,
        )
        super().__init__(told, randomness=np.random.default_rng(seed).bytes, labels=site.labels)
        self._held = site.records

    def take(self, indices: npt.NDArray[np.int64]) -> FloatArray:
        """The records of these numbers."""
        return self._held[indices].astype(np.float32)


def noise_of(epsilon: float | None, delta: float, *, records: int) -> float:
    """Sigma for a sum of sensitivity 1 over all of n records, by the product's accountant; `WITHOUT` for no epsilon."""
    if epsilon is None:
        return WITHOUT

    def run(sigma: float) -> RunEvent:
        return RunEvent(StepEvent(records, records, (BoundedSum(1, 1.0, 1, sigma),)), 1)

    return calibrate_sigma(run, epsilon=epsilon, delta=delta)


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
    feature_map: FeatureMap | None = None,
) -> tuple[Known, float]:
    """One release of a hospital's class statistics.

    Under replace-one the declaration is the method's own. Under add-or-remove the blocks weigh the same and sigma is
    that of the largest norm of one record's vector in the place of the largest distance of two; the curator, which
    knows replace-one alone, prices such a run higher than epsilon.

    Returns:
        What is known, and epsilon of the run under replace-one by the product's accountant, from the admitted event.
    """
    curator = HeldRecords(site, classes=classes, delta=delta, seed=seed)
    ready = Declarable.of(extractor, site.records.shape[1:])
    uploaded, d, n = ready.uploaded(curator), ready.graph.feature_dimension, len(site.labels)
    noise = noise_of(epsilon, delta, records=n)
    weights = method.weights(noise, records=n, dimension=d, classes=classes)
    moved = weights.sensitivity() if relation == REPLACE else weights.record_norm()
    declared = StatisticsDeclaration(
        classes, weights.count, weights.moment, weights.centring, noise * moved, feature_map
    )
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
    return Known.of(reply, declared, records=n, dimension=d), priced
