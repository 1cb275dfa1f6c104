"""Which methods a hospital's records can carry, and what each reached where it was measured; spends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpswd.public_client.curator.description import Description
from dpswd.public_client.methods import METHODS
from dpswd.public_client.plans.measured import Measured, measured_alike, modality_of
from dpswd.public_client.plans.plan import make_plan
from dpswd.shared.core.errors import InvalidValue


@dataclass(frozen=True)
class Choice:
    """One method at one hospital.

    Attributes:
        method: its name.
        needs_labels: whether it learns from the hospital's labels.
        refused: why these records cannot carry it; empty where they can.
        suits: when to choose it, in words; empty where that is plain.
        measured: the measured run with at most as many records times epsilon; None where there is none.
    """

    method: str
    needs_labels: bool
    refused: str
    suits: str
    measured: Measured | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def choices(description: Description, *, epsilon: float) -> list[Choice]:
    """Every method with its defaults, those first that can be asked of this hospital.

    Args:
        description: from `Hospital.describe`.
        epsilon: what a run may cost.
    """
    found = []
    for name, kind in METHODS.items():
        method, refused, measured = kind(), "", None
        try:
            measured = measured_alike(make_plan(description, method, epsilon=epsilon))
        except InvalidValue as error:
            refused = str(error)
        found.append(Choice(name, method.mechanism.needs_labels, refused, method.suits, measured))
    return sorted(found, key=lambda one: bool(one.refused))


def choices_text(description: Description, told: Sequence[Choice], *, epsilon: float) -> str:
    """A few lines for a terminal."""
    labels = f"labels of {description.classes} classes" if description.classes else "no labels"
    lines = [f"{description.data_set}: {description.records:,} {modality_of(description.record_shape)}, {labels}"]
    for one in told:
        if one.refused:
            lines.append(f"  {one.method:<13} no: {one.refused}")
            continue
        reached = str(one.measured) if one.measured else "never measured on such data with so little to go by"
        by = " (from the labels)" if one.needs_labels else ""
        lines.append(f"  {one.method:<13} yes{by}: {reached}")
        if one.suits:
            lines.append(f"  {'':<13} {one.suits}")
    lines.append(f"A run of epsilon {epsilon:g}; your data may differ. How to choose: docs/ml-team/labelled.md")
    return "\n".join(lines)
