"""Steps on made records, as function calls: what `benchmarks.device` measures, and how."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from dpswd.private_curator.core.steps.denormals import flushed_denormals
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.private_curator.steps.engine import Engine
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.declared import AdmittedRun, AdmittedStep, Asked
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Limits, ModelFacts, Payload
from dpswd.shared.core.noise.keystream import KEY_BYTES
from dpswd.shared.core.steps.admission import admit_run
from dpswd.shared.core.steps.computing import Laboratory, computed
from dpswd.shared.core.wire.messages import RunParameters
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientRequest

CLASSES = 10
_FEWEST, _MOST = 3, 50  # times that each thing is measured
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One kind of step.

    Attributes:
        name: for the table.
        module: the extractor.
        shape: of a record.
        records: n.
        batch: b; n for all records.
        mechanism: the release.
        declared: by the run.
    """

    name: str
    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    records: int
    batch: int
    mechanism: str
    declared: Payload


def name_of(device: torch.device) -> str:
    """For a person."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "NO CUDA DEVICE, its path on the CPU"


def features() -> nn.Module:
    """Records that are features already."""
    return nn.Sequential(nn.Flatten())


@dataclass(frozen=True)
class Held:
    """Made records in memory, as a curator's are in the file cache."""

    values: np.ndarray

    @property
    def count(self) -> int:
        return len(self.values)

    def take(self, indices: np.ndarray) -> np.ndarray:
        return self.values[indices]


@dataclass(frozen=True)
class Ready:
    """A case on made records, to be computed in this process.

    Attributes:
        case: what it is.
        run: admitted, as a curator admits it.
        extractor: the run's.
        lab: on the CPU, with its own noise.
        request: of every step.
    """

    case: Case
    run: AdmittedRun
    extractor: ExtractorSource
    lab: Laboratory
    request: AdmittedStep

    @classmethod
    def of(cls, case: Case) -> Ready:
        module = case.module()
        graph = trace(module, case.shape)
        weights = weights_to_bytes(module_weights(module, graph))
        facts = ModelFacts.of(graph)
        parameters = RunParameters("a" * 64, "b" * 64, case.mechanism, case.declared.to_bytes(), case.batch, 1)
        data = DataSetFacts(case.records, case.shape, CLASSES)
        run = admit_run(parameters, mechanisms=ALL_MECHANISMS, data=data, model=facts, limits=Limits())
        rng = np.random.default_rng(3)
        step = run.asked(run.synthetic())
        if case.mechanism == "gradient":
            step = Asked(run, GradientRequest(rng.random((case.batch, facts.feature_dimension), dtype=np.float32)))
        lab = Laboratory(
            records=Held(rng.standard_normal((case.records, *case.shape), dtype=np.float32)),
            labels=np.arange(case.records, dtype=np.int64) % CLASSES,
            noise=SystemNoise(),
            device=CPU,
            fresh_seed=lambda: os.urandom(KEY_BYTES),
            reached=lambda _: None,
        )
        return cls(case, run, ExtractorSource(case.name, facts, lambda: (graph.to_bytes(), weights)), lab, step)

    def step(self, engine: Engine, lab: Laboratory) -> bytes:
        with flushed_denormals(), engine.session(self.extractor) as session:
            return computed(self.request, session, lab)


def in_turn(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median seconds of each call; they take turns, after a round that is not counted."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    end = time.monotonic() + seconds
    for turn in range(_MOST + 1):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            if turn:
                spent[name].append(time.perf_counter() - begun)
        if turn >= _FEWEST and time.monotonic() > end:
            break
    return {name: statistics.median(times) for name, times in spent.items()}
