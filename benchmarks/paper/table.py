"""docs/ml-team/results.md: the paper's figures and tables, ours beside the published, from what is on file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import digits, heart, heart_ceiling, heart_made, office, small_hospitals
from benchmarks.accountant.settings import markdown_table
from benchmarks.records import mean_and_deviation, on_file, read

Run = dict[str, Any]
_NOT_RUN = "not run"
_TEXT = Path(__file__).parent / "page.txt"
_COMPARED = ["source-only", "control", "private", "private - source-only"]


def write(path: Path) -> None:
    """Writes the page from what is on file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(), encoding="utf-8")
    print(f"wrote {path}")


def page() -> str:
    """docs/ml-team/results.md."""
    small = read(small_hospitals.RESULTS)
    control = next(run for run in small if run["epsilon"] is None)
    parts = {
        "digits": digits_table(read(digits.RESULTS)),
        "small": small_hospitals.table(small),
        "records": str(control["records"]),
        "releases": str(sum(run["epsilon"] == small_hospitals.EPSILONS[0] for run in small)),
        "source_only:.1f": f"{control['source_only']:.1f}",
        "office": office_table(read(office.RESULTS)),
        "heart": heart_table(read(heart.RESULTS)),
    }
    text = _TEXT.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace("{" + name + "}", part)
    return text


def hearts() -> str:
    """What exact knowledge of a hospital would bring, and the made targets that the view was chosen on."""
    return f"{ceiling_table(read(heart_ceiling.RESULTS))}\n\n{made_table(read(heart_made.RESULTS))}"


def digits_table(runs: Sequence[Run]) -> str:
    """Both tasks beside the published figures, one line for each method and epsilon."""
    rows = [
        ["published: non-private SWD", "", "95.5", "not on file"],
        ["published: DP-SWD", "10, nominal", "94.0", "83.4"],
    ]
    own = [run for run in runs if run["geometry"] == "stretched"]
    order = list(digits.METHODS)
    lines = sorted({(order.index(run["method"]), -run.get("epsilon", 0.0)) for run in own})
    for index, negative in lines:
        chosen = [run for run in own if run["method"] == order[index] and run.get("epsilon", 0.0) == -negative]
        most = max(run.get("steps") or 0 for run in chosen)
        chosen = [run for run in chosen if (run.get("steps") or 0) == most]
        cells = [digits.METHODS[order[index]], f"{-negative:g}" if negative else ""]
        for task in ("mnist-usps", "usps-mnist"):
            values = [run["accuracy"] for run in chosen if run["task"] == task]
            cells.append(mean_and_deviation(values) if values else _NOT_RUN)
        rows.append(cells)
    return markdown_table(["method", "epsilon", "MNIST to USPS", "USPS to MNIST"], rows)


def office_table(runs: Sequence[Run]) -> str:
    """For each epsilon the means over pairs of the means over seeds, and the pairs that gained and lost most."""
    rows = []
    for epsilon in sorted({run["epsilon"] for run in runs}, reverse=True):
        groups: dict[str, list[Run]] = {}
        for run in runs:
            if run["epsilon"] == epsilon:
                groups.setdefault(f"{run['source']} to {run['target']}", []).append(run)
        columns = ("source_only", "trained_on", "accuracy")
        of = {pair: [statistics.mean(run[name] for run in own) for name in columns] for pair, own in groups.items()}
        gains = {pair: means[2] - means[0] for pair, means in of.items()}
        means = [statistics.mean(column) for column in zip(*of.values(), strict=True)]
        ends = [f"{pair} {gains[pair]:+.1f}" for pair in (max(gains, key=gains.get), min(gains, key=gains.get))]  # type: ignore[arg-type]
        above = f"{sum(gain > 0.0 for gain in gains.values())} of {len(gains)}"
        rows.append([f"{epsilon:g}", *(f"{mean:.1f}" for mean in means), f"{means[2] - means[0]:+.1f}", above, *ends])
    return markdown_table(["epsilon", *_COMPARED, "pairs above", "most", "least"], rows)


def heart_table(runs: Sequence[Run]) -> str:
    """Every hospital on file, for each choice of columns."""
    if not runs:
        return f"{_NOT_RUN.capitalize()}."
    rows = []
    for columns, target, epsilon in sorted({(run["columns"], run["target"], run["epsilon"]) for run in runs}):
        settings = {"columns": columns, "target": target, "epsilon": epsilon}
        group = [run for run in runs if on_file(settings, [run])]
        luck = statistics.mean(run["chance"] for run in group)
        changed = sum(run["changed"] for run in group)
        task = [str(columns), target, str(group[0]["records"])]
        rows.append([*task, *_compared(group, "auc", 2), f"{luck:.2f}", f"{changed} of {len(group)}"])
    heads = ["columns", "hospital", "n", *_COMPARED, "± over patients", "adapted at all"]
    return markdown_table(heads, rows)


def ceiling_table(runs: Sequence[Run]) -> str:
    """Gains over source-only of the limits, one line for each kind of knowledge."""
    if not runs:
        return f"{_NOT_RUN.capitalize()}."
    tasks = sorted({(run["columns"], run["target"]) for run in runs})
    groups = [[run for run in runs if (run["columns"], run["target"]) == task] for task in tasks]
    rows = [
        ["source-only: AUC", *(mean_and_deviation([run["source_only"] for run in group], 1) for group in groups)],
        *(
            [title, *(_signed([run[name] - run["source_only"] for run in group]) for group in groups)]
            for name, title in heart_ceiling.LIMITS.items()
        ),
    ]
    return markdown_table(["known of the target", *(f"{target}, {columns}" for columns, target in tasks)], rows)


def made_table(runs: Sequence[Run]) -> str:
    """Made targets by the number of columns with gaps."""
    if not runs:
        return f"{_NOT_RUN.capitalize()}."
    rows = []
    for columns, some in sorted({(run["columns"], run["with_gaps"] > 0) for run in runs}):
        group = [run for run in runs if (run["columns"], run["with_gaps"] > 0) == (columns, some)]
        counts = [sum(run[name] for run in group) for name in ("with_gaps", "found", "false")]
        gains = [[run[name] - run["source_only"] for run in group] for name in ("gaps", "gains", "known")]
        worse = sum(run["gaps"] < run["source_only"] for run in group)
        row = [str(columns), "some" if some else "none", str(len(group)), f"{counts[1]} of {counts[0]}", str(counts[2])]
        rows.append([*row, *(_signed(values, 2) for values in gains), f"{worse} of {len(group)}"])
    heads = ["columns", "gaps", "targets", "columns found", "columns wrongly named", "view of gaps", "gains and biases"]
    return markdown_table([*heads, "rates known, gaps together", "view of gaps below source-only"], rows)


def _signed(values: Sequence[float], places: int = 1) -> str:
    spread = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.{places}f}{spread}"


def _compared(group: Sequence[Run], figure: str, places: int) -> list[str]:
    shown = [mean_and_deviation([run[name] for run in group], places) for name in ("source_only", "trained_on", figure)]
    gain = statistics.mean(run[figure] - run["source_only"] for run in group)
    return [*shown, f"{gain:+.{places}f}"]
