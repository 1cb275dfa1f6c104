"""Whom an experiment asks: real curators, hospitals on this machine, or mock curators of a dry run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dpswd.public_client import settings
from dpswd.public_client.adaptation.federation import Federation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.adaptation.published import PublishedHospital
from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.datasets import SCALE, Labelled, Task
from dpswd.public_client.experiments.approaches import asks_hospital, method_of
from dpswd.public_client.experiments.file import Experiment, name_of
from dpswd.public_client.methods import method_kinds
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.sites import ALONE
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.protocol.contract import DataContract


@contextmanager
def connected_hospitals(experiment: Experiment, task: Task) -> Iterator[Federation | None]:
    """Connections to all of an experiment's hospitals; None where its method asks none.

    Args:
        experiment: a checked experiment.
        task: its data; local hospitals serve the target, mocks imitate its shape.

    Raises:
        SettingsError: what is described does not suffice.
        ProtocolError: no hospital can be used.
    """
    with ExitStack() as stack:
        if not asks_hospital(experiment.method.name):
            yield None
        elif experiment.dry_run.enabled:
            yield Federation(_mocks(experiment, task), weights=_weights(experiment))
        elif experiment.curators:
            yield stack.enter_context(_remote(experiment))
        elif experiment.releases:
            yield Federation(published(experiment), weights=_weights(experiment))
        else:
            yield stack.enter_context(Federation(_local(experiment, task, stack)))


def site_names(experiment: Experiment) -> list[str]:
    """The curators' names, or the local hospitals'; one alone is `ALONE`."""
    if experiment.sites:
        names = [name_of(site, index) for index, site in enumerate(experiment.sites)]
    else:
        names = [f"hospital-{i + 1}" for i in range(experiment.rehearsal.hospitals)]
    return names if len(names) > 1 else [ALONE]


def dealt(experiment: Experiment, target: Labelled) -> dict[str, Labelled]:
    """The stand-in's records as the local hospitals hold them, by site."""
    names = site_names(experiment)
    return {name: target.part(slice(i, None, len(names))) for i, name in enumerate(names)}


def _weights(experiment: Experiment) -> dict[str, float]:
    return {name: site.weight for name, site in zip(site_names(experiment), experiment.sites, strict=False)}


def _budget(experiment: Experiment) -> float:
    return experiment.privacy.budget or experiment.privacy.epsilon + (experiment.privacy.evaluate_epsilon or 0.0)


def _remote(experiment: Experiment) -> Federation:
    own = settings.load()
    waiting = own.connection
    common: dict[str, Any] = {
        "run_directory": experiment.output.checkpoint,
        "purpose": experiment.purpose,
        "timeout_s": waiting.timeout_seconds,
        "start_s": waiting.start_seconds,
    }
    named = dict(zip(site_names(experiment), experiment.curators, strict=True))
    if only := named.get(ALONE):
        common |= {"server_name": only.server_name or own.curator.server_name, "patience_s": waiting.patience_seconds}
        return Federation({ALONE: Hospital.connect(only.address, credentials=only.credentials, **common)})
    common["patience_s"] = waiting.site_patience_seconds
    return Federation.connect(
        {name: curator.address for name, curator in named.items()},
        credentials={name: curator.credentials for name, curator in named.items()},
        server_names={name: curator.server_name for name, curator in named.items()},
        weights=_weights(experiment),
        straggler_s=waiting.straggler_seconds,
        absent=waiting.absent_sites,
        **common,
    )


def _local(experiment: Experiment, task: Task, stack: ExitStack) -> Mapping[str, Hospital]:
    hospitals = {}
    classes, data = _classes(experiment, task), experiment.data
    for name, part in dealt(experiment, task.target).items():
        store = experiment.output.checkpoint
        if store is not None and name != ALONE:
            store = store / "sites" / name
        hospital = stack.enter_context(
            LocalHospital(
                part.images.numpy(),
                epsilon=_budget(experiment),
                delta=experiment.privacy.delta,
                name=name if name != ALONE else data.target.stem if data.target else data.task,
                device=experiment.device,
                directory=None if store is None else store / "hospital",
                labels=part.labels.numpy() if classes else None,
                classes=classes or None,
                value_range=_value_range(experiment),
            )
        )
        hospitals[name] = hospital.connect(run_directory=store, purpose=experiment.purpose)
    return hospitals


def published(experiment: Experiment) -> dict[str, PublishedHospital]:
    """The experiment's releases, verified, by site.

    Raises:
        DataInvalid, SettingsError, ProtocolError: see `PublishedHospital.read`.
        SettingsError: they were not made with one extractor.
    """
    hospitals, store = {}, experiment.output.checkpoint
    for name, group in zip(site_names(experiment), experiment.releases, strict=True):
        directory = store if store is None or name == ALONE else store / "sites" / name
        hospitals[name] = PublishedHospital.read(group.file, key=group.key, run_directory=directory)
    first = next(iter(hospitals.values())).release
    for name, hospital in hospitals.items():
        asked = hospital.release.proposal
        if (asked.graph, asked.weights) != (first.proposal.graph, first.proposal.weights):
            raise SettingsError(
                f"the release of {name} was made with another extractor than {first.path}; train from each alone, or "
                "have them prepared with one extractor (`dpswd-client prepare --extractor`)"
            )
    return hospitals


def descriptions(experiment: Experiment, task: Task) -> dict[str, Description]:
    """What the hospitals of a dry run offer, by site.

    Raises:
        SettingsError: what is described does not suffice.
    """
    names, files = site_names(experiment), experiment.dry_run.descriptions
    records = experiment.dry_run.records or len(task.target) // len(names)
    if not files and not records:
        raise SettingsError("a dry run without a stand-in needs dry_run.records or dry_run.descriptions")
    described, budget, delta = {}, _budget(experiment), experiment.privacy.delta
    for index, name in enumerate(names):
        if files:
            described[name] = _described(files[index if len(files) > 1 else 0])
        else:
            described[name] = mock_description(
                records=records,
                record_shape=task.image_shape,
                epsilon=budget,
                delta=delta,
                name=name,
                classes=_classes(experiment, task),
                contract=DataContract(value_range=_value_range(experiment) or ()),
            )
    return described


def _value_range(experiment: Experiment) -> tuple[float, float] | None:
    """What an operator of such records would declare; None of a team's own file, of which nobody says it."""
    return SCALE if experiment.data.source is None else None


def _mocks(experiment: Experiment, task: Task) -> Mapping[str, Hospital]:
    described = descriptions(experiment, task)
    return {name: Hospital(MockCurator(own, seed=index)) for index, (name, own) in enumerate(described.items())}


def _classes(experiment: Experiment, task: Task) -> int:
    """C where the hospital's labels are asked for; 0 where they are nobody's business."""
    if experiment.method.name not in method_kinds():  # the ladder asks what labels there are: a stand-in's own
        compared = experiment.privacy.evaluate_epsilon is not None
        return task.classes if experiment.data.target is not None or compared else 0
    return task.classes if method_of(experiment.method.name, experiment.method.settings).mechanism.needs_labels else 0


def _described(path: Path) -> Description:
    try:
        return Description.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path} is no JSON: {error}") from error
