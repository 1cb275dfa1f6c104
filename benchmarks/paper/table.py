"""docs/results.md: the paper's figures and tables, ours beside the published numbers; all from benchmarks/results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import digits, heart, office
from benchmarks.accountant.settings import markdown_table
from benchmarks.records import mean_and_deviation, read

Run = dict[str, Any]
_NOT_RUN = "not run"
_TEXT = Path(__file__).parent / "page.txt"
_COMPARED = ["seeds", "source-only", "control", "private", "private - source-only"]


def write(path: Path) -> None:
    """Writes the page from what is on file."""
    parts = {
        "digits": digits_table(read(digits.RESULTS)),
        "office-8": office_table(read(office.RESULTS), epsilon=8.0),
        "office-1": office_table(read(office.RESULTS), epsilon=1.0),
        "heart": heart_table(read(heart.RESULTS)),
    }
    text = _TEXT.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace("{" + name + "}", part)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")


def digits_table(runs: Sequence[Run]) -> str:
    """Both tasks beside the published figures, one line for each method and epsilon."""
    rows = [
        ["published: non-private SWD", "", "95.5", "", "not on file", ""],
        ["published: DP-SWD", "10, nominal", "94.0", "", "83.4", ""],
    ]
    own = [run for run in runs if run["geometry"] == "stretched"]
    order = list(digits.METHODS)
    lines = sorted({(order.index(run["method"]), -run.get("epsilon", 0.0)) for run in own})
    for index, negative in lines:
        chosen = [run for run in own if run["method"] == order[index] and run.get("epsilon", 0.0) == -negative]
        most = max(run.get("steps") or 0 for run in chosen)
        chosen = [run for run in chosen if (run.get("steps") or 0) == most]
        cells = [digits.METHODS[order[index]].title, f"{-negative:g}" if negative else ""]
        for task in ("mnist-usps", "usps-mnist"):
            values = [run["accuracy"] for run in chosen if run["task"] == task]
            cells += [mean_and_deviation(values) if values else _NOT_RUN, str(len(values))]
        rows.append(cells)
    return markdown_table(["method", "epsilon", "MNIST to USPS", "seeds", "USPS to MNIST", "seeds"], rows)


def office_table(runs: Sequence[Run], *, epsilon: float) -> str:
    """Every pair on file, and the mean over pairs of the means over seeds."""
    own = [run for run in runs if run["epsilon"] == epsilon]
    if not own:
        return f"{_NOT_RUN.capitalize()}."
    pairs = sorted({(run["source"], run["target"]) for run in own})
    groups = [[run for run in own if (run["source"], run["target"]) == pair] for pair in pairs]
    rows = [
        [source, target, str(group[0]["records"]), *_compared(group, "accuracy", 1)]
        for (source, target), group in zip(pairs, groups, strict=True)
    ]
    columns = ("source_only", "trained_on", "accuracy")
    means = [statistics.mean(statistics.mean(run[name] for run in group) for group in groups) for name in columns]
    rows.append(
        [f"mean of {len(pairs)} pairs", "", "", "", *(f"{mean:.1f}" for mean in means), f"{means[2] - means[0]:+.1f}"]
    )
    return markdown_table(["source", "target", "n", *_COMPARED], rows)


def heart_table(runs: Sequence[Run]) -> str:
    """Every hospital on file."""
    if not runs:
        return f"{_NOT_RUN.capitalize()}."
    rows = []
    for target, epsilon in sorted({(run["target"], run["epsilon"]) for run in runs}):
        group = [run for run in runs if (run["target"], run["epsilon"]) == (target, epsilon)]
        rows.append([target, str(group[0]["records"]), f"{epsilon:g}", *_compared(group, "auc", 2)])
    return markdown_table(["hospital", "n", "epsilon", *_COMPARED], rows)


def _compared(group: Sequence[Run], figure: str, places: int) -> list[str]:
    shown = [mean_and_deviation([run[name] for run in group], places) for name in ("source_only", "trained_on", figure)]
    gain = statistics.mean(run[figure] - run["source_only"] for run in group)
    return [str(len(group)), *shown, f"{gain:+.{places}f}"]
