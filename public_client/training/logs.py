"""A training's numbers on disk while it runs: one CSV file, and TensorBoard's event files where that is installed.

``steps.csv`` has one line for each recorded step of each site. Numbers come from public data and from what was charged;
nothing here is asked of a curator for the log's sake.
"""

from __future__ import annotations

import csv
import math
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

COLUMNS = ("site", "step", "distance", "class_loss", "learning_rate", "epsilon", "accuracy")
"""What can be recorded of a step; a number that a method does not have stays empty."""


class Recorder:
    """What a training loop tells of its steps; this one keeps nothing."""

    def scalars(self, site: str, step: int, **values: float) -> None:
        """Records numbers of one step of one site, by the names of `COLUMNS`."""


class TrainingLog(Recorder, AbstractContextManager["TrainingLog"]):
    """CSV and TensorBoard logs in one directory; use as a context manager. Safe to use from several threads.

    Args:
        directory: made when it is missing; an earlier log in it is continued.
        tensorboard: whether event files are written too; by default where tensorboard is installed.
    """

    def __init__(self, directory: str | Path, *, tensorboard: bool | None = None) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "steps.csv"
        fresh = not path.exists() or path.stat().st_size == 0
        self._file = path.open("a", newline="", encoding="utf-8")
        self._rows = csv.DictWriter(self._file, fieldnames=COLUMNS)
        if fresh:
            self._rows.writeheader()
        self._events: Any = _event_writer(self.directory, required=tensorboard)
        self._lock = threading.Lock()

    def scalars(self, site: str, step: int, **values: float) -> None:
        """Records numbers of one step of one site; what is not a number is left out."""
        numbers = {name: value for name, value in values.items() if not math.isnan(value)}
        with self._lock:
            self._rows.writerow({"site": site, "step": step, **numbers})
            self._file.flush()
            if self._events is not None:
                for name, value in numbers.items():
                    self._events.add_scalar(f"{site}/{name}", value, step)

    def close(self) -> None:
        """Ends both files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _event_writer(directory: Path, *, required: bool | None) -> Any:
    if required is False:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        if required:
            raise
        return None
    return SummaryWriter(log_dir=str(directory), flush_secs=5)
