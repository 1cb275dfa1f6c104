"""From a run's public declaration to the privacy event that prices it; the same function at both parties."""

from __future__ import annotations

from shared.errors import RequestInvalid
from shared.privacy.events import (
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
)
from shared.protocol.limits import GRID_EXPONENT
from shared.protocol.messages import Rows, RunParameters


def grid_step(sigma: float) -> float:
    """The distance between grid points of a release with noise sigma (docs/privacy 7): sigma * 2**-11."""
    return sigma * 2.0**-GRID_EXPONENT


def run_event(parameters: RunParameters, *, records: int, feature_dimension: int, gradient_parameters: int) -> RunEvent:
    """The event that prices a run as a whole.

    Args:
        parameters: what the run declares.
        records: n of the data set.
        feature_dimension: d of the extractor.
        gradient_parameters: p, the number of scalars in the adapted parameters; 0 without a gradient.

    Raises:
        RequestInvalid: the sample is larger than the data set.
    """
    if parameters.batch_size > records:
        raise RequestInvalid(
            (("parameters.batch_size", f"is {parameters.batch_size}; the data set has {records} records"),)
        )
    release = parameters.release
    parts: list[RowProjections | QuantileCoefficients | SanitizedGradient] = []
    if isinstance(release, Rows):
        parts.append(
            RowProjections(
                feature_dimension=feature_dimension,
                directions=parameters.directions,
                sigma=release.sigma,
                grid_step=grid_step(release.sigma),
            )
        )
    else:
        parts.append(
            QuantileCoefficients(
                feature_dimension=feature_dimension,
                directions=parameters.directions,
                coefficients=release.coefficients,
                sigma=release.sigma,
                grid_step=grid_step(release.sigma),
            )
        )
    if parameters.gradient is not None:
        parts.append(
            SanitizedGradient(
                parameters=gradient_parameters,
                clip_norm=parameters.gradient.clip_norm,
                sigma=parameters.gradient.sigma,
                grid_step=grid_step(parameters.gradient.sigma),
            )
        )
    step = StepEvent(records=records, batch=parameters.batch_size, parts=tuple(parts))
    return RunEvent(step=step, steps=parameters.steps)
