"""What the stored cells say, and docs/ml-team/shifts.md's table."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.shifts.cells import KINDS, TUNED_ON, all_cells, composed_cells, composition
from benchmarks.shifts.made import INSIDE
from dpswd.public_client.plans.measured import Battery
from dpswd.public_client.replay.priors import MOST_LOST, UNSURE
from dpswd.public_client.replay.verdict import VIEW_FITS, VIEW_MOST

_PAGE = Path(__file__).parent / "page.txt"
_KINDS = {
    "inside": "images turned, or of another real device",
    "inverted": "images inverted",
    "outside": "images blurred, noisy, occluded, textured, blended",
    "frequencies": "half of the classes, or ten or a hundred times rarer ones",
    "vectors": "vectors and tables, all other shifts",
    "nothing": "no shift, or of the labels alone",
}
"""The README's rows of the battery, by `_kind`."""
_MODALITIES = {name: "images" if kind == "images" else "vectors" for name, kind in KINDS.items()}
_MODALITIES |= {"digits": "images", "series": "sequences"}  # of the second list, whose others are vectors


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all stored cells, and over those of sources that no threshold was looked at on.

    Args:
        runs: as `cells.run` gives them.

    Returns:
        `cells`, `share_above_minus_1`, `share_above_minus_3`, `worst`, `gained_where_adapted` and more; `held_out`
        holds the same of the held-out sources, `drawn` of those from the random order's beginning, `planned` how many
        cells the battery has.
    """
    held_out = [run for run in runs if run["source"] not in TUNED_ON]
    drawn = [run for run in runs if not run.get("chosen")]
    return figures_of(runs) | {
        "held_out": figures_of(held_out),
        "drawn": figures_of(drawn),
        "planned": len(all_cells()),
    }


def battery(runs: list[dict[str, Any]], modality: str) -> Battery:
    """What a plan says of such data (`dpswd.public_client.plans.measured.BATTERIES`).

    Args:
        runs: as `cells.judged` gives them: the battery's, the compositions' and the second list's.
        modality: "images", "sequences" or "vectors"; tables are vectors.
    """
    own = [run for run in runs if _modality(run) == modality]
    gains = [run["adapted"] - run["source_only"] for run in own]
    return Battery(
        cells=len(own),
        retained=sum(run["outcome"] == "kept" for run in own),
        lost=sum(gain < -1.0 for gain in gains),
        worst=round(min(gains), 1),
        median=round(statistics.median(gains), 1),
        best=round(max(gains), 1),
    )


def _modality(run: dict[str, Any]) -> str:
    return _MODALITIES.get(run["source"].removesuffix(" by heart"), "vectors")


def figures_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one list of runs, as `summary` has them.

    Args:
        runs: as `cells.judged` gives them.
    """
    gains = [run["adapted"] - run["source_only"] for run in runs]
    changed = [run for run in runs if run["outcome"] != "kept"]
    views = [run for run in runs if run["outcome"] == "adapted by a view"]
    priors = [run for run in runs if run["outcome"] == "priors corrected"]
    return {
        "cells": len(runs),
        "share_above_minus_1": _share(gain > -1.0 for gain in gains),
        "share_above_minus_3": _share(gain > -3.0 for gain in gains),
        "worst": round(min(gains, default=0.0), 2),
        "mean_gain": _mean(gains),
        "adapted_by_a_view": len(views),
        "priors_corrected": len(priors),
        "kept": len(runs) - len(changed),
        "gained_where_adapted": _share(_gain(run) > 0.0 for run in changed),
        "gained_where_a_view": _share(_gain(run) > 0.0 for run in views),
        "gained_where_priors": _share(_gain(run) > 0.0 for run in priors),
        "mean_gain_where_adapted": _mean([_gain(run) for run in changed]),
    }


def _gain(run: dict[str, Any]) -> float:
    return float(run["adapted"] - run["source_only"])


def _share(values: Any) -> float | None:
    every = list(values)
    return round(sum(every) / len(every), 4) if every else None


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 2) if values else None


def table(runs: list[dict[str, Any]]) -> str:
    """By source and shift: cells, outcomes, mean source-only and adapted accuracy, worst difference."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["source"], run["shift"]].append(run)
    lines = [
        "| source | shift | cells | by a view | priors corrected | kept | source-only | adapted | worst change |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (source, shift), own in sorted(groups.items()):
        outcomes = [run["outcome"] for run in own]
        counts = [outcomes.count(name) for name in ("adapted by a view", "priors corrected", "kept")]
        before, after = (sum(run[key] for run in own) / len(own) for key in ("source_only", "adapted"))
        name = f"{shift} (inside)" if shift in INSIDE else shift
        lines.append(
            f"| {source} | {name} | {len(own)} | {counts[0]} | {counts[1]} | {counts[2]} | {before:.1f} | {after:.1f} "
            f"| {min(_gain(run) for run in own):+.1f} |"
        )
    return "\n".join(lines)


def unseen(runs: list[dict[str, Any]]) -> str:
    """By how the model was trained and shift, of the second list, and what twins change.

    Args:
        runs: as `cells.judged` gives them, with what a correction read on training records alone would have brought.
    """
    lines = []
    for title, heart in (("trained as usual", False), ("by heart", True)):
        own = [run for run in runs if run["source"].endswith("by heart") is heart and "read_on_training_records" in run]
        gains = [_gain(run) for run in own]
        others = [float(run["read_on_training_records"] - run["source_only"]) for run in own]
        lines.append(
            f"- {title}: {len(own)} cells where other class frequencies explain the release: {_say_gains(gains)}; "
            f"read on training records alone {_say_gains(others)}."
        )
    figures = figures_of(runs)
    lines.append(
        f"- All {figures['cells']} cells: {_say_gains([_gain(run) for run in runs])}; {figures['kept']} kept, "
        f"{figures['adapted_by_a_view']} by a view, {figures['priors_corrected']} priors corrected."
    )
    named = [run | {"source": "by heart" if run["source"].endswith("by heart") else "as usual"} for run in runs]
    return "\n".join([*lines, "", table(named)])


def _say_gains(gains: list[float]) -> str:
    lost = sum(gain < -1.0 for gain in gains)
    return f"{_mean(gains) or 0.0:+.1f} in the mean, {min(gains, default=0.0):+.1f} at worst, {lost} lose over a point"


def repeated(runs: list[dict[str, Any]]) -> str:
    """By cell, of the same records and model with fresh noise each time.

    Args:
        runs: as `cells.run` gives them.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["source"], run["shift"], run["n"], run["epsilon"], run["seed"]].append(run)
    lines = [
        "| source | shift | n | epsilon | seed | times | changed | source-only | mean change | worst | above -1 |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (source, shift, n, epsilon, seed), own in sorted(groups.items()):
        gains = [_gain(run) for run in own]
        changed, above = sum(run["outcome"] != "kept" for run in own), sum(gain > -1.0 for gain in gains)
        lines.append(
            f"| {source} | {shift} | {n:,} | {epsilon:g} | {seed} | {len(own)} | {changed} "
            f"| {own[0]['source_only']:.1f} | {statistics.mean(gains):+.1f} | {min(gains):+.1f} | {above} |"
        )
    return "\n".join(lines)


def composed_table(runs: list[dict[str, Any]]) -> str:
    """By whether a view can express it, and by how much the release says.

    Args:
        runs: as `cells.run` gives them, of compositions.
    """
    lines = ["| | releases | changed | mean change of these | worst | lost over 1 |", "|---|---|---|---|---|---|"]

    def certainty(run: dict[str, Any]) -> float:
        return float(run["n"] * run["epsilon"])

    groups = {
        "all": runs,
        "a view can express it": [run for run in runs if not composition(run["shift"]).outside],
        "no view can": [run for run in runs if composition(run["shift"]).outside],
        "n x epsilon below 1,000": [run for run in runs if certainty(run) < 1000],
        "1,000 to 10,000": [run for run in runs if 1000 <= certainty(run) < 10_000],
        "10,000 and more": [run for run in runs if certainty(run) >= 10_000],
    }
    for title, own in groups.items():
        gains = [_gain(run) for run in own if run["outcome"] != "kept"]
        changes = f"{statistics.mean(gains):+.1f} | {min(gains):+.1f}" if gains else "none | none"
        lost = sum(gain < -1.0 for gain in gains)
        lines.append(f"| {title} | {len(own)} | {len(gains)} | {changes} | {lost} |")
    return "\n".join(lines)


def kinds(runs: list[dict[str, Any]], composed: list[dict[str, Any]], checks: list[dict[str, Any]]) -> str:
    """Where it gains, where it keeps, where it is wrong.

    Args:
        runs: the battery's.
        composed: of random compositions of shifts.
        checks: of the second list.
    """
    groups: dict[str, list[dict[str, Any]]] = {title: [] for title in _KINDS.values()}
    for run in runs:
        groups[_KINDS[_kind(run["shift"], _modality(run))]].append(run)
    groups |= {"random compositions of shifts of images": composed, "a second list of other data and shifts": checks}
    return "\n".join(_of_kind(title, own) for title, own in groups.items() if own)


def _of_kind(title: str, own: list[dict[str, Any]]) -> str:
    gains = [_gain(run) for run in own if run["outcome"] != "kept"]
    before, after = (statistics.mean(run[name] for run in own) for name in ("source_only", "adapted"))
    changed = f"{len(gains)} | {sum(gain > 0.0 for gain in gains)} | {min(gains):+.1f}" if gains else "0 | | "
    return f"| {title} | {len(own)} | {before:.1f} | {after:.1f} | {changed} |"


def _kind(shift: str, modality: str) -> str:
    if shift in ("none", "concept"):  # the latter changes labels alone, which no release can show
        return "nothing"
    if shift in ("half", "ten-to-one", "hundred-to-one"):
        return "frequencies"
    if modality == "vectors":
        return "vectors"
    return "inside" if shift in INSIDE else "inverted" if shift == "inverted" else "outside"


def page(
    runs: list[dict[str, Any]],
    checks: list[dict[str, Any]],
    composed: list[dict[str, Any]],
) -> str:
    """docs/ml-team/shifts.md.

    Args:
        runs: the battery's.
        checks: of the second list.
        composed: of random compositions of shifts.
    """
    whole = summary(runs)
    values = {
        "view_fits": f"{VIEW_FITS:.0%}",
        "view_most": f"{VIEW_MOST:.0%} of the variance",
        "planned": f"{whole['planned']:,}",
        "drawn": f"{whole['drawn']['cells']:,}",
        "kinds": kinds(runs, composed, checks),
        "composed": composed_table(composed),
        "composed_done": str(len(composed)),
        "composed_planned": str(len(composed_cells())),
        "unsure": f"{UNSURE:.0%}",
        "most_lost": f"{MOST_LOST:g}",
    }
    text = _PAGE.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text
