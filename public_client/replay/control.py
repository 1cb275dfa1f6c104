"""The control: the default's tuning without a release. What it reaches, no hospital's epsilon is needed for.

Whatever is told of an adapted model is to be read beside it: a gain that random variation of public records brings
alone is no reason to ask a hospital.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.source import collect
from dpswd.public_client.replay.fit import MOST_RECORDS
from dpswd.public_client.replay.tuning import tune
from dpswd.public_client.replay.views import view_for


def control(
    extractor: nn.Module,
    classifier: nn.Module,
    batches: Batches,
    *,
    steps: int,
    seed: int,
    device: torch.device,
    progress: bool = False,
) -> tuple[nn.Module, nn.Module]:
    """Copies of both modules, tuned on public records that vary at random, with nothing known of the target.

    Args:
        extractor: source-trained.
        classifier: source-trained.
        batches: labelled public records.
        steps: updates; `Replay.tuning_steps` for the default's.
        seed: of the batches and the variation.
        device: where to compute.
        progress: shows a bar.

    Raises:
        InvalidValue: there is no ready view for such records, so nothing to vary them by.
    """
    extractor, classifier = (copy.deepcopy(module).to(device) for module in (extractor, classifier))
    source = collect(batches, most=MOST_RECORDS).to(device)
    with torch.no_grad():
        view = view_for(source.images, extractor(source.images[:2]))
    generator = torch.Generator().manual_seed(seed)
    with reporting("the control, without a release", steps, shown=progress) as bar:
        return tune(extractor, classifier, view, source, steps=steps, generator=generator, bar=bar)
