"""One rank of a training that the test starts with torchrun, or alone: writes weights, charges and what was refused.

python ddp_training.py OUT WAY [resume]
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from kinds_of_plan import planned
from torch import nn

from public_client import DomainAdaptation
from public_client.distributed import Ranks, SharedCurator
from public_client.mock_curator import MockCurator, mock_description
from shared.errors import BudgetExhausted

D, BATCH, BATCHES = 6, 24, 4
WAYS = {
    "adapters": {"parameters": "adapters", "steps": 5, "batch_size": 80},
    "all": {"release": "rows", "parameters": "all", "steps": 5, "batch_size": 80, "learning_rate": 1e-2},
    "none": {"parameters": "none", "tuning_steps": 5},
    "critic": {"release": "critic", "steps": 5, "batch_size": 80},
}


class Shards:
    """Batches of this rank: its part of each global batch."""

    def __init__(self, ranks: Ranks) -> None:
        generator = torch.Generator().manual_seed(0)
        part = slice(ranks.rank * BATCH // ranks.size, (ranks.rank + 1) * BATCH // ranks.size)
        labels = torch.randint(3, (BATCHES, BATCH), generator=generator)
        records = torch.randn(BATCHES, BATCH, D, generator=generator) + labels[..., None]
        self.batches = [(x[part], y[part]) for x, y in zip(records, labels, strict=True)]

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def main(out: Path, way: str) -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    ranks = Ranks.current()
    counter = itertools.count()
    mock = MockCurator(
        mock_description(records=300, record_shape=(D,), epsilon=4.0, delta=1e-5),
        randomness=lambda size: next(counter).to_bytes(size, "big"),  # both runs see the same noise
    )
    curator = mock if ranks.size == 1 else SharedCurator(mock if ranks.first else None)
    torch.manual_seed(ranks.rank)  # ranks begin with different weights; rank 0's count
    extractor, classifier = nn.Sequential(nn.Linear(D, 8), nn.Tanh()), nn.Linear(8, 3)
    plan = planned(curator, epsilon=2.0, directions=8, source_records=BATCH * BATCHES, **WAYS[way])
    model = DomainAdaptation(extractor, classifier, curator=curator, plan=plan, source_epochs=2, device="cpu")
    model.fit(Shards(ranks), checkpoint=out / "run", progress=False)
    if ranks.first:
        model.save(out / "adapted.safetensors")  # rank 0 alone: it must not wait for the others
    refused = False
    try:
        greedy = curator.plan(epsilon=3.9, directions=8, steps=500, batch_size=300, release="rows", parameters="none")
        DomainAdaptation(extractor, classifier, curator=curator, plan=greedy, source_epochs=0, device="cpu").fit(
            Shards(ranks), progress=False
        )
    except BudgetExhausted as error:
        refused = error.remaining < 4.0
    weights = {"extractor": model.target_extractor.state_dict(), "classifier": model.classifier.state_dict()}
    torch.save(weights, out / f"weights-{ranks.rank}.pt")
    charges = [charge.epsilon for charge in mock.charges]
    (out / f"report-{ranks.rank}.json").write_text(
        json.dumps({"charges": charges, "refused": refused, "steps": model.sites["curator"].steps})
    )
    if ranks.size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
