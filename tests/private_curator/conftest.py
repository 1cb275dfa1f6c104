"""A hospital in memory: a real home directory, ledger, store and pipeline, without a socket."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from private_curator.ledger import Ledger, Run, StoredReply
from private_curator.operator import home_directory as home
from private_curator.operator.home_directory import Home
from private_curator.records import target
from private_curator.serving.uploads import Kind, UploadStore
from private_curator.settings.tree import LimitSettings, RecordsSettings
from private_curator.steps import admission
from private_curator.steps.admission import DataSetFacts, Operation, StepContent
from private_curator.steps.extraction import ExtractorCatalogue
from private_curator.steps.release import ReleasePipeline, no_checkpoint
from private_curator.worker.local import LocalEngine
from private_curator.worker.sessions import Engine
from shared.extractor.tracing import trace
from shared.extractor.weights import module_weights, weights_to_bytes
from shared.kernels.noise import NoiseSource, SeededNoise
from shared.protocol.digests import run_digest
from shared.protocol.messages import Critic, Evaluation, Gradient, PublicMap, Quantiles, Release, RunParameters

CLIENT = "ml-team"
LIMITS = LimitSettings()


class NoNoise:
    """Noise of value zero: what is left is the signal on its grid. For tests of the signal only."""

    def grid_gaussian(self, shape, *, sigma, step):
        return np.zeros(shape, dtype=np.int64)


class Hospital:
    """Everything behind the RPCs, with the seams open: noise and checkpoints are arguments."""

    def __init__(
        self,
        directory: Path,
        records: np.ndarray,
        *,
        epsilon: float = 1e4,
        noise: NoiseSource | None = None,
        checkpoint: Callable[[str], None] = no_checkpoint,
        max_attempts: int = 16,
        lock_timeout_s: float = 10.0,
        labels: np.ndarray | None = None,
        classes: int = 0,
        engine: Engine | None = None,
    ) -> None:
        if not (directory / "home").exists():
            np.save(directory / "records.npy", records.astype(np.float32))
            home.create(
                directory / "home",
                records=RecordsSettings(file=directory / "records.npy"),
                epsilon=epsilon,
                delta=1e-5,
                names=["localhost"],
            )
        self.home = Home(directory / "home")
        self.ledger = Ledger.open(self.home.ledger, key=self.home.read_ledger_key(), lock_timeout_s=lock_timeout_s)
        if not self.ledger.clients():
            self.ledger.add_client(CLIENT, "ab" * 32)
        self.records = records.astype(np.float32)
        self.data = target.load(RecordsSettings(file=directory / "records.npy"), home=directory)
        self.facts = DataSetFacts(records=len(records), record_shape=records.shape[1:], classes=classes)
        self.uploads = UploadStore(self.home.uploads, max_bytes=1 << 30, max_objects=100)
        cpu = torch.device("cpu")
        self.engine = engine or LocalEngine(device=cpu)
        self.extractors = ExtractorCatalogue(self.uploads, approval="any", ledger=self.ledger, engine=self.engine)
        self.pipeline = ReleasePipeline(
            ledger=self.ledger,
            data=self.data,
            labels=labels,
            engine=self.engine,
            noise=noise or SeededNoise(b"n" * 32),
            device=cpu,
            max_attempts=max_attempts,
            checkpoint=checkpoint,
        )

    def upload(self, module: nn.Module) -> dict[str, str]:
        graph = trace(module, self.facts.record_shape)
        weights = weights_to_bytes(module_weights(module, graph))
        self.extractors.check(graph.to_bytes(), weights, record_shape=self.facts.record_shape)
        return {
            "graph_digest": self.uploads.put(Kind.GRAPH, graph.to_bytes(), client=CLIENT, field="graph"),
            "weights_digest": self.uploads.put(Kind.WEIGHTS, weights, client=CLIENT, field="weights"),
        }

    def declare(
        self,
        module: nn.Module,
        *,
        release: Release,
        gradient: Gradient | None = None,
        batch_size: int,
        directions: int = 20,
        steps: int = 3,
        feature_map: PublicMap | None = None,
    ) -> RunParameters:
        return RunParameters(
            **self.upload(module),
            directions=directions,
            batch_size=batch_size,
            steps=steps,
            release=release,
            gradient=gradient,
            feature_map=feature_map,
        )

    def open_run(self, parameters: RunParameters) -> Run:
        extractor = self.extractors.get(parameters, client=CLIENT)
        event = admission.admit_run(parameters, data_set=self.facts, extractor=extractor.facts, limits=LIMITS)
        return self.ledger.open_run(
            client=CLIENT,
            request_id=str(uuid.uuid4()),
            digest=run_digest(parameters),
            event=event,
            parameters=parameters.to_message().SerializeToString(deterministic=True),
        )

    def step(
        self,
        run: Run,
        parameters: RunParameters,
        *,
        source: np.ndarray | None = None,
        adapted: bytes = b"",
        request_id: str | None = None,
    ) -> StoredReply:
        if isinstance(parameters.release, Quantiles):
            operation = Operation.RELEASE_QUANTILES
        elif isinstance(parameters.release, Evaluation):
            operation = Operation.EVALUATE_MODEL
        elif isinstance(parameters.release, Critic):
            operation = Operation.RELEASE_CRITIC_GRADIENT
        else:
            operation = Operation.ALIGN_TARGET if parameters.gradient else Operation.RELEASE_PROJECTIONS
        content = StepContent(
            operation=operation,
            run_id=run.run_id,
            request_id=request_id or str(uuid.uuid4()),
            adapted=adapted,
            feature_map=None,
            source=source,
        )
        extractor = self.extractors.get(parameters, client=CLIENT)
        step = admission.admit_step(content, parameters=parameters, extractor=extractor.facts, limits=LIMITS)
        return self.pipeline.answer(step, content=content, client=CLIENT, extractor=extractor)

    def close(self) -> None:
        self.ledger.close()


@pytest.fixture
def make_hospital(tmp_path):
    """Makes hospitals; a second call reopens the first one's home."""
    opened: list[Hospital] = []

    def make(records: np.ndarray, *, directory: Path = tmp_path, **options) -> Hospital:
        for earlier in opened:
            earlier.close()
        directory.mkdir(exist_ok=True)
        opened.append(Hospital(directory, records, **options))
        return opened[-1]

    yield make
    for hospital in opened:
        hospital.close()


@pytest.fixture
def no_noise():
    return NoNoise()
