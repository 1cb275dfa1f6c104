"""A hospital in the benchmark's own process, and a model of a task's source.

The client's code is the product's; the curator's part of a step (sample, per-record gradients, clip, sum, noise) runs
here by the same functions, without a service, a signed ledger or paced replies, so that many seeds take minutes.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpswd.public_client.data.datasets import Task, load_task
from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.experiments.start import SourceModel, train_source_model
from dpswd.public_client.testing.mock import MockCurator, mock_description

DELTA = 1e-5
_SOURCE_EPOCHS = {"digits": 40, "mnist-usps": 2, "usps-mnist": 16}


def in_process(records: Tensor, *, epsilon: float, seed: int) -> MockCurator:
    """A mock curator with records of its own, which it holds in the open; samples and noise follow from a seed.

    Args:
        records: (n, ...) float32.
        epsilon: of its budget.
        seed: of samples and noise.
    """
    generator = torch.Generator().manual_seed(seed)
    description = mock_description(
        records=len(records), record_shape=tuple(records.shape[1:]), epsilon=epsilon, delta=DELTA, name="in process"
    )
    return MockCurator(
        description,
        randomness=np.random.default_rng(seed).bytes,
        records=lambda count: records[torch.randperm(len(records), generator=generator)[:count]],
    )


@functools.cache
def trained(data: str, data_dir: Path | None, seed: int) -> tuple[Task, SourceModel]:
    """A task, and a model of its source; `digits` as `dpswd-client demo` trains it."""
    task = load_task(data, data_dir=data_dir)
    settings = read_experiment(None, {"device": "cpu", "source.epochs": _SOURCE_EPOCHS[data]})
    return task, train_source_model(settings, task, seed=seed, progress=False)
