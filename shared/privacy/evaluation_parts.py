"""The parts of an evaluation on labelled records, with their sensitivities (derived in docs/privacy/evaluation.md).

What must never change: a ledger's events were made from these numbers. Another vector is another release.
"""

from __future__ import annotations

import math

from shared.privacy.event_parts import BoundedSum

CONFIDENCE_WEIGHT = 0.25
"""rho: the place of a confidence in its bin, -1/2 to 1/2, is released times this. The place is needed to a few per cent
of a bin's width only, so a small weight costs little precision and nearly no sensitivity."""

CORRECT_SENSITIVITY = 1.0
"""Right against wrong."""

CONFUSION_SENSITIVITY = math.nextafter(math.sqrt(2.0), math.inf)
"""Two different cells."""

CALIBRATION_SENSITIVITY = math.nextafter(math.sqrt(2.0 + CONFIDENCE_WEIGHT**2), math.inf)
"""One bin, right against wrong, with confidences at its two ends."""


def correct_part(*, sigma: float, grid_step: float) -> BoundedSum:
    """The number of correct predictions."""
    return BoundedSum(values=1, sensitivity=CORRECT_SENSITIVITY, changed=1, sigma=sigma, grid_step=grid_step)


def confusion_part(*, classes: int, sigma: float, grid_step: float) -> BoundedSum:
    """The C^2 counts of (label, prediction)."""
    return BoundedSum(values=classes**2, sensitivity=CONFUSION_SENSITIVITY, changed=2, sigma=sigma, grid_step=grid_step)


def calibration_part(*, bins: int, sigma: float, grid_step: float) -> BoundedSum:
    """The 3 B sums of correct, wrong and weighted places; two bins differ in four of them, one bin in three."""
    return BoundedSum(
        values=3 * bins,
        sensitivity=CALIBRATION_SENSITIVITY,
        changed=min(4, 3 * bins),
        sigma=sigma,
        grid_step=grid_step,
    )
