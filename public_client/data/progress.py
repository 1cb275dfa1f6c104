"""Progress bars: what is being done, how far it is, and what it has cost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column


class Reporter:
    """What a training loop tells while it runs; this one shows nothing."""

    def advance(self, text: str) -> None:
        """One more unit of work is done; `text` says where things stand."""

    def tell(self, text: str) -> None:
        """Says where things stand, with no more work done."""


class _Bar(Reporter):
    def __init__(self, progress: Progress, task: int) -> None:
        self._progress = progress
        self._task = task

    def advance(self, text: str) -> None:
        self._progress.update(self._task, advance=1, status=text)  # type: ignore[arg-type]

    def tell(self, text: str) -> None:
        self._progress.update(self._task, status=text)  # type: ignore[arg-type]

    def finish(self) -> None:
        """What was done is all: less work than was foreseen need not look unfinished."""
        done = next(task.completed for task in self._progress.tasks if task.id == self._task)
        self._progress.update(self._task, total=done)  # type: ignore[arg-type]


class _Display:
    """The one live display of the process: bars of trainings that run in parallel stand below each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._bars = 0

    def open(self, title: str, total: int, done: int) -> _Bar:
        with self._lock:
            if self._progress is None:
                self._progress = Progress(*_columns(), console=Console(stderr=True))
                self._progress.start()
            self._bars += 1
            return _Bar(self._progress, self._progress.add_task(title, total=total, completed=done, status=""))

    def close(self) -> None:
        with self._lock:
            self._bars -= 1
            if self._bars == 0 and self._progress is not None:
                self._progress.stop()
                self._progress = None


_DISPLAY = _Display()


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description:<22}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=12),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )


@contextmanager
def reporting(title: str, total: int, *, shown: bool, done: int = 0) -> Iterator[Reporter]:
    """A progress bar on standard error, or silence. Bars that are open at once share one display.

    Args:
        title: what is being done.
        total: units of work.
        shown: whether anything is shown.
        done: units that were done earlier (a resumed run).
    """
    if not shown:
        yield Reporter()
        return
    bar = _DISPLAY.open(title, total, done)
    try:
        yield bar
        bar.finish()
    finally:
        _DISPLAY.close()
