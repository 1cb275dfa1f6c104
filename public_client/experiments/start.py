"""What an experiment starts from: its data, and a model trained on the public source."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from dpswd.public_client.data.accuracy import accuracy, features
from dpswd.public_client.data.datasets import Labelled, Task, load_labelled, load_task
from dpswd.public_client.data.networks import ready_network
from dpswd.public_client.data.source import source_loader, train_source, usual_epochs
from dpswd.public_client.experiments.file import Experiment
from dpswd.public_client.generation.generator import load_generator
from dpswd.public_client.methods import METHODS
from dpswd.public_client.methods.dpda import principal_components, target_network
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.devices import resolve_device

GENERATOR_SUFFIX = ".safetensors"
_SMALL_SOURCE = 2000  # records, below which batches of 128 would be a large part of the source


@dataclass(frozen=True)
class SourceModel:
    """A source-trained network with its loader.

    Attributes:
        extractor: records to features.
        classifier: features to scores.
        loader: labelled source batches.
        accuracy: on the target, percent; NaN where there are no labels.
    """

    extractor: nn.Module
    classifier: nn.Module
    loader: DataLoader[tuple[torch.Tensor, torch.Tensor]]
    accuracy: float


def load_data(wanted: Experiment) -> Task:
    """The experiment's data.

    Raises:
        SettingsError: a file is missing, or the keys do not say enough.
        DataInvalid: a file does not hold what it should.
    """
    data = wanted.data
    if data.source is None:
        if data.target is not None:
            raise SettingsError("data.target needs data.source; without both a ready task is used")
        return load_task(data.task, geometry=data.geometry, data_dir=data.folder)
    source = _source(data.source, rows=data.rows, unlabelled=own_target(wanted))
    target = load_labelled(data.target) if data.target is not None else None
    if target is not None and target.images.shape[1:] != source.images.shape[1:]:
        raise DataInvalid(
            f"{data.target} holds records of shape {tuple(target.images.shape[1:])}, {data.source} of "
            f"{tuple(source.images.shape[1:])}; they must be alike"
        )
    if target is None and wanted.rehearsed:
        raise SettingsError("data.source alone needs curators; for a rehearsal give data.target, a public stand-in")
    nothing = source.part(slice(0))
    return Task(name=data.source.stem, source=source, target=target or nothing)


def own_target(wanted: Experiment) -> bool:
    """Whether the model is for the team's own records, and the hospitals are where labels are learned from."""
    name = wanted.method.name
    return name in METHODS and METHODS[name].own_target


def _source(path: Path, *, rows: int, unlabelled: bool) -> Labelled:
    """Labelled records of a file, or drawn from a generator's."""
    if path.suffix != GENERATOR_SUFFIX:
        return load_labelled(path, unlabelled=unlabelled)
    if not path.is_file():
        raise SettingsError(f"{path} does not exist; data.source takes an .npz or a generator of `generate --out`")
    return Labelled(*load_generator(path).sample(rows))


def train_source_model(
    wanted: Experiment,
    task: Task,
    *,
    seed: int,
    prepared: Callable[[nn.Module], None] | None = None,
    progress: bool = True,
) -> SourceModel:
    """Source-only training, as the experiment says.

    Args:
        wanted: a checked experiment.
        task: its data.
        seed: of initial weights and batches.
        prepared: gives the extractor weights that a hospital has answered to; then the classifier alone is trained.
        progress: shows a bar.

    Raises:
        SettingsError: the network's factory does not return one.
    """
    usual = 64 if len(task.source) < _SMALL_SOURCE else 128
    batch_size = min(wanted.source.batch_size or usual, len(task.source))
    if own_target(wanted):
        return _own_target_model(wanted, task, seed=seed, batch_size=batch_size)
    loader = source_loader(task.source, seed=seed, batch_size=batch_size)
    epochs = wanted.source.epochs
    if epochs is None:
        epochs = usual_epochs(max(1, len(task.source) // batch_size))
    device = resolve_device(wanted.device)
    torch.manual_seed(seed)
    extractor, classifier = _network(wanted, task)
    if prepared is not None:
        prepared(extractor)
    extractor.to(device)
    classifier.to(device)
    if prepared is not None:
        seen = Labelled(features(extractor, task.source.images.to(device)), task.source.labels)
        own = source_loader(seen, seed=seed, batch_size=batch_size)
        train_source(nn.Identity(), classifier, own, epochs=epochs, device=device, progress=progress)
        return SourceModel(extractor, classifier, loader, math.nan)
    train_source(extractor, classifier, loader, epochs=epochs, device=device, progress=progress)
    reached = accuracy(extractor, classifier, task.target.to(device)) if wanted.rehearsed else math.nan
    return SourceModel(extractor, classifier, loader, reached)


def _own_target_model(wanted: Experiment, task: Task, *, seed: int, batch_size: int) -> SourceModel:
    """The start of a method for the team's own records: nothing is trained before the hospitals are asked.

    Raises:
        SettingsError: nothing says how many classes there are.
    """
    torch.manual_seed(seed)
    if wanted.network.factory is not None:
        extractor, classifier = _network(wanted, task)
    elif not (classes := wanted.data.classes or task.classes):
        raise SettingsError("no record of data.source has a label; say the hospital's classes with data.classes")
    else:
        extractor = principal_components(task.source.images)
        with torch.no_grad():
            classifier = target_network(extractor(task.source.images[:1]).shape[1], classes)
    labels = task.source.labels
    most = 0 if wanted.data.source is None else len(labels)
    kept = torch.nonzero(labels != UNLABELLED).flatten()
    kept = kept[torch.randperm(len(kept))[: most if wanted.data.labelled is None else wanted.data.labelled]]
    seen = torch.full_like(labels, UNLABELLED)
    seen[kept] = labels[kept]
    loader = source_loader(Labelled(task.source.images, seen), seed=seed, batch_size=batch_size)
    device = resolve_device(wanted.device)
    return SourceModel(extractor.to(device), classifier.to(device), loader, math.nan)


def _network(wanted: Experiment, task: Task) -> tuple[nn.Module, nn.Module]:
    """The caller's network, or a ready one."""
    if wanted.network.factory is None:
        return ready_network(task.image_shape, int(task.source.labels.max()) + 1)
    module, function = wanted.network.factory.split(":")
    try:
        extractor, classifier = getattr(import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingsError(
            f"network.factory {wanted.network.factory} must name a function without arguments that returns "
            f"(extractor, classifier): {error}"
        ) from error
    if not isinstance(extractor, nn.Module) or not isinstance(classifier, nn.Module):
        raise SettingsError(f"network.factory {wanted.network.factory} must return two torch modules")
    return extractor, classifier
