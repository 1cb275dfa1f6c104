"""A curator's home for a test: records, a budget, and clients with credentials."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from dpswd.private_curator.settings.groups import RecordsSettings
from dpswd.private_curator.storage import home_directory
from dpswd.private_curator.storage.home_directory import HomeDirectory

ML_TEAM = MappingProxyType({"ml-team": "credentials"})


def made_home(
    directory: Path,
    records: npt.NDArray[np.float32] | RecordsSettings,
    *,
    epsilon: float = 50.0,
    clients: Mapping[str, str] = ML_TEAM,
    groups: Mapping[str, Mapping[str, object]] | None = None,
) -> HomeDirectory:
    """Makes `directory`/home, delta 1e-5, with the mechanisms of published methods turned on.

    Args:
        directory: exists.
        records: an array, which is written to records.npy, or the settings of a file.
        epsilon: the budget.
        clients: for each client the folder of `directory` that gets its credentials.
        groups: further settings, by group.
    """
    if not isinstance(records, RecordsSettings):
        np.save(directory / "records.npy", records)
        records = RecordsSettings(file=directory / "records.npy")
    groups = {"clients": {"published_mechanisms": True}, **(groups or {})}
    made = home_directory.create(
        directory / "home", records=records, epsilon=epsilon, delta=1e-5, names=["localhost"], groups=groups
    )
    with made.open_ledger() as ledger:
        for name, folder in clients.items():
            issued, key = made.authority.make_client(name=name)
            made.authority.write_credentials(issued, directory / folder, key_pem=key)
            ledger.add_client(name, issued.fingerprint)
    return made


def copied_home(made: HomeDirectory, path: Path, *, operator: str | None = None) -> HomeDirectory:
    """A copy of a home, which may act in its own place because somebody has said so."""
    shutil.copytree(made.path, path)
    copy = HomeDirectory(path, operator=operator)
    with copy.open_ledger(here=False) as ledger:
        ledger.move(reason="a test's own copy")
    return copy
