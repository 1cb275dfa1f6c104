"""Trains on a long stream of public records, in a process of its own: prints what of it was held at most, in MiB.

``python streaming_training.py RECORDS``
"""

from __future__ import annotations

import resource
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from dpswd import DomainAdaptation, Hospital, MockCurator, Replay, mock_description

D, CLASSES, BATCH = 64, 3, 1000


class Shards(IterableDataset):
    """As a loader of tar files or of a table in parts gives them: batch after batch, of no known length."""

    def __init__(self, records: int) -> None:
        self.records = records

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        means = 2.0 * torch.randn(CLASSES, D, generator=generator)
        for _ in range(self.records // BATCH):
            labels = torch.randint(CLASSES, (BATCH,), generator=generator)
            yield means[labels] + torch.randn(BATCH, D, generator=generator), labels


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def train(records: int) -> float:
    """Accuracy on the stream's first batch after training on all of it and replaying a release."""
    torch.manual_seed(0)
    description = mock_description(records=500, record_shape=(D,), epsilon=4.0, delta=1e-5, classes=CLASSES)
    # The same noise each time: with some a replay tries views, which holds more, and with some it tries none.
    hospital = Hospital(MockCurator(description, randomness=np.random.default_rng(0).bytes))
    plan = hospital.plan(Replay(directions=8, tuning_steps=5), epsilon=1.0)
    extractor, classifier = nn.Sequential(nn.Linear(D, 8), nn.Tanh()), nn.Linear(8, CLASSES)
    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=1, device="cpu")
    loader = DataLoader(Shards(records), batch_size=None)
    model.fit(loader, progress=False)
    images, labels = next(iter(loader))
    return model.score(images, labels)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(40 * BATCH)  # what a training of any length holds: libraries, the records that the replay keeps
    before = peak_mib()
    accuracy = train(int(sys.argv[1]))
    print(peak_mib() - before, accuracy)
