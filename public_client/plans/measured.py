"""Roughly what a plan can reach: what the same method reached where it was measured with as much to go by.

How much a release tells grows with records times epsilon (its noise falls with both), so a plan is put beside the
measured run of its method that has the most of it, but not more than the plan, if that was on data of its kind: the
same modality and channels, about as many records and as large ones, as many classes. Otherwise nothing is known. The
figures are those of docs/ml-team/results.md and stand in measured.json; a test holds them to the files of results.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources

from dpswd.public_client.plans.plan import Plan


@dataclass(frozen=True)
class Measured:
    """One line of a table of results, over five seeds or more; of labelled hospitals three, or twenty splits.

    Attributes:
        method: its name.
        modality: "images" or "vectors".
        task: source and target.
        records: n of the target.
        shape: of one record.
        classes: of the labels.
        epsilon: of the whole run.
        before: of the source-trained model, in percent; of "dpda" of one that the hospital could train and hand over.
        after: of the adapted one, in percent.
        deviation: of `after` over seeds; None for a mean over several targets.
        without: what the same training reaches without any release, in percent; None where there is no such thing.
        page: where the table stands.
    """

    method: str
    modality: str
    task: str
    records: int
    shape: tuple[int, ...]
    classes: int
    epsilon: float
    before: float
    after: float
    deviation: float | None
    without: float | None = None
    page: str = "docs/ml-team/results.md"

    def __str__(self) -> str:
        """In words."""
        spread = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        control = "" if self.without is None else f", {self.without:.1f} without any release"
        return (
            f"{self.task}, {self.records:,} records, epsilon {self.epsilon:g}: accuracy {self.before:.1f} -> "
            f"{self.after:.1f}{spread} %{control} ({self.page})"
        )


_STORED = json.loads(resources.files("dpswd.public_client.plans").joinpath("measured.json").read_text(encoding="ascii"))
MEASURED = tuple(Measured(**{**each, "shape": tuple(each["shape"])}) for each in _STORED["measured"])
"""What was measured: by a method's own defaults, but "rows" with 400 steps and `alignment_weight` 10."""


ALIKE = 3.0
"""Times as many records, or numbers in a record, as were measured: as far as the figures are taken to say something."""


@dataclass(frozen=True)
class Battery:
    """What the default made of shifts and data that nobody tuned it for (docs/ml-team/shifts.md), misses included.

    Attributes:
        cells: how many runs, each of another source, shift, size, epsilon or seed.
        retained: in how many of them the model was left as it was.
        lost: in how many accuracy fell by more than a point.
        worst: change of accuracy over all of them, in percentage points.
        median: the same.
        best: the same.
    """

    cells: int
    retained: int
    lost: int
    worst: float
    median: float
    best: float

    def __str__(self) -> str:
        """In words."""
        return (
            f"of {self.cells} runs on other data and shifts {self.retained} kept the model, {self.lost} lost more "
            f"than a point; accuracy changed by {self.worst:+.1f} to {self.best:+.1f}, {self.median:+.1f} in the "
            "median (docs/ml-team/shifts.md)"
        )


BATTERIES = {modality: Battery(**each) for modality, each in _STORED["battery"].items()}
"""By modality; tables are vectors. Of the battery, of random compositions of shifts and of the second list."""

_MODALITIES = {3: "images", 2: "sequences", 1: "vectors"}


def modality_of(record_shape: tuple[int, ...] | None) -> str:
    """What records of a shape are called here; "records" where the shape says nothing."""
    return _MODALITIES.get(len(record_shape or ()), "records")


def measured_alike(plan: Plan) -> Measured | None:
    """The measured run of the plan's method, on data of its kind, with the most records times epsilon up to the plan's.

    Returns:
        None where nothing of the kind was measured with so little.
    """
    most = plan.records * plan.epsilon * (1 + 1e-9)
    enough = [m for m in _alike(plan) if m.records * m.epsilon <= most]
    return max(enough, key=lambda m: m.records * m.epsilon, default=None)


def measured_text(plan: Plan) -> list[str]:
    """What a team may roughly expect, in two lines or three."""
    modality = modality_of(plan.record_shape)
    lines = []
    if alike := measured_alike(plan):
        lines.append(f"{alike};" if plan.classes else f"{alike}, if yours are of {alike.classes} classes too;")
    else:
        classes = f" of {plan.classes} classes" if plan.classes else ""
        kind = f"{plan.records:,} {modality} of {math.prod(plan.record_shape):,} numbers{classes}"
        by = f"with so few records times epsilon {plan.method.name}" if _alike(plan) else plan.method.name
        lines.append(f"not known for your kind of data: on {kind} {by} was not measured;")
    if plan.method.name == "replay" and modality in BATTERIES:
        lines.append(f"{BATTERIES[modality]};")
    return [*lines, "`evaluate` tells, for a small epsilon of its own"]


def _alike(plan: Plan) -> list[Measured]:
    """What was measured of the method on data of the plan's kind, whatever the epsilon."""
    modality, shape = modality_of(plan.record_shape), plan.record_shape
    return [
        m
        for m in MEASURED
        if (m.method, m.modality) == (plan.method.name, modality)
        and _near(plan.records, m.records)
        and (len(m.shape) < 3 or m.shape[0] == shape[0])  # channels
        and all(map(_near, shape, m.shape))
        and plan.classes in (0, m.classes)  # 0: the hospital does not say
    ]


def _near(one: int, other: int) -> bool:
    return max(one, other) <= ALIKE * min(one, other)
