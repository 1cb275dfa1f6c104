"""What an experiment starts from: its data, and a model trained on the public source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils.data import DataLoader

from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.accuracy import accuracy, features
from dpswd.public_client.data.checks import require_contract
from dpswd.public_client.data.datasets import Labelled, Task, load_task
from dpswd.public_client.data.networks import ready_network
from dpswd.public_client.data.own_files import Own, load_own
from dpswd.public_client.data.source import source_loader, train_source, usual_epochs
from dpswd.public_client.experiments.file import Experiment
from dpswd.public_client.experiments.own_model import own_model
from dpswd.public_client.generation.generator import load_generator
from dpswd.public_client.methods import method_kinds
from dpswd.shared.core.errors import DataInvalid, SettingsError
from dpswd.shared.core.wire.limits import UNLABELLED
from dpswd.shared.devices import resolve_device
from dpswd.shared.protocol.contract import DataContract
from dpswd.shared.records.batches import Reading

GENERATOR_SUFFIX = ".safetensors"
_SHOWN = 256  # source records by which a network is split
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


def load_data(experiment: Experiment) -> Task:
    """The experiment's data.

    Raises:
        SettingsError: a file is missing, or the keys do not say enough.
        DataInvalid: a file does not hold what it should.
    """
    data = experiment.data
    if data.source is None:
        if data.target is not None:
            raise SettingsError("data.target needs data.source; without both a ready task is used")
        return load_task(data.task, geometry=data.geometry, data_dir=data.folder)
    if data.target is None and experiment.rehearsed:
        raise SettingsError(
            "data.source alone needs a hospital: --curator, or --release; for a rehearsal give --target, a file like it"
        )
    own, classes = _source(experiment), tuple(experiment.contract.class_names)
    source = own.data
    target = source.part(slice(0))
    if data.target is not None:
        target = load_own(data.target, _reading(experiment, own.columns), classes=own.classes or classes).data
        if target.images.shape[1:] != source.images.shape[1:]:
            raise DataInvalid(
                f"{data.target} holds records of shape {tuple(target.images.shape[1:])}, {data.source} of "
                f"{tuple(source.images.shape[1:])}; they must be alike"
            )
    return Task(data.source.stem, source, target, own.columns, own.classes)


def declared(experiment: Experiment, task: Task) -> DataContract:
    """What the team declares of its source: in the experiment, or else by its file's own names."""
    own = experiment.contract.declared
    return replace(own, column_names=own.column_names or task.columns, class_names=own.class_names or task.class_names)


def aligned(experiment: Experiment, task: Task, descriptions: Mapping[str, Description]) -> Task:
    """The task with columns and classes in a hospital's order, where both name them and the experiment names none.

    Args:
        experiment: of the team.
        task: its data.
        descriptions: what the hospitals say, by site; the first that names them counts.
    """
    if experiment.network.model is not None:  # which has learned an order of its own; `require_alike` compares it
        return task
    contracts = [description.contract for description in descriptions.values()]
    columns = next((each.column_names for each in contracts if each.column_names), ())
    classes = next((each.class_names for each in contracts if each.class_names), ())
    if set(columns) <= set(task.columns) and columns and not experiment.data.columns:
        places = [task.columns.index(name) for name in columns]
        parts = [Labelled(part.images[:, places], part.labels) for part in (task.source, task.target)]
        task = replace(task, source=parts[0], target=parts[1], columns=columns)
    if set(task.class_names) <= set(classes) and task.class_names and not experiment.contract.class_names:
        numbers = torch.tensor([*(classes.index(name) for name in task.class_names), UNLABELLED])
        parts = [Labelled(part.images, numbers[part.labels]) for part in (task.source, task.target)]
        task = replace(task, source=parts[0], target=parts[1], class_names=classes)
    return task


def require_alike(experiment: Experiment, task: Task, descriptions: Mapping[str, Description]) -> None:
    """Refuses a source that is not like the hospitals' records.

    Args:
        experiment: of the team.
        task: its data.
        descriptions: what the hospitals say, by site.

    Raises:
        DataInvalid: the source has the shape of no hospital's records, is on another scale, or has other columns or
            classes than one of its shape.
    """
    own, shape = declared(experiment, task), task.image_shape
    for description in (alike := [each for each in descriptions.values() if each.record_shape == shape]):
        require_contract([(task.source.images, task.source.labels)], description.contract, own, shape)
    if descriptions and not alike:
        theirs = next(iter(descriptions.values()))
        named = theirs.contract.column_names
        lacking = [name for name in named if name not in own.column_names]
        further = [name for name in own.column_names if name not in named]
        detail = f"; lacking are the columns {lacking}, and not the hospital's are {further}" if named else ""
        raise DataInvalid(
            f"the source's records have shape {shape}, those of {theirs.data_set} {theirs.record_shape}{detail}; bring "
            "the source to the hospital's shape (data.columns chooses those of a table). Nothing was spent"
        )


def own_target(experiment: Experiment) -> bool:
    """Whether the model is for the team's own records, and the hospitals are where labels are learned from."""
    name = experiment.method.name
    return name in method_kinds() and method_kinds()[name].own_target


def _reading(experiment: Experiment, columns: Sequence[str] = ()) -> Reading:
    data = experiment.data
    return Reading(tuple(columns or data.columns) or None, data.label, header=data.header)


def _source(experiment: Experiment) -> Own:
    """Labelled records of a file, or drawn from a generator's."""
    path, unlabelled = experiment.data.source, own_target(experiment)
    assert path is not None, "asked for where there is one"
    if path.suffix != GENERATOR_SUFFIX:
        names = experiment.contract.class_names
        return load_own(path, _reading(experiment), classes=names, unlabelled=unlabelled)
    if not path.is_file():
        raise SettingsError(
            f"{path} does not exist; data.source takes a file of records or a `generate --out` generator"
        )
    return Own(Labelled(*load_generator(path).sample(experiment.data.rows)))


def train_source_model(
    experiment: Experiment,
    task: Task,
    *,
    seed: int,
    prepared: Callable[[nn.Module], None] | None = None,
    progress: bool = True,
) -> SourceModel:
    """Source-only training, as the experiment says.

    Args:
        experiment: a checked experiment.
        task: its data.
        seed: of initial weights and batches.
        prepared: gives the extractor weights that a hospital has answered to; then the classifier alone is trained.
        progress: shows a bar.

    Raises:
        SettingsError: the network's factory does not return one.
    """
    usual = 64 if len(task.source) < _SMALL_SOURCE else 128
    batch_size = min(experiment.source.batch_size or usual, len(task.source))
    if own_target(experiment):
        return _own_target_model(experiment, task, seed=seed, batch_size=batch_size)
    loader = source_loader(task.source, seed=seed, batch_size=batch_size)
    epochs = experiment.source.epochs
    if epochs is None:
        epochs = usual_epochs(max(1, len(task.source) // batch_size))
    device = resolve_device(experiment.device)
    torch.manual_seed(seed)
    extractor, classifier = untrained(experiment, task)
    if prepared is not None:
        prepared(extractor)
    extractor.to(device)
    classifier.to(device)
    if experiment.network.model is not None:
        epochs = 0
    elif prepared is not None:
        seen = Labelled(features(extractor, task.source.images.to(device)), task.source.labels)
        own = source_loader(seen, seed=seed, batch_size=batch_size)
        train_source(nn.Identity(), classifier, own, epochs=epochs, device=device, progress=progress)
        return SourceModel(extractor, classifier, loader, math.nan)
    train_source(extractor, classifier, loader, epochs=epochs, device=device, progress=progress)
    extractor.eval()
    classifier.eval()
    reached = accuracy(extractor, classifier, task.target.to(device)) if experiment.rehearsed else math.nan
    return SourceModel(extractor, classifier, loader, reached)


def _own_target_model(experiment: Experiment, task: Task, *, seed: int, batch_size: int) -> SourceModel:
    """The start of a method for the team's own records: nothing is trained before the hospitals are asked.

    Raises:
        SettingsError: nothing says how many classes there are.
    """
    torch.manual_seed(seed)
    if experiment.network.code or experiment.network.model:
        extractor, classifier = untrained(experiment, task)
    elif not (classes := experiment.data.classes or task.classes):
        raise SettingsError("no record of data.source has a label; say the hospital's classes with data.classes")
    else:
        extractor, classifier = method_kinds()[experiment.method.name].usual_model(task.source.images, classes)
    labels = task.source.labels
    most = 0 if experiment.data.source is None else len(labels)
    rows = torch.nonzero(labels != UNLABELLED).flatten()
    rows = rows[torch.randperm(len(rows))[: most if experiment.data.labelled is None else experiment.data.labelled]]
    seen = torch.full_like(labels, UNLABELLED)
    seen[rows] = labels[rows]
    loader = source_loader(Labelled(task.source.images, seen), seed=seed, batch_size=batch_size)
    device = resolve_device(experiment.device)
    return SourceModel(extractor.to(device), classifier.to(device), loader, math.nan)


def untrained(experiment: Experiment, task: Task) -> tuple[nn.Module, nn.Module]:
    """Extractor and classifier: the team's own model, which may be trained already, or a ready network.

    Raises:
        SettingsError, DataInvalid: see `own_model`.
        InvalidValue: there is no ready network for such records, or the own one has no last linear layer.
    """
    network = experiment.network
    if network.code is None and network.model is None:
        return ready_network(task.image_shape, task.classes)
    own = own_model(network.code, network.model, task.source.images[:_SHOWN])
    return own.extractor, own.classifier
