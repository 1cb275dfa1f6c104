"""From a run's public declaration to the privacy event that prices it; the same function at both parties."""

from __future__ import annotations

from shared.errors import RequestInvalid
from shared.privacy.evaluation_parts import calibration_part, confusion_part, correct_part
from shared.privacy.events import (
    Part,
    QuantileCoefficients,
    RowProjections,
    RunEvent,
    SanitizedGradient,
    StepEvent,
)
from shared.protocol.limits import GRID_EXPONENT
from shared.protocol.messages import Critic, Evaluation, Quantiles, Rows, RunParameters


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
    parts = _released(parameters, feature_dimension)
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


def evaluation_event(declared: Evaluation, *, records: int, steps: int = 1) -> RunEvent:
    """The event that prices an evaluation on all n records.

    Args:
        declared: classes, bins and noise.
        records: n.
        steps: how often it is released.
    """
    return RunEvent(StepEvent(records=records, batch=records, parts=tuple(_evaluated(declared))), steps)


def _released(parameters: RunParameters, feature_dimension: int) -> list[Part]:
    """What the run releases before any gradient."""
    match parameters.release:
        case Rows(sigma):
            return [
                RowProjections(
                    feature_dimension=feature_dimension,
                    directions=parameters.directions,
                    sigma=sigma,
                    grid_step=grid_step(sigma),
                )
            ]
        case Quantiles(coefficients, sigma):
            return [
                QuantileCoefficients(
                    feature_dimension=feature_dimension,
                    directions=parameters.directions,
                    coefficients=coefficients,
                    sigma=sigma,
                    grid_step=grid_step(sigma),
                )
            ]
        case Evaluation():
            return _evaluated(parameters.release)
        case Critic():
            return []  # the gradient is all that a critic's step releases


def _evaluated(declared: Evaluation) -> list[Part]:
    parts: list[Part] = [correct_part(sigma=declared.correct_sigma, grid_step=grid_step(declared.correct_sigma))]
    if declared.confusion_sigma:
        step = grid_step(declared.confusion_sigma)
        parts.append(confusion_part(classes=declared.classes, sigma=declared.confusion_sigma, grid_step=step))
    if declared.calibration_sigma:
        step = grid_step(declared.calibration_sigma)
        parts.append(calibration_part(bins=declared.bins, sigma=declared.calibration_sigma, grid_step=step))
    return parts
