"""Pictures of a finished training: what its steps cost, and in rehearsals accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.training.history import HistoryPoint


def plot_epsilon(
    path: Path,
    histories: Mapping[str, list[HistoryPoint]],
    plans: Mapping[str, Plan],
    *,
    charged: Mapping[str, float],
    title: str,
) -> None:
    """Epsilon over the steps: what the steps so far would cost alone, and what was charged when the run opened.

    Args:
        path: the PNG.
        histories: by site.
        plans: by site.
        charged: epsilon of each site's run as the curator counted it.
        title: above the plot.
    """
    figure, axis = _panels(1, figsize=(6.4, 4.2))
    for index, (name, points) in enumerate(histories.items()):
        color = f"C{index}"
        axis.plot(
            [point.step for point in points],
            [point.epsilon for point in points],
            color=color, marker="os^Dv"[index % 5], markersize=4, alpha=0.8, label=f"{name}: the steps so far alone",
        )  # fmt: skip
        axis.axhline(charged[name], color=color, linestyle="--", linewidth=1, label=f"{name}: charged at the start")
    axis.set_xlabel("private steps drawn")
    axis.set_ylabel(f"epsilon at delta {next(iter(plans.values())).delta:g}")
    axis.set_ylim(bottom=0)
    axis.set_xlim(left=0)
    axis.legend(fontsize=8, loc="lower right")
    axis.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)


def plot_accuracy(
    path: Path, histories: Mapping[str, Sequence[HistoryPoint]], *, levels: Mapping[str, float], title: str
) -> None:
    """Accuracy against the share of steps and against epsilon.

    Args:
        path: the PNG.
        histories: of private trainings, by what the legend calls them.
        levels: accuracies in percent of methods without a history, drawn as lines.
        title: above both panels.
    """
    figure, (left, right) = _panels(2, figsize=(11, 4.2), sharey=True)
    for index, (label, points) in enumerate(histories.items()):
        last = max(point.step for point in points) or 1
        style: dict[str, Any] = {"color": f"C{index}", "marker": "o", "markersize": 3}
        if len(points) <= 2:  # all was released at once: a line from the start would show a course that there was not
            points, style = points[-1:], {"color": f"C{index}", "marker": "*", "markersize": 12, "linestyle": "none"}
        accuracies = [point.accuracy for point in points]
        left.plot([100 * point.step / last for point in points], accuracies, label=label, **style)
        right.plot([point.epsilon for point in points], accuracies, **style)
    for index, (label, accuracy) in enumerate(levels.items()):
        for axis in (left, right):
            axis.axhline(accuracy, linestyle="--", linewidth=1, color=f"C{len(histories) + index}", label=label)
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


def _panels(count: int, **options: Any) -> tuple[Any, Any]:
    """A figure that no window shows, and its axes beside each other."""
    from matplotlib.figure import Figure  # takes a second to load

    figure = Figure(figsize=options.pop("figsize"), layout="constrained")
    return figure, figure.subplots(1, count, **options)
