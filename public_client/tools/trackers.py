"""A training's numbers in MLflow and in Weights & Biases, epsilon among them, as `TrainingLog` writes them to disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dpswd.public_client.training.logs import Recorder, TrainingLog
from dpswd.shared.core.errors import SettingsError


class MlflowLog(Recorder):
    """Logs to the active run of MLflow, or to one of its own; where to is MLflow's to say (``MLFLOW_TRACKING_URI``).

    The name is of a run of its own; raises SettingsError where MLflow is not installed.
    """

    def __init__(self, name: str | None = None) -> None:
        self._mlflow = installed("mlflow")
        active = self._mlflow.active_run()
        self._run = active or self._mlflow.start_run(run_name=name)
        self._own = active is None

    def scalars(self, site: str, step: int, **values: float) -> None:
        """Records numbers of one step of one site, by ``site/name``; what is not a number is left out."""
        self._mlflow.log_metrics(_named(site, values), step=step, run_id=self._run.info.run_id)

    def close(self) -> None:
        """Ends a run of its own."""
        if self._own:
            self._mlflow.end_run()


class WandbLog(Recorder):
    """Logs to the active run of Weights & Biases, or to one of its own (``WANDB_MODE=offline``: to a folder alone).

    The name is of a run of its own; raises SettingsError where wandb is not installed.
    """

    def __init__(self, name: str | None = None) -> None:
        wandb = installed("wandb")
        self._own = wandb.run is None
        self._run = wandb.run or wandb.init(name=name)
        self._sites: set[str] = set()

    def scalars(self, site: str, step: int, **values: float) -> None:
        """Records numbers of one step of one site, by ``site/name``; each site has steps of its own."""
        if site not in self._sites:
            self._sites.add(site)
            self._run.define_metric(f"{site}/*", step_metric=f"{site}/step")
        self._run.log(_named(site, values) | {f"{site}/step": step})

    def close(self) -> None:
        """Ends a run of its own."""
        if self._own:
            self._run.finish()


TRACKERS: dict[str, Callable[[str | None], MlflowLog | WandbLog]] = {"mlflow": MlflowLog, "wandb": WandbLog}
"""By the name in ``output.track``."""


class TrackedLog(TrainingLog):
    """A log in a directory whose numbers `TRACKERS` are told too, as runs of a name; use as a context manager."""

    def __init__(self, directory: Path, trackers: Sequence[str], *, name: str) -> None:
        self._trackers = [TRACKERS[each](name) for each in trackers]
        super().__init__(directory)

    def scalars(self, site: str, step: int, **values: float) -> None:
        """See `TrainingLog`."""
        super().scalars(site, step, **values)
        for tracker in self._trackers:
            tracker.scalars(site, step, **values)

    def close(self) -> None:
        """Ends the files, and the trackers' runs."""
        super().close()
        for tracker in self._trackers:
            tracker.close()


def installed(library: str) -> Any:
    """The library; raises SettingsError, with what to install, where it is not there."""
    try:
        return import_module(library)
    except ImportError as error:
        raise SettingsError(f"{library} is not installed: pip install {library}") from error


def _named(site: str, values: dict[str, float]) -> dict[str, float]:
    return {f"{site or 'site'}/{name}": value for name, value in values.items() if not math.isnan(value)}
