"""A hospital's records for tests of a cluster: what is summed of them, and the curator's own arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dpswd.private_curator.cluster.task import Meant
from dpswd.private_curator.core.steps.evaluating import ExtractorSource
from dpswd.private_curator.records import target
from dpswd.private_curator.records.labels import load_labels
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.steps.local import LocalEngine
from dpswd.private_curator.steps.shards import LocalShards
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.shared.core.mechanisms.class_statistics.mechanism import CLASS_STATISTICS, StatisticsDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts
from dpswd.shared.core.mechanisms.linear import LinearRun

VALUES, CLASSES = 16, 3
CPU = torch.device("cpu")


class ClusterRecords:
    """Made records in a home directory, and a sum over all of them."""

    def __init__(self, home: Path, *, records: int) -> None:
        rng = np.random.default_rng(0)
        np.save(home / "records.npy", rng.normal(size=(records, VALUES)).astype(np.float32))
        np.save(home / "labels.npy", rng.integers(CLASSES, size=records).astype(np.uint8))
        (home / "curator.toml").write_text(
            f'[records]\nfile = "records.npy"\nlabels_file = "labels.npy"\nclasses = {CLASSES}\n'
            '[compute]\ndevice = "cpu"\ntorch_threads = 1\n'
        )
        self.settings = configuration.load(home)
        self.data, self.fingerprint = target.load_for_the_first_time(self.settings.records, home=home)
        self.labels = load_labels(self.settings.records, home=home, records=records)
        self.meant = Meant.here(self.data, digest=self.fingerprint.digest, labels=self.labels)
        torch.manual_seed(0)
        module = torch.nn.Linear(VALUES, 5)
        graph = trace(module, (VALUES,))
        sent = graph.to_bytes(), weights_to_bytes(module_weights(module, graph))
        self.source = ExtractorSource("key", ModelFacts.of(graph), lambda: sent)
        facts = Facts(DataSetFacts(records, (VALUES,), CLASSES), self.source.facts)
        self.run = LinearRun(CLASS_STATISTICS, StatisticsDeclaration(CLASSES, 0.7, 0.7, 0.0, 4.0), facts)
        engine = LocalEngine(device=CPU)
        self.alone = LocalShards(engine, records=self.data, labels=self.labels, device=CPU, parallel=1)
