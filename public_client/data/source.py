"""Source-only training: the classifier before any private answer, and the baseline of every comparison."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dpswd.public_client.data.checks import NO_BATCHES, checked, parts_of
from dpswd.public_client.data.datasets import Batches, Labelled
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.ranks import Ranks
from dpswd.shared.core.errors import InvalidValue

_MANY_BATCHES = 50
_UPDATES = 900  # of source-only training


class _Rows(TensorDataset):
    """Records that a loader takes a batch at a time: one by one it takes five times as long."""

    def __getitems__(self, numbers: list[int]) -> tuple[Tensor, ...]:
        return tuple(values[numbers] for values in self.tensors)


def source_loader(data: Labelled, *, batch_size: int = 128, seed: int = 0) -> DataLoader[tuple[Tensor, Tensor]]:
    """A shuffling loader with its own seeded generator."""
    # A small source loses too much with its last, incomplete batch; one record alone is no batch for a batch norm.
    drop_last = len(data) > _MANY_BATCHES * batch_size or len(data) % batch_size == 1
    shuffled = torch.Generator().manual_seed(seed)
    records = cast("Dataset[tuple[Tensor, Tensor]]", _Rows(data.images.cpu(), data.labels.cpu()))
    return DataLoader(records, batch_size, shuffle=True, drop_last=drop_last, generator=shuffled, collate_fn=list)


def train_source(
    extractor: nn.Module,
    classifier: nn.Module,
    batches: Batches,
    *,
    epochs: int,
    learning_rate: float = 1e-3,
    device: torch.device | None = None,
    progress: bool = False,
    ranks: Ranks | None = None,
) -> None:
    """Trains both modules on labelled source data, in place: Adam under a one-cycle schedule.

    Args:
        extractor: records to features.
        classifier: features to scores.
        batches: (images, labels), iterated `epochs` times.
        epochs: passes over the source; 0 leaves the modules as they are.
        learning_rate: half of the schedule's peak.
        device: where the modules are.
        progress: shows a bar.
        ranks: processes that each train with batches of their own, and end with the same weights; rank 0's
            statistics, such as a batch norm's, count. By default this process trains alone.

    Raises:
        DataInvalid: a batch is not what it should be (`CheckedBatches`).
        InvalidValue: the source is empty, ranks differ in their number of batches, or the loss stopped being finite.
    """
    batches = checked(batches, extractor, classifier, device=device)
    parameters = [*extractor.parameters(), *classifier.parameters()]
    ranks = ranks or Ranks()
    ranks.require_equal(one_pass := len(batches), "numbers of source batches")
    total = epochs * one_pass
    if total == 0:
        return
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2 * learning_rate, total_steps=total)
    extractor.train()
    classifier.train()
    features, scores = ranks.parallel(extractor), ranks.parallel(classifier)
    with reporting("training on the source", epochs, shown=progress) as bar:
        for _ in range(epochs):
            losses = []
            for images, labels in batches:
                loss = functional.cross_entropy(scores(features(images.to(device))), labels.to(device))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
                losses.append(loss.detach())
            mean = float(ranks.mean(torch.stack(losses).mean()))
            if not math.isfinite(mean):
                raise InvalidValue(f"source training diverged (its loss is {mean}); use a lower learning rate")
            bar.advance(f"class loss {mean:.3f}")
    ranks.synchronise(extractor, classifier)
    extractor.eval()
    classifier.eval()


def collect(batches: Batches, *, most: int) -> Labelled:
    """The first `most` labelled records that the loader gives, as one tensor each.

    Raises:
        DataInvalid: it gives what is no pair of tensors.
        InvalidValue: it is empty.
    """
    taken: list[tuple[Tensor, Tensor]] = []
    for number, batch in enumerate(batches, start=1):
        taken.append(parts_of(batch, number))
        if sum(len(labels) for _, labels in taken) >= most:
            break
    if not taken:
        raise InvalidValue(NO_BATCHES)
    images, classes = (torch.cat(parts)[:most] for parts in zip(*taken, strict=True))
    return Labelled(images, classes)


def usual_epochs(batches: int) -> int:
    """Passes of source-only training that are long enough, whatever the size of the data: about 900 updates.

    Args:
        batches: of one pass, at least 1.
    """
    return max(1, math.ceil(_UPDATES / batches))
