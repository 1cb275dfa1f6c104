"""Whom an experiment asks: real curators, rehearsal hospitals on this machine, or mock curators of a dry run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from public_client import settings
from public_client.curator.description import Description
from public_client.curator.stub import Curator
from public_client.data.datasets import Task
from public_client.experiments.file import Experiment, name_of
from public_client.testing.local_hospital import RehearsalHospital
from public_client.testing.mock import MockCurator, mock_description
from public_client.training.federation import Federation
from public_client.training.sites import ALONE
from shared.errors import SettingsError


@contextmanager
def connected_parties(wanted: Experiment, task: Task) -> Iterator[Curator | Federation]:
    """Mock curators, real ones, or rehearsal hospitals; one alone is a `Curator`, several a `Federation`.

    Args:
        wanted: a checked experiment.
        task: its data; rehearsals serve the target, mocks imitate its shape.

    Raises:
        SettingsError: what is described does not suffice.
    """
    if wanted.dry_run.enabled:
        mocks = _mocks(wanted, task)
        yield mocks[ALONE] if set(mocks) == {ALONE} else Federation(mocks, weights=_weights(wanted))
        return
    if not wanted.curators:
        with _rehearsal(wanted, task) as connected:
            yield connected
        return
    store = wanted.output.checkpoint
    own = settings.load()
    patience = {"timeout_s": own.connection.timeout_seconds, "patience_s": own.connection.patience_seconds}
    if len(wanted.curators) == 1:
        only = wanted.curators[0]
        name = only.server_name or own.curator.server_name
        with Curator.connect(
            only.address, credentials=only.credentials, run_directory=store, server_name=name, **patience
        ) as curator:
            yield curator
        return
    named = {name_of(curator, index): curator for index, curator in enumerate(wanted.curators)}
    with Federation.connect(
        {name: curator.address for name, curator in named.items()},
        credentials={name: curator.credentials for name, curator in named.items()},
        weights=_weights(wanted),
        run_directory=store,
        server_names={name: curator.server_name for name, curator in named.items()},
        **patience,
    ) as federation:
        yield federation


def _weights(wanted: Experiment) -> dict[str, float]:
    return {name_of(curator, index): curator.weight for index, curator in enumerate(wanted.curators)}


def _mocks(wanted: Experiment, task: Task) -> dict[str, Curator]:
    names = [name_of(curator, index) for index, curator in enumerate(wanted.curators)]
    if not names:
        names = [f"hospital-{i + 1}" for i in range(wanted.rehearsal.hospitals)]
    if len(names) == 1:
        names = [ALONE]
    files = wanted.dry_run.descriptions
    found: dict[str, Curator] = {}
    for index, name in enumerate(names):
        if files:
            description = _described(files[index if len(files) > 1 else 0])
        else:
            records = wanted.dry_run.records or len(task.target) // len(names)
            if not records:
                raise SettingsError("a dry run without a stand-in needs dry_run.records or dry_run.descriptions")
            description = mock_description(
                records=records,
                record_shape=task.image_shape,
                epsilon=wanted.privacy.budget or wanted.privacy.epsilon,
                delta=wanted.privacy.delta,
                name=name,
            )
        found[name] = MockCurator(description, seed=index)
    return found


def _described(path: Path) -> Description:
    try:
        return Description.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path} is no JSON: {error}") from error


@contextmanager
def _rehearsal(wanted: Experiment, task: Task) -> Iterator[Curator | Federation]:
    count = wanted.rehearsal.hospitals
    store = wanted.output.checkpoint
    budget = wanted.privacy.budget or wanted.privacy.epsilon
    with ExitStack() as stack:
        found: dict[str, Curator] = {}
        for index in range(count):
            name = ALONE if count == 1 else f"hospital-{index + 1}"
            own = store if store is None or count == 1 else store / "sites" / name
            hospital = stack.enter_context(
                RehearsalHospital(
                    task.target.images[index::count].numpy(), epsilon=budget, delta=wanted.privacy.delta,
                    name=wanted.data.task if count == 1 else name, device=wanted.device,
                    directory=None if own is None else own / "hospital",
                )
            )  # fmt: skip
            found[name] = stack.enter_context(hospital.connect(run_directory=own))
        yield found[ALONE] if count == 1 else Federation(found)
