"""Progress bars: what is being done, how far it is, and what it has cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column


class Reporter(Protocol):
    """What a training loop tells while it runs."""

    def advance(self, text: str) -> None:
        """One more unit of work is done; `text` says where things stand."""
        ...


class _Silent:
    def advance(self, text: str) -> None:
        """Nothing is shown."""


class _Bar:
    def __init__(self, progress: Progress, task: int) -> None:
        self._progress = progress
        self._task = task

    def advance(self, text: str) -> None:
        """Moves the bar by one and shows the text behind it."""
        self._progress.update(self._task, advance=1, status=text)  # type: ignore[arg-type]


@contextmanager
def reporting(title: str, total: int, *, shown: bool, done: int = 0) -> Iterator[Reporter]:
    """A progress bar on standard error, or silence.

    Args:
        title: what is being done.
        total: units of work.
        shown: whether anything is shown.
        done: units that were done earlier (a resumed run).
    """
    if not shown:
        yield _Silent()
        return
    columns = (
        TextColumn("{task.description:<22}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=12),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _Bar(progress, progress.add_task(title, total=total, completed=done, status=""))
