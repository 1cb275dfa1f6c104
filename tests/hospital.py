"""A hospital in memory: a real home directory, ledger, store and pipeline, without a socket."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from declarations import Declared
from torch import nn

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import Request, Run, StoredReply
from dpswd.private_curator.core.ledger.store import no_checkpoint
from dpswd.private_curator.core.steps.evaluating import ExtractorSource, Shards
from dpswd.private_curator.core.steps.randomness import fresh_seed
from dpswd.private_curator.core.steps.release import ReleasePipeline
from dpswd.private_curator.records import target
from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.steps.engine import Engine
from dpswd.private_curator.steps.extraction import ExtractorCatalogue
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.private_curator.steps.shards import LocalShards
from dpswd.private_curator.steps.trial_run import Trials
from dpswd.private_curator.storage import home_directory as home
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.private_curator.storage.uploads import Kind, UploadStore
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.declared import AdmittedRun
from dpswd.shared.core.mechanisms.interface import AnyMechanism, DataSetFacts, Limits, Payload
from dpswd.shared.core.noise.noise import NoiseSource
from dpswd.shared.core.steps.admission import admit_run
from dpswd.shared.core.steps.computing import Laboratory
from dpswd.shared.core.wire.messages import RunParameters, StepRelease, run_digest, step_digest
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.seeded_noise import SeededNoise

CLIENT = "ml-team"
LIMITS = Limits(min_batch_size=1)  # tests count on few records


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
        mechanisms: Mapping[str, AnyMechanism] = ALL_MECHANISMS,
        shards: Shards | None = None,
        pass_speedup: float = 1.0,
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
        self.home = HomeDirectory(directory / "home")
        self.ledger = Ledger.open(self.home.ledger, key=self.home.read_ledger_key(), lock_timeout_s=lock_timeout_s)
        if not self.ledger.clients():
            self.ledger.add_client(CLIENT, "ab" * 32)
        self.mechanisms = mechanisms
        self.facts = DataSetFacts(records=len(records), record_shape=records.shape[1:], classes=classes)
        self.uploads = UploadStore(self.home.uploads, max_bytes=1 << 30, max_objects=100)
        cpu = torch.device("cpu")
        self.engine = engine or LocalEngine(device=cpu)
        self.extractors = ExtractorCatalogue(self.uploads, approval="any", ledger=self.ledger, engine=self.engine)
        self.lab = Laboratory(
            records=target.load(RecordsSettings(file=directory / "records.npy"), home=directory),
            labels=labels,
            noise=noise or SeededNoise(b"n" * 32),
            device=cpu,
            fresh_seed=fresh_seed,
            reached=checkpoint,
        )
        self.pipeline = ReleasePipeline(
            ledger=self.ledger,
            evaluator=self.engine,
            lab=self.lab,
            max_attempts=max_attempts,
            shards=shards or LocalShards(self.engine, records=self.lab.records, labels=labels, device=cpu, parallel=1),
        )
        self.trials = Trials(self.pipeline, pass_speedup=pass_speedup)

    def upload(self, module: nn.Module) -> dict[str, str]:
        graph = trace(module, self.facts.record_shape)
        weights = weights_to_bytes(module_weights(module, graph))
        self.extractors.check(graph.to_bytes(), weights, record_shape=self.facts.record_shape, client=CLIENT)
        return {
            "graph_digest": self.uploads.put(Kind.GRAPH, graph.to_bytes(), client=CLIENT, field="graph"),
            "weights_digest": self.uploads.put(Kind.WEIGHTS, weights, client=CLIENT, field="weights"),
        }

    def declare(self, module: nn.Module, declared: Declared, *, batch_size: int, steps: int = 3) -> RunParameters:
        mechanism, declaration = declared
        return RunParameters(
            **self.upload(module),
            mechanism=mechanism,
            declaration=declaration.to_bytes(),
            batch_size=batch_size,
            steps=steps,
        )

    def extractor(self, parameters: RunParameters) -> ExtractorSource:
        return self.extractors.get(parameters, client=CLIENT)

    def admit(self, parameters: RunParameters) -> AdmittedRun:
        return admit_run(
            parameters,
            mechanisms=self.mechanisms,
            data=self.facts,
            model=self.extractor(parameters).facts,
            limits=LIMITS,
        )

    def open_run(self, parameters: RunParameters, *, request_id: str | None = None) -> Run:
        return self.ledger.open_run(
            Request(client=CLIENT, request_id=request_id or str(uuid.uuid4()), digest=run_digest(parameters)),
            event=self.admit(parameters).event,
            parameters=parameters.to_bytes(),
        )

    def step(
        self,
        run: Run,
        parameters: RunParameters,
        request: Payload | bytes = b"",
        *,
        request_id: str | None = None,
    ) -> StoredReply:
        """One step, with the mechanism's request; no bytes where it needs to bring nothing."""
        payload = request if isinstance(request, bytes) else request.to_bytes()
        return self.pipeline.answer(
            self.admit(parameters).admit_step(payload, limits=LIMITS),
            self.extractor(parameters),
            request=Request(
                client=CLIENT,
                request_id=request_id or str(uuid.uuid4()),
                digest=step_digest(run_id=run.run_id, payload=payload),
            ),
            run_id=run.run_id,
        )

    def reply(self, parameters: RunParameters, stored: StoredReply) -> Any:
        """The mechanism's reply that a stored one holds."""
        return self.mechanisms[parameters.mechanism].reply.from_bytes(StepRelease.from_bytes(stored.reply).payload)

    def close(self) -> None:
        self.ledger.close()
