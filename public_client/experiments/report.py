"""What a finished comparison looks like: a table for the terminal and a plot as PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from public_client.training.history import HistoryPoint


@dataclass(frozen=True)
class Row:
    """One method of a comparison.

    Attributes:
        method: for the reader.
        accuracy: on the target, percent.
        spent: epsilon spent at the curator; None where no curator was asked, inf where there is no privacy.
        left: epsilon left of the budget; None where there is none.
        seconds: wall-clock of this method's own training.
    """

    method: str
    accuracy: float
    spent: float | None
    left: float | None
    seconds: float


@dataclass(frozen=True)
class Curve:
    """A training's course, for the plot.

    Attributes:
        label: for the legend.
        points: from the training's history.
    """

    label: str
    points: Sequence[HistoryPoint]


def print_table(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Prints the comparison; costs are rounded up, what is left down."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method")
    for name in ("accuracy", "epsilon spent", "epsilon left", "seconds"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.method,
            f"{row.accuracy:.1f}%",
            _cost(row.spent),
            "" if row.left is None else f"{math.floor(row.left * 1e3) / 1e3:.3f}",
            f"{row.seconds:.0f}",
        )
    console.print(table)


def _cost(epsilon: float | None) -> str:
    if epsilon is None:
        return "none needed"
    return "no privacy" if math.isinf(epsilon) else f"{math.ceil(epsilon * 1e3) / 1e3:.3f}"


def plot(path: Path, *, title: str, curves: Sequence[Curve], levels: Sequence[tuple[str, float]]) -> None:
    """Accuracy against the share of steps and against epsilon.

    Args:
        path: the PNG.
        title: above both panels.
        curves: private trainings.
        levels: (label, accuracy in percent) of methods without a course, drawn as lines.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for index, curve in enumerate(curves):
        points = list(curve.points)
        last = max(point.step for point in points) or 1
        style: dict[str, Any] = {"color": f"C{index}", "marker": "o", "markersize": 3}
        if len(points) <= 2:  # all was released at once: a line from the start would show a course that there was not
            points, style = points[-1:], {"color": f"C{index}", "marker": "*", "markersize": 12, "linestyle": "none"}
        accuracies = [point.accuracy for point in points]
        left.plot([100 * point.step / last for point in points], accuracies, label=curve.label, **style)
        right.plot([point.epsilon for point in points], accuracies, **style)
    for index, (label, accuracy) in enumerate(levels):
        for axis in (left, right):
            axis.axhline(accuracy, linestyle="--", linewidth=1, color=f"C{len(curves) + index}", label=label)
    left.set_xlabel("share of the run's steps (%)")
    right.set_xlabel("epsilon that the steps so far cost (replace one record)")
    left.set_ylabel("accuracy on the private target (%)")
    left.set_xlim(0, 105)
    right.set_xlim(left=0)
    left.legend(fontsize=8, loc="best")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    plt.close(figure)
