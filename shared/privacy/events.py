"""Events and their canonical text, under one name: what the rest of dpswd imports.

The classes stand in ``event_parts`` and ``event_types``, their text in ``serialisation``; all say what must never
change.
"""

from shared.privacy.event_parts import (
    MAX_PARAMETERS,
    MAX_RECORDS,
    MAX_SIGMA,
    MAX_STEPS,
    MIN_SIGMA,
    BoundedSum,
    Part,
    QuantileCoefficients,
    RowProjections,
    SanitizedGradient,
    fixed_shift,
)
from shared.privacy.event_types import (
    ApproximateCharge,
    Event,
    LaplaceRelease,
    NeighbouringRelation,
    RunEvent,
    StepEvent,
)
from shared.privacy.serialisation import event_from_json, event_to_json

__all__ = [
    "MAX_PARAMETERS",
    "MAX_RECORDS",
    "MAX_SIGMA",
    "MAX_STEPS",
    "MIN_SIGMA",
    "ApproximateCharge",
    "BoundedSum",
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
    "fixed_shift",
]
