"""Whom an experiment asks: real curators, hospitals on this machine, or mock curators of a dry run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dpswd.public_client import settings
from dpswd.public_client.adaptation.federation import Federation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.adaptation.published import PublishedHospital
from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.datasets import SCALE, Labelled, Task
from dpswd.public_client.experiments.approaches import approach, method_of
from dpswd.public_client.experiments.file import Experiment, name_of
from dpswd.public_client.methods import METHODS
from dpswd.public_client.testing.local_hospital import LocalHospital
from dpswd.public_client.testing.mock import MockCurator, mock_description
from dpswd.public_client.training.sites import ALONE
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.protocol.contract import DataContract


@contextmanager
def connected_hospitals(wanted: Experiment, task: Task) -> Iterator[Federation | None]:
    """Connections to all of an experiment's hospitals; None where its method asks none.

    Args:
        wanted: a checked experiment.
        task: its data; local hospitals serve the target, mocks imitate its shape.

    Raises:
        SettingsError: what is described does not suffice.
        ProtocolError: no hospital can be used.
    """
    with ExitStack() as stack:
        if approach(wanted.method.name).needs != "hospital":
            yield None
        elif wanted.dry_run.enabled:
            yield Federation(_mocks(wanted, task), weights=_weights(wanted))
        elif wanted.curators:
            yield stack.enter_context(_remote(wanted))
        elif wanted.releases:
            yield Federation(published(wanted), weights=_weights(wanted))
        else:
            yield stack.enter_context(Federation(_local(wanted, task, stack)))


def site_names(wanted: Experiment) -> list[str]:
    """The curators' names, or the local hospitals'; one alone is `ALONE`."""
    if wanted.sites:
        names = [name_of(site, index) for index, site in enumerate(wanted.sites)]
    else:
        names = [f"hospital-{i + 1}" for i in range(wanted.rehearsal.hospitals)]
    return names if len(names) > 1 else [ALONE]


def dealt(wanted: Experiment, target: Labelled) -> dict[str, Labelled]:
    """The stand-in's records as the local hospitals hold them, by site."""
    names = site_names(wanted)
    return {name: target.part(slice(i, None, len(names))) for i, name in enumerate(names)}


def _weights(wanted: Experiment) -> dict[str, float]:
    return {name: site.weight for name, site in zip(site_names(wanted), wanted.sites, strict=False)}


def _budget(wanted: Experiment) -> float:
    return wanted.privacy.budget or wanted.privacy.epsilon + (wanted.privacy.evaluate_epsilon or 0.0)


def _remote(wanted: Experiment) -> Federation:
    own = settings.load()
    waiting = own.connection
    store = wanted.output.checkpoint
    named = dict(zip(site_names(wanted), wanted.curators, strict=True))
    if only := named.get(ALONE):
        server = only.server_name or own.curator.server_name
        hospital = Hospital.connect(
            only.address,
            credentials=only.credentials,
            run_directory=store,
            server_name=server,
            purpose=wanted.purpose,
            patience_s=waiting.patience_seconds,
            timeout_s=waiting.timeout_seconds,
            start_s=waiting.start_seconds,
        )
        return Federation({ALONE: hospital})
    return Federation.connect(
        {name: curator.address for name, curator in named.items()},
        credentials={name: curator.credentials for name, curator in named.items()},
        weights=_weights(wanted),
        run_directory=store,
        server_names={name: curator.server_name for name, curator in named.items()},
        purpose=wanted.purpose,
        patience_s=waiting.site_patience_seconds,
        straggler_s=waiting.straggler_seconds,
        absent=waiting.absent_sites,
        timeout_s=waiting.timeout_seconds,
        start_s=waiting.start_seconds,
    )


def _local(wanted: Experiment, task: Task, stack: ExitStack) -> Mapping[str, Hospital]:
    found = {}
    classes = _classes(wanted, task)
    for name, part in dealt(wanted, task.target).items():
        store = wanted.output.checkpoint
        if store is not None and name != ALONE:
            store = store / "sites" / name
        hospital = stack.enter_context(
            LocalHospital(
                part.images.numpy(),
                epsilon=_budget(wanted),
                delta=wanted.privacy.delta,
                name=name if name != ALONE else wanted.data.target.stem if wanted.data.target else wanted.data.task,
                device=wanted.device,
                directory=None if store is None else store / "hospital",
                labels=part.labels.numpy() if classes else None,
                classes=classes or None,
                value_range=_value_range(wanted),
            )
        )
        found[name] = hospital.connect(run_directory=store, purpose=wanted.purpose)
    return found


def published(wanted: Experiment) -> dict[str, PublishedHospital]:
    """The experiment's releases, verified, by site.

    Raises:
        DataInvalid, SettingsError, ProtocolError: see `PublishedHospital.read`.
        SettingsError: they were not made with one extractor.
    """
    found, store = {}, wanted.output.checkpoint
    for name, group in zip(site_names(wanted), wanted.releases, strict=True):
        directory = store if store is None or name == ALONE else store / "sites" / name
        found[name] = PublishedHospital.read(group.file, key=group.key, run_directory=directory)
    first = next(iter(found.values())).release
    for name, hospital in found.items():
        asked = hospital.release.proposal
        if (asked.graph, asked.weights) != (first.proposal.graph, first.proposal.weights):
            raise SettingsError(
                f"the release of {name} was made with another extractor than {first.path}; train from each alone, or "
                "have them prepared with one extractor (`dpswd-client prepare --extractor`)"
            )
    return found


def descriptions(wanted: Experiment, task: Task) -> dict[str, Description]:
    """What the hospitals of a dry run offer, by site.

    Raises:
        SettingsError: what is described does not suffice.
    """
    names, files = site_names(wanted), wanted.dry_run.descriptions
    records = wanted.dry_run.records or len(task.target) // len(names)
    if not files and not records:
        raise SettingsError("a dry run without a stand-in needs dry_run.records or dry_run.descriptions")
    found, budget, delta = {}, _budget(wanted), wanted.privacy.delta
    for index, name in enumerate(names):
        if files:
            found[name] = _described(files[index if len(files) > 1 else 0])
        else:
            found[name] = mock_description(
                records=records,
                record_shape=task.image_shape,
                epsilon=budget,
                delta=delta,
                name=name,
                classes=_classes(wanted, task),
                contract=DataContract(value_range=_value_range(wanted) or ()),
            )
    return found


def _value_range(wanted: Experiment) -> tuple[float, float] | None:
    """What an operator of such records would declare; None of a team's own file, of which nobody says it."""
    return SCALE if wanted.data.source is None else None


def _mocks(wanted: Experiment, task: Task) -> Mapping[str, Hospital]:
    described = descriptions(wanted, task)
    return {name: Hospital(MockCurator(told, seed=index)) for index, (name, told) in enumerate(described.items())}


def _classes(wanted: Experiment, task: Task) -> int:
    """C where the hospital's labels are asked for; 0 where they are nobody's business."""
    if wanted.output.keep_best:
        return task.classes
    if wanted.method.name not in METHODS:  # the ladder asks what labels there are: those of a team's own stand-in
        return task.classes if wanted.data.target is not None else 0
    return task.classes if method_of(wanted.method.name, wanted.method.settings).mechanism.needs_labels else 0


def _described(path: Path) -> Description:
    try:
        return Description.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path} is no JSON: {error}") from error
