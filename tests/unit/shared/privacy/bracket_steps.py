"""Events of every kind of part, for the bracket's tests."""

from __future__ import annotations

import math

from dpswd.shared.core.privacy.events import (
    BoundedSum,
    ClippedVector,
    QuantileCoefficients,
    RowProjections,
    SanitizedGradient,
    StepEvent,
)

STEPS = {
    "rows": StepEvent(7438, 128, (RowProjections(320, 200, 0.84),)),
    "rows on a grid": StepEvent(898, 128, (RowProjections(64, 100, 2.0, 2.0 / 2048),)),
    "few directions": StepEvent(2334, 914, (RowProjections(254, 2, 0.565, 0.565 / 2048),)),
    "rows of all": StepEvent(7438, 7438, (RowProjections(320, 200, 5.0),)),
    "quantiles": StepEvent(7438, 512, (QuantileCoefficients(512, 200, 2, 0.2, 0.2 / 2048),)),
    "quantiles of all": StepEvent(5000, 5000, (QuantileCoefficients(64, 200, 8, 0.3, 0.3 / 2048),)),
    "quantiles and gradient": StepEvent(
        7438, 512, (QuantileCoefficients(512, 200, 2, 0.5, 0.5 / 2048), SanitizedGradient(112, 1.0, 12.0))
    ),
    "gradient": StepEvent(5000, 500, (SanitizedGradient(3000, 1.0, 10.0, 10.0 / 2**16),)),
    "gradient of all": StepEvent(5000, 5000, (SanitizedGradient(3000, 1.0, 30.0, 30.0 / 2**16),)),
    "counts": StepEvent(60000, 60000, (BoundedSum(1000, math.sqrt(2.0), 2, 30.0, 30.0 / 2048),)),
    "vector": StepEvent(5000, 50, (ClippedVector(3000, 1.0, 6.0, 6.0 / 2**16),)),
    "small sample, little noise": StepEvent(2, 1, (RowProjections(1, 1, 1e-3),)),
    "small sample, much noise": StepEvent(10**9, 1, (RowProjections(10**6, 10**5, 1e6),)),
}
