"""What a request may ask for: decided from public values alone, before anything is charged. Pure; opens nothing.

A refusal names every broken rule at once, so that a client need not find them one by one. Refusals depend on the
declaration, the extractor and the data set's public shape only, never on a record: whether a request is refused says
nothing about the records.
"""

from __future__ import annotations

import hashlib
import math
import uuid

import numpy as np

from private_curator.settings.tree import LimitSettings
from private_curator.steps.evaluation import declaration_violations
from private_curator.steps.facts import (
    AdmittedStep,
    DataSetFacts,
    ExtractorFacts,
    FloatArray,
    Operation,
    StepContent,
)
from shared.errors import InvalidValue, RequestInvalid
from shared.mechanisms.gradient.sanitized import check_gradient_range
from shared.privacy.events import RunEvent
from shared.protocol import limits as protocol
from shared.protocol.digests import step_digest
from shared.protocol.messages import Critic, Evaluation, PublicMap, Quantiles, Rows, RunParameters
from shared.protocol.pricing import run_event

__all__ = [
    "AdmittedStep",
    "DataSetFacts",
    "ExtractorFacts",
    "FloatArray",
    "Operation",
    "StepContent",
    "admit_run",
    "admit_step",
    "check_request_id",
]

Violation = tuple[str, str]

_FRAMING_BYTES = 4096
"""Of a reply besides its values: seed, receipt, shapes."""

MIN_MAP_SCALE, MAX_MAP_SCALE = 1e-12, 1e12
"""Scales of a feature map: beyond these float32 arithmetic overflows or vanishes."""


def admit_run(
    parameters: RunParameters, *, data_set: DataSetFacts, extractor: ExtractorFacts, limits: LimitSettings
) -> RunEvent:
    """Checks a declaration and returns the event that prices it.

    Raises:
        RequestInvalid: every broken rule.
    """
    broken = [
        *_sizes(parameters, data_set, limits),
        *_kind(parameters, data_set, extractor),
        *_extractor(parameters, data_set, extractor, limits),
        *_map(parameters.feature_map, extractor, "parameters.feature_map"),
    ]
    if broken:
        raise RequestInvalid(tuple(broken))
    names = parameters.gradient.parameters if parameters.gradient is not None else ()
    try:
        return run_event(
            parameters,
            records=data_set.records,
            feature_dimension=extractor.feature_dimension,
            gradient_parameters=extractor.size(names),
        )
    except RequestInvalid:
        raise
    except InvalidValue as error:  # an event that cannot be priced: the sigma is outside what the accountant covers
        raise RequestInvalid((("parameters", str(error)),)) from error


def admit_step(
    content: StepContent, *, parameters: RunParameters, extractor: ExtractorFacts, limits: LimitSettings
) -> AdmittedStep:
    """Checks a step against its run.

    Raises:
        RequestInvalid: every broken rule.
    """
    broken = [
        *_operation(content.operation, parameters),
        *_step_map(content.feature_map, parameters, extractor),
        *_source(content, parameters, extractor, limits),
    ]
    adapted: dict[str, FloatArray] = {}
    try:
        adapted = _unflatten(content.adapted, parameters, extractor)
    except RequestInvalid as error:
        broken += error.violations
    if broken:
        raise RequestInvalid(tuple(broken))
    return AdmittedStep(
        parameters=parameters,
        adapted=adapted,
        feature_map=content.feature_map or parameters.feature_map,
        source=content.source,
        digest=_step_digest(content),
    )


def check_request_id(value: str, *, field: str) -> None:
    """Accepts a UUID in its canonical form.

    Raises:
        RequestInvalid: anything else.
    """
    try:
        canonical = len(value) == 36 and str(uuid.UUID(value)) == value
    except ValueError:
        canonical = False
    if not canonical:
        raise RequestInvalid(((field, "must be a UUID in canonical form, such as str(uuid.uuid4()) makes"),))


def _kind(parameters: RunParameters, data_set: DataSetFacts, extractor: ExtractorFacts) -> list[Violation]:
    """What evaluations and critics ask of the uploaded graph and of the data set."""
    match parameters.release:
        case Evaluation():
            return declaration_violations(parameters.release, parameters, data_set=data_set, model=extractor)
        case Critic() if extractor.feature_dimension != 1:
            text = f"computes {extractor.feature_dimension} values for each record; a critic computes one logit"
            return [("parameters.graph_digest", text)]
        case _:
            return []


def _sizes(parameters: RunParameters, data_set: DataSetFacts, limits: LimitSettings) -> list[Violation]:
    if isinstance(parameters.release, Evaluation):
        return []  # it has the size of the data set, see `_kind`
    broken: list[Violation] = []
    batch, directions = parameters.batch_size, parameters.directions
    most = min(limits.max_batch_size, data_set.records)
    if batch > most:
        broken.append(
            (
                "parameters.batch_size",
                f"is {batch}; the data set has {data_set.records} records, at most {most} are allowed",
            )
        )
    record_values = math.prod(data_set.record_shape)
    if batch * record_values > limits.max_sample_values:
        fit = limits.max_sample_values // record_values
        text = f"is {batch}; of records of {record_values} values at most {fit} in one sample are allowed"
        broken.append(("parameters.batch_size", text))
    if directions > limits.max_directions:
        broken.append(("parameters.directions", f"is {directions}; at most {limits.max_directions} are allowed"))
    per_direction = batch
    if isinstance(parameters.release, Quantiles):
        per_direction = parameters.release.coefficients
        allowed = min(limits.max_coefficients, batch)
        if per_direction > allowed:
            broken.append(
                (
                    "parameters.quantiles.coefficients",
                    f"is {per_direction}; at most {allowed} are allowed (batch {batch})",
                )
            )
    reply_bytes = per_direction * directions * (4 if isinstance(parameters.release, Quantiles) else 2) + _FRAMING_BYTES
    if reply_bytes > limits.max_message_bytes:
        broken.append(
            (
                "parameters.directions",
                f"make replies of {reply_bytes} bytes; at most {limits.max_message_bytes} are sent",
            )
        )
    if per_direction * directions > protocol.MAX_RELEASE_VALUES or batch * directions > protocol.MAX_RELEASE_VALUES:
        broken.append(
            (
                "parameters.directions",
                f"times the batch of {batch} is more than {protocol.MAX_RELEASE_VALUES}; use fewer of either",
            )
        )
    return broken


def _extractor(
    parameters: RunParameters, data_set: DataSetFacts, extractor: ExtractorFacts, limits: LimitSettings
) -> list[Violation]:
    broken: list[Violation] = []
    if extractor.input_shape != data_set.record_shape:
        broken.append(
            (
                "parameters.graph_digest",
                f"takes records of shape {extractor.input_shape}; the data set's have {data_set.record_shape}",
            )
        )
    if parameters.gradient is None:
        return broken
    field = "parameters.gradient.parameters"
    unknown = [name for name in parameters.gradient.parameters if name not in extractor.parameter_shapes]
    if unknown:
        known = ", ".join(sorted(extractor.parameter_shapes)[:20]) or "none"
        broken.append((field, f"{unknown[:5]} are no parameters of the extractor; it has {known}"))
    size = extractor.size(parameters.gradient.parameters)
    if size > limits.max_adapted_parameters:
        broken.append((field, f"have {size} values; at most {limits.max_adapted_parameters} are allowed"))
    if 4 * size + _FRAMING_BYTES > limits.max_message_bytes // 2:
        most = limits.max_message_bytes // 2
        broken.append((field, f"have {size} values; gradients of at most {most} bytes are sent"))
    try:
        check_gradient_range(
            batch=parameters.batch_size, clip_norm=parameters.gradient.clip_norm, sigma=parameters.gradient.sigma
        )
    except InvalidValue as error:
        broken.append(("parameters.gradient.sigma", str(error)))
    if size * parameters.batch_size > limits.max_gradient_values:
        broken.append(
            (
                field,
                f"have {size} values, times the batch more than {limits.max_gradient_values}; adapt or sample fewer",
            )
        )
    return broken


def _map(feature_map: PublicMap | None, extractor: ExtractorFacts, field: str) -> list[Violation]:
    if feature_map is None:
        return []
    if feature_map.center.shape != (extractor.feature_dimension,):
        text = f"has length {feature_map.center.shape[0]}; the extractor has {extractor.feature_dimension} features"
        return [(field, text)]
    scale = feature_map.scale
    if not ((scale >= MIN_MAP_SCALE) & (scale <= MAX_MAP_SCALE)).all():
        return [(f"{field}.scale", f"must lie between {MIN_MAP_SCALE:g} and {MAX_MAP_SCALE:g} in every feature")]
    return []


def _step_map(feature_map: PublicMap | None, parameters: RunParameters, extractor: ExtractorFacts) -> list[Violation]:
    if feature_map is not None and isinstance(parameters.release, (Evaluation, Critic)):
        return [("input.feature_map", "is not used by evaluations and critics; leave it out")]
    return _map(feature_map, extractor, "input.feature_map")


def _operation(operation: Operation, parameters: RunParameters) -> list[Violation]:
    match parameters.release:
        case Rows():
            expected = Operation.ALIGN_TARGET if parameters.gradient is not None else Operation.RELEASE_PROJECTIONS
        case Quantiles():
            expected = Operation.RELEASE_QUANTILES
        case Evaluation():
            expected = Operation.EVALUATE_MODEL
        case Critic():
            expected = Operation.RELEASE_CRITIC_GRADIENT
    if operation is expected:
        return []
    return [("input.run_id", f"this run's steps are taken with {expected.value}, not with {operation.value}")]


def _source(
    content: StepContent, parameters: RunParameters, extractor: ExtractorFacts, limits: LimitSettings
) -> list[Violation]:
    if isinstance(parameters.release, Critic):
        return [] if content.source is None else [("source", "is not used by a critic's run; leave it out")]
    if parameters.gradient is None:
        return [] if content.source is None else [("source", "is not used by a run without a gradient; leave it out")]
    if content.source is None:
        return [("source", "is missing; a run with a gradient needs source features, inline or by digest")]
    shape = content.source.shape
    if len(shape) != 2 or shape[1] != extractor.feature_dimension or not 1 <= shape[0] <= limits.max_source_features:
        return [
            (
                "source",
                f"has shape {shape}; needed is (1 to {limits.max_source_features}, {extractor.feature_dimension})",
            )
        ]
    if shape[0] * parameters.directions > protocol.MAX_RELEASE_VALUES:
        most = protocol.MAX_RELEASE_VALUES // parameters.directions
        return [
            ("source", f"has {shape[0]} features; with {parameters.directions} directions at most {most} are allowed")
        ]
    return []


def _unflatten(data: bytes, parameters: RunParameters, extractor: ExtractorFacts) -> dict[str, FloatArray]:
    """Splits the flat adapted parameters by the declared names; no bytes at all mean the uploaded values.

    Raises:
        RequestInvalid: another number of bytes than declared, or a value that is not finite.
    """
    names = parameters.gradient.parameters if parameters.gradient is not None else ()
    if not data:
        return {}
    size = extractor.size(names)
    if len(data) != 4 * size:
        raise RequestInvalid(
            (("input.adapted_parameters", f"has {len(data)} bytes; the run declares {size} values, 4 bytes each"),)
        )
    flat = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(flat).all():
        raise RequestInvalid((("input.adapted_parameters", "holds NaN or infinite values; send finite values only"),))
    values, start = {}, 0
    for name in names:
        shape = extractor.parameter_shapes[name]
        end = start + math.prod(shape)
        values[name] = flat[start:end].reshape(shape)
        start = end
    return values


def _step_digest(content: StepContent) -> str:
    """What the client computes as well, from what it sent."""
    source = None if content.source is None else hashlib.sha256(content.source.astype("<f4").tobytes()).hexdigest()
    return step_digest(
        operation=content.operation.value,
        run_id=content.run_id,
        adapted=content.adapted,
        feature_map=content.feature_map,
        source=source,
    )
