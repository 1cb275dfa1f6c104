"""Events and their canonical text, under one name: what the rest of dpswd imports.

The classes stand in ``event_types``, their text in ``serialisation``; both say what must never change.
"""

from shared.privacy.event_types import (
    MAX_PARAMETERS,
    MAX_RECORDS,
    MAX_SIGMA,
    MAX_STEPS,
    MIN_SIGMA,
    ApproximateCharge,
    Event,
    LaplaceRelease,
    NeighbouringRelation,
    Part,
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
    gradient_shift,
)
from shared.privacy.serialisation import event_from_json, event_to_json

__all__ = [
    "MAX_PARAMETERS",
    "MAX_RECORDS",
    "MAX_SIGMA",
    "MAX_STEPS",
    "MIN_SIGMA",
    "ApproximateCharge",
    "Event",
    "LaplaceRelease",
    "NeighbouringRelation",
    "Part",
    "QuantileCoefficients",
    "RowProjections",
    "RunEvent",
    "SanitizedGradient",
    "StepEvent",
    "event_from_json",
    "event_to_json",
    "gradient_shift",
]
