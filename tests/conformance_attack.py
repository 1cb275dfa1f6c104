"""Neighbouring data sets against a mechanism without noise: how far the released integers move, and how far they may.

A part may depend on what earlier parts released. So the neighbour's earlier parts get exactly the noise with which they
release the same integers, and only the part in question shows its own shift, as the composition of parts assumes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from conformance_cases import CLASSES, INPUTS, Case

from dpswd.public_client.extractor.tracing import module_weights, trace
from dpswd.shared.core.mechanisms.interface import AnyMechanism, DataSetFacts, Facts, ModelFacts, RunSize, Step
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray, NoiseSource
from dpswd.shared.core.privacy.events import (
    BoundedSum,
    ClippedVector,
    Part,
    QuantileCoefficients,
    RowProjections,
    SanitizedGradient,
)
from dpswd.shared.core.steps.computing import SecretSample
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.session import DirectSession

CPU = torch.device("cpu")


class Scripted:
    """Noise that is given beforehand, release by release; zeros after that."""

    def __init__(self, script: list[np.ndarray]) -> None:
        self._script = list(script)

    def grid_gaussian(self, shape, *, sigma, step):
        drawn = self._script.pop(0) if self._script else np.zeros(shape, dtype=np.int64)
        assert drawn.shape == shape, "each part asks for noise once, in the order of the parts"
        return drawn


@dataclass(frozen=True)
class Table:
    """Records in memory, in their order."""

    values: np.ndarray

    @property
    def count(self) -> int:
        return len(self.values)

    def take(self, indices: np.ndarray) -> np.ndarray:
        return self.values[indices]


@dataclass(frozen=True)
class Labelled:
    """A data set, the sample of one step.

    Attributes:
        records: (b, inputs) float32.
        labels: (b,).
    """

    records: np.ndarray
    labels: np.ndarray

    def replaced(self, record: np.ndarray, label: int) -> Labelled:
        """The neighbour whose first record is another one."""
        records, labels = self.records.copy(), self.labels.copy()
        records[0], labels[0] = record, label
        return Labelled(records, labels)


class Bench:
    """One case's mechanism on given samples, on a device."""

    def __init__(
        self,
        mechanism: AnyMechanism,
        case: Case,
        *,
        records: int,
        factor: float = 1.0,
        device: torch.device = CPU,
        extractor_device: torch.device | None = None,
    ) -> None:
        module = case.module(factor)
        graph = trace(module, (INPUTS,))
        self._extractor = Extractor(graph, module_weights(module, graph), device=extractor_device or device)
        self.mechanism, self.case, self._device = mechanism, case, device
        self.facts = Facts(
            DataSetFacts(records=records, record_shape=(INPUTS,), classes=CLASSES),
            ModelFacts((INPUTS,), case.outputs, graph.parameter_shapes),
        )

    def reply(self, sample: Labelled, noise: NoiseSource, *, seed: bytes):
        """The mechanism's reply on this very sample."""
        step = Step(
            run=RunSize(len(sample.records)),
            facts=self.facts,
            sample=SecretSample(Table(sample.records), sample.labels, None),
            model=DirectSession(self._extractor),
            noise=noise,
            device=self._device,
            fresh_seed=lambda: seed,
            reached=lambda _: None,
        )
        return self.mechanism.compute(self.case.declaration, self.case.request, step)

    def released(self, sample: Labelled, script: list[np.ndarray], seed: bytes) -> tuple[GridArray, ...]:
        return self.case.released(self.reply(sample, Scripted(script), seed=seed))

    def parts(self, batch: int) -> tuple[Part, ...]:
        return self.mechanism.parts(self.case.declaration, RunSize(batch), self.facts)

    def squared_shifts(self, one: Labelled, other: Labelled, seed: bytes) -> list[float]:
        """By how much each part's integers move, squared, in units of its noise variance."""
        first, script, shifts = self.released(one, [], seed), [], []
        parts = self.parts(len(one.records))
        assert len(parts) == len(first)
        for place, part in enumerate(parts):
            second = self.released(other, script, seed)[place]
            assert second.step == first[place].step == part.grid_step
            gap = first[place].values.astype(np.int64) - second.values.astype(np.int64)
            shifts.append(float(np.square(gap * part.grid_step / part.sigma).sum()))
            script.append(gap)
        return shifts

    def clipped(self, sample: Labelled) -> torch.Tensor:
        """(d,) clipped features of the first record, float64, with its label where the release holds it."""
        raw = DirectSession(self._extractor).features(sample.records[:1])
        mapped = self.case.feature_map or FeatureMap.identity(raw.shape[1])
        declared = self.case.declaration
        if isinstance(declared, SlicedDeclaration) and declared.label_weight:
            label = torch.zeros(1, CLASSES)
            label[0, int(sample.labels[0])] = declared.label_weight
            raw = torch.cat([raw, label], dim=1)
            more = torch.zeros(CLASSES)
            mapped = FeatureMap(torch.cat([mapped.center, more]), torch.cat([mapped.scale, more + 1.0]))
        return mapped.clipped(raw)[0].to(torch.float64)

    def accounted(self, one: Labelled, other: Labelled, seed: bytes) -> tuple[list[float], float]:
        """The largest squared shift that the price allows for each part, given U, and ||z|| of the replaced record."""
        batch = len(one.records)
        z = self.clipped(one) - self.clipped(other)
        allowed = []
        for part in self.parts(batch):
            if isinstance(part, RowProjections | QuantileCoefficients):
                U = directions(seed, part.feature_dimension, part.directions, dtype=torch.float64)
                along = float((z @ U).norm())
                allowed.append((math.sqrt(_weight(part, batch)) * along + _rounding(part)) ** 2 / part.sigma**2)
            else:
                allowed.append((_sensitivity(part) + _rounding(part)) ** 2 / part.sigma**2)
        return allowed, float(z.norm())


# The formulas of docs/privacy, written a second time.


def _weight(part: RowProjections | QuantileCoefficients, batch: int) -> float:
    return 1.0 if isinstance(part, RowProjections) else min(1.0, (2 * part.coefficients - 1) / batch)


def _sensitivity(part: Part) -> float:
    if isinstance(part, SanitizedGradient | ClippedVector):
        return 2.0 * part.clip_norm
    assert isinstance(part, BoundedSum)
    return part.sensitivity


def _rounding(part: Part) -> float:
    """The largest distance that rounding to the grid adds."""
    match part:
        case RowProjections():
            values = part.directions
        case QuantileCoefficients():
            values = part.directions * part.coefficients
        case SanitizedGradient():
            values = part.parameters
        case BoundedSum():
            values = part.changed
        case ClippedVector():
            values = part.values
    return part.grid_step * math.sqrt(values)


def shift_of(part: Part, batch: int) -> tuple[float, float]:
    """(a, c) with a squared shift of at most (a sqrt(H) + c)^2: without H, a = 0."""
    if isinstance(part, RowProjections | QuantileCoefficients):
        return math.sqrt(_weight(part, batch)) / part.sigma, _rounding(part) / part.sigma
    return 0.0, (_sensitivity(part) + _rounding(part)) / part.sigma


# ---- the search for bad neighbours -----------------------------------------------------------------------------------


def neighbours(batch: int, rng: np.random.Generator) -> Iterator[tuple[Labelled, Labelled]]:
    """Pairs of data sets that differ in their first record: random ones, opposite ones, saturating and broken ones."""
    broken = [np.full(INPUTS, value, np.float32) for value in (np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0)]
    mixed = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45], dtype=np.float32)
    for scale in (1e-3, 1.0, 30.0, 1e4, 1e30):
        drawn = (scale * rng.normal(size=(2, INPUTS))).astype(np.float32)
        for one, other in ((drawn[0], drawn[1]), (drawn[0], -drawn[0]), (drawn[0], mixed)):
            yield from _among(one, other, batch, rng)
    ordinary = rng.normal(size=INPUTS).astype(np.float32)
    for record in broken:
        yield from _among(ordinary, record, batch, rng)


def _among(one: np.ndarray, other: np.ndarray, batch: int, rng: np.random.Generator):
    """The two records among random others, among copies of the first, and among records of nothing."""
    labels = rng.integers(CLASSES, size=batch)
    random = rng.normal(size=(batch, INPUTS)).astype(np.float32)
    for rest in (random, np.tile(one, (batch, 1)), np.zeros((batch, INPUTS), np.float32)):
        base = Labelled(rest, labels).replaced(one, 0)
        yield base, base.replaced(other, 1)


def climbed(pair: tuple[Labelled, Labelled], rng: np.random.Generator, size: float) -> tuple[Labelled, Labelled]:
    """A pair near this one: both records moved at random, by their own size, now and then with other labels."""
    one, other = pair
    moved = []
    for sample in (one, other):
        record = sample.records[0]
        finite = np.nan_to_num(record, nan=0.0, posinf=1e30, neginf=-1e30)
        step = size * max(float(np.abs(finite).max()), 1e-3) * rng.normal(size=INPUTS)
        label = int(rng.integers(CLASSES)) if rng.random() < 0.2 else int(sample.labels[0])
        moved.append((np.clip(finite + step, -3e38, 3e38).astype(np.float32), label))
    return one.replaced(*moved[0]), one.replaced(*moved[1])
