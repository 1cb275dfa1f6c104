"""One rank of trainings that the test starts with torchrun, or alone: writes weights, charges and what was refused.

``python ddp_training.py OUT METHOD...``; each method has a folder of its own below OUT.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from small_methods import small
from torch import nn

from public_client import DomainAdaptation, Hospital
from public_client.data.ranks import Ranks
from public_client.data.source import train_source
from public_client.testing.mock import MockCurator, mock_description
from public_client.training.distributed import shared_curators
from shared.errors import BudgetExhausted, InvalidValue

D, BATCH, BATCHES = 6, 24, 4
SETTINGS = {"all-weights": {"learning_rate": 1e-2}, "rows": {"learning_rate": 1e-2}, "replay": {"tuning_steps": 5}}


class Shards:
    """Batches of this rank: its part of each global batch."""

    def __init__(self, ranks: Ranks, *, left_out: int = 0) -> None:
        generator = torch.Generator().manual_seed(0)
        part = slice(ranks.rank * BATCH // ranks.size, (ranks.rank + 1) * BATCH // ranks.size)
        labels = torch.randint(3, (BATCHES, BATCH), generator=generator)
        records = torch.randn(BATCHES, BATCH, D, generator=generator) + labels[..., None]
        self.batches = [(x[part], y[part]) for x, y in zip(records, labels, strict=True)][left_out:]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def gloo_threads() -> int:
    """Threads of this process that work for a process group."""
    found = 0
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            found += "gloo" in task.read_text()
    return found


def gloo_threads_left() -> int:
    """Those that are there when those that were joined have had time to leave /proc."""
    deadline = time.monotonic() + 10.0
    while (found := gloo_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def statistics(ranks: Ranks) -> list[float]:
    """What a batch norm has seen of this rank's batches, after training with the others."""
    extractor, classifier = nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8)), nn.Linear(8, 3)
    ranks.synchronise(extractor, classifier)
    train_source(extractor, classifier, Shards(ranks), epochs=1, ranks=ranks)
    return extractor[1].running_mean.tolist()


def uneven(model: DomainAdaptation, ranks: Ranks) -> str:
    """What a training says whose ranks have different numbers of batches."""
    try:
        model.fit(Shards(ranks, left_out=ranks.rank), progress=False)
    except InvalidValue as error:
        return str(error)
    return ""


def main(out: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    ranks = Ranks.current()
    for name in names:
        train(out / name, name, ranks)
    if ranks.size > 1:
        dist.barrier()
        threads = [gloo_threads()]
        dist.destroy_process_group()
        threads.append(gloo_threads_left())
        (out / f"threads-{ranks.rank}.json").write_text(json.dumps(threads))


def train(out: Path, name: str, ranks: Ranks) -> None:
    out.mkdir(exist_ok=True)
    counter = itertools.count()
    mock = MockCurator(
        mock_description(records=300, record_shape=(D,), epsilon=4.0, delta=1e-5, classes=3),
        randomness=lambda size: next(counter).to_bytes(size, "big"),  # both runs see the same noise
    )
    hospital = Hospital(mock if ranks.size == 1 else shared_curators(lambda: {name: mock})[name])
    method = small(name, source_records=BATCH * BATCHES, **SETTINGS.get(name, {}))
    size = {} if name in ("replay", "statistics") else {"steps": 5, "batch_size": 80}
    torch.manual_seed(ranks.rank)  # ranks begin with different weights; rank 0's count
    extractor, classifier = nn.Sequential(nn.Linear(D, 8), nn.Tanh()), nn.Linear(8, 3)
    plan = hospital.plan(method, epsilon=2.0, **size)
    model = DomainAdaptation(extractor, classifier, hospital=hospital, plan=plan, source_epochs=2, device="cpu")
    model.fit(Shards(ranks), checkpoint=out / "run", progress=False)
    if ranks.first:
        model.save(out / "adapted.safetensors")  # rank 0 alone: it must not wait for the others
    refused = False
    try:
        greedy = hospital.plan(small("replay", release="rows"), epsilon=3.9, steps=500, batch_size=300)
        DomainAdaptation(extractor, classifier, hospital=hospital, plan=greedy, source_epochs=0, device="cpu").fit(
            Shards(ranks), progress=False
        )
    except BudgetExhausted as error:
        refused = error.remaining < 4.0
    weights = {"extractor": model.target_extractor.state_dict(), "classifier": model.classifier.state_dict()}
    torch.save(weights, out / f"weights-{ranks.rank}.pt")
    report = {
        "charges": [charge.epsilon for charge in mock.charges],
        "refused": refused,
        "steps": model.sites["curator"].steps,
        "statistics": statistics(ranks),
    }
    if ranks.size > 1:
        cheap = hospital.plan(method, epsilon=1.0, **size)
        again = DomainAdaptation(extractor, classifier, hospital=hospital, plan=cheap, source_epochs=2, device="cpu")
        report["uneven"] = uneven(again, ranks)
        report["charges after uneven"] = len(mock.charges)
    (out / f"report-{ranks.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
