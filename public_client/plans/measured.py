"""Roughly what a plan can reach: what the same method reached where it was measured with as much to go by.

How much a release tells grows with records times epsilon (its noise falls with both), so a plan is put beside the
measured run of its method that has the most of it, but not more than the plan, if that was on data of its kind: the
same modality and channels, about as many records and as large ones, as many classes. Otherwise nothing is known. The
figures are those of docs/ml-team/results.md; a test holds them to the files of results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


_TO_USPS, _TO_MNIST = ("MNIST -> USPS", 7291, (1, 28, 28), 10), ("USPS -> MNIST", 60000, (1, 28, 28), 10)
_DIGITS = ("digits behind a turn", 898, (1, 8, 8), 10)
_HEARTS = ("heart disease, four hospitals together", 486, (10,), 2)
_OFFICE = ("Office-Caltech10, mean of six pairs", 958, (800,), 10)
_LABELLED = "docs/ml-team/labelled.md"
_LABELLED_DIGITS = ("USPS -> labelled MNIST, scattering features", 60000, (1, 28, 28), 10)
_SOURCES = "docs/ml-team/labelled-sources.md"
_OWN_USPS = ("labelled MNIST -> own USPS, principal components", 60000, (1, 28, 28), 10)
_OWN_MNIST = ("labelled USPS -> own MNIST, principal components", 7291, (1, 28, 28), 10)
_OWN_OFFICE = ("Office-Caltech10, labelled amazon -> own caltech10, dslr and webcam", 958, (800,), 10)

MEASURED = (
    Measured("replay", "images", *_TO_USPS, 0.1, 80.2, 96.4, 0.7, 89.5),
    Measured("replay", "images", *_TO_USPS, 0.2, 80.2, 96.9, 0.4, 89.5),
    Measured("replay", "images", *_TO_USPS, 0.5, 80.2, 97.2, 0.1, 89.5),
    Measured("replay", "images", *_TO_USPS, 1.0, 80.2, 97.5, 0.2, 89.5),
    Measured("replay", "images", *_TO_USPS, 3.0, 80.2, 97.4, 0.2, 89.5),
    Measured("replay", "images", *_TO_MNIST, 1.0, 62.9, 94.8, 0.3, 82.1),
    Measured("replay", "images", *_DIGITS, 1.0, 51.4, 91.1, 2.2, 80.0),
    Measured("replay", "images", *_DIGITS, 2.0, 51.4, 91.6, 2.3, 80.0),
    Measured("replay", "images", *_DIGITS, 4.0, 51.4, 91.4, 1.8, 80.0),
    Measured("adapter", "images", *_TO_USPS, 0.5, 80.2, 95.3, 0.9),
    Measured("adapter", "images", *_TO_USPS, 1.0, 80.2, 95.3, 1.3),
    Measured("adapter", "images", *_TO_MNIST, 0.5, 62.9, 85.0, 1.5),
    Measured("rows", "images", *_TO_USPS, 1.0, 80.2, 80.4, 1.8),
    Measured("rows", "images", *_TO_USPS, 10.0, 80.2, 81.1, 0.7),
    Measured("rows", "images", *_TO_MNIST, 10.0, 62.9, 64.4, 2.8),
    Measured("statistics", "images", *_LABELLED_DIGITS, 0.2, 84.3, 95.3, 0.3, None, _LABELLED),
    Measured("statistics", "images", *_LABELLED_DIGITS, 1.0, 84.3, 97.3, 0.1, None, _LABELLED),
    Measured("finetune", "images", *_LABELLED_DIGITS, 0.2, 83.5, 95.4, 0.2, None, _LABELLED),
    Measured("finetune", "images", *_LABELLED_DIGITS, 1.0, 83.5, 97.5, 0.1, None, _LABELLED),
    Measured("statistics", "vectors", *_HEARTS, 1.0, 72.8, 79.0, 3.7, None, _LABELLED),
    Measured("dpda", "images", *_OWN_USPS, 1.0, 52.5, 60.4, 0.5, None, _SOURCES),
    Measured("dpda", "images", *_OWN_USPS, 8.0, 52.5, 59.6, 0.8, None, _SOURCES),
    Measured("dpda", "images", *_OWN_MNIST, 1.0, 32.2, 53.2, 1.3, None, _SOURCES),
    Measured("dpda", "images", *_OWN_MNIST, 8.0, 32.2, 53.1, 0.4, None, _SOURCES),
    Measured("dpda", "vectors", *_OWN_OFFICE, 1.0, 39.0, 31.3, None, None, _SOURCES),
    Measured("dpda", "vectors", *_OWN_OFFICE, 8.0, 39.0, 39.1, None, None, _SOURCES),
    Measured("replay", "vectors", *_OFFICE, 1.0, 38.5, 39.0, None, 38.5),
)
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


BATTERIES = {
    "images": Battery(cells=397, retained=196, lost=2, worst=-5.4, median=0.0, best=93.5),
    "sequences": Battery(cells=15, retained=13, lost=0, worst=0.0, median=0.0, best=9.6),
    "vectors": Battery(cells=218, retained=198, lost=0, worst=-0.6, median=0.0, best=9.9),
}
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
