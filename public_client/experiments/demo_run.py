"""One adaptation from a task and a plan to figures: what ``train``, the demo and the benchmarks have in common."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from public_client.curator.stub import Curator
from public_client.data.accuracy import accuracy
from public_client.data.datasets import Labelled, Task
from public_client.data.devices import resolve_device
from public_client.data.networks import digits_network
from public_client.data.progress import reporting
from public_client.data.source import source_loader, train_source
from public_client.methods.baselines import non_private_swd
from public_client.training.adaptation import DomainAdaptation
from public_client.training.history import HistoryPoint


@dataclass(frozen=True)
class Outcome:
    """Figures of one training.

    Attributes:
        task: its name.
        release: what the curator released.
        parameters: what received a sanitized gradient.
        source_only: accuracy on the target before the alignment, percent; NaN where the labels are not at hand.
        adapted: accuracy after it.
        epsilon: what the run cost.
        delta: of the budget.
        spent: epsilon that the data set has spent afterwards.
        remaining: epsilon that is left to this client.
        steps: T.
        seconds: wall-clock of the private training, source-only training not included.
        seed: of the client's random choices.
    """

    task: str
    release: str
    parameters: str
    source_only: float
    adapted: float
    epsilon: float
    delta: float
    spent: float
    remaining: float
    steps: int
    seconds: float
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Plain values; unknown accuracies are null."""
        values = asdict(self)
        return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in values.items()}


@dataclass(frozen=True)
class SourceModel:
    """A source-trained network with its loader.

    Attributes:
        extractor: records to features.
        classifier: features to scores.
        loader: labelled source batches.
        target: accuracy on the target, percent; NaN where there are no labels.
    """

    extractor: nn.Module
    classifier: nn.Module
    loader: DataLoader[tuple[torch.Tensor, torch.Tensor]]
    target: float

    def copies(self) -> tuple[nn.Module, nn.Module]:
        """Both modules, to be changed freely."""
        return copy.deepcopy(self.extractor), copy.deepcopy(self.classifier)


def train_source_model(
    source: Labelled,
    *,
    target: Labelled | None,
    epochs: int,
    seed: int,
    device: str = "auto",
    batch_size: int = 128,
    network: Callable[[], tuple[nn.Module, nn.Module]] | None = None,
    progress: bool = True,
) -> SourceModel:
    """Source-only training.

    Args:
        source: public, labelled.
        target: with labels for the evaluation, or None.
        epochs: passes.
        seed: of initial weights and batches.
        device: "auto", "cpu" or "cuda".
        batch_size: of the source batches.
        network: makes (extractor, classifier); by default the ready network for the images' size.
        progress: shows a bar.
    """
    place = resolve_device(device)
    torch.manual_seed(seed)
    extractor, classifier = digits_network(tuple(source.images.shape[1:])) if network is None else network()
    extractor.to(place)
    classifier.to(place)
    loader = source_loader(source, seed=seed, batch_size=batch_size)
    with reporting("training on the source", epochs, shown=progress) as bar:
        train_source(
            extractor,
            classifier,
            loader,
            epochs=epochs,
            device=place,
            on_epoch=lambda _, loss: bar.advance(f"class loss {loss:.3f}"),
        )
    reached = math.nan if target is None else accuracy(extractor, classifier, target.to(place))
    return SourceModel(extractor, classifier, loader, reached)


def adapt(
    model: SourceModel,
    task: Task,
    curator: Curator,
    *,
    wishes: Mapping[str, Any],
    seed: int,
    device: str = "auto",
    evaluated: bool = True,
    checkpoint: Path | None = None,
    save: Path | None = None,
    progress: bool = True,
) -> tuple[Outcome, list[HistoryPoint]]:
    """Plans, charges and trains one run; the source model stays as it is.

    Args:
        model: the start.
        task: its target's labels are for the evaluation.
        curator: a connection.
        wishes: arguments of `Curator.plan`.
        seed: of the client's random choices.
        device: "auto", "cpu" or "cuda".
        evaluated: whether the target's labels are at hand.
        checkpoint: directory of a run that can be resumed.
        save: where the adapted model is written.
        progress: shows bars.

    Raises:
        BudgetExhausted: the plan does not fit; nothing was spent.
    """
    place = resolve_device(device)
    target = task.target.to(place) if evaluated else None
    extractor, classifier = model.copies()
    plan = curator.plan(**wishes)
    adaptation = DomainAdaptation(
        extractor, classifier, curator=curator, plan=plan, device=device, seed=seed, source_epochs=0
    )
    begun = time.monotonic()
    evaluate = None if target is None else (lambda e, c: accuracy(e, c, target))
    adaptation.fit(model.loader, evaluate=evaluate, checkpoint=checkpoint, progress=progress)
    seconds = time.monotonic() - begun
    if save is not None:
        adaptation.save(save)
    description = curator.describe()
    outcome = Outcome(
        task=task.name,
        release=plan.release,
        parameters=plan.parameters,
        source_only=model.target,
        adapted=adaptation.history[-1].accuracy,
        epsilon=plan.epsilon,
        delta=plan.delta,
        spent=description.spent,
        remaining=description.remaining,
        steps=plan.steps,
        seconds=seconds,
        seed=seed,
    )
    return outcome, adaptation.history


def non_private(model: SourceModel, task: Task, *, steps: int, seed: int, device: str, progress: bool) -> float:
    """Accuracy of non-private SWD with all weights and both branches, percent; needs the target itself."""
    place = resolve_device(device)
    extractor, classifier = model.copies()
    with reporting("non-private SWD", steps, shown=progress) as bar:
        non_private_swd(
            extractor, classifier, model.loader, task.target.images, steps=steps, seed=seed, device=place, bar=bar
        )
    return accuracy(extractor, classifier, task.target.to(place))
