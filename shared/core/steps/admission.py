"""What a request may ask for: decided from public values alone, before anything is charged. Pure; opens nothing.

A refusal names every broken rule at once, so that a client need not find them one by one. Refusals depend on the
declaration, the extractor and the data set's public shape only, never on a record: whether a request is refused says
nothing about the records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dpswd.shared.core.errors import InvalidValue, RequestInvalid
from dpswd.shared.core.mechanisms.declared import AdmittedRun, Declared
from dpswd.shared.core.mechanisms.interface import (
    AnyMechanism,
    DataSetFacts,
    Facts,
    Limits,
    ModelFacts,
    RunSize,
)
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.checks import Violation, invalid
from dpswd.shared.core.wire.messages import RunParameters


def admit_run(
    parameters: RunParameters,
    *,
    mechanisms: Mapping[str, AnyMechanism],
    data: DataSetFacts,
    model: ModelFacts,
    limits: Limits,
) -> AdmittedRun:
    """Checks a declaration and prices it.

    Args:
        parameters: the declaration.
        mechanisms: what is offered.
        data: of the data set.
        model: of the uploaded graph.
        limits: the operator's.

    Raises:
        RequestInvalid: every broken rule.
    """
    mechanism = mechanisms.get(parameters.mechanism)
    if mechanism is None:
        text = f"is {parameters.mechanism!r}; this curator offers {', '.join(offered(mechanisms, data))}"
        raise invalid("parameters.mechanism", text)
    if mechanism.needs_labels and not data.classes:
        text = f"{mechanism.name!r} is not offered: the operator declares no classes of the records' labels"
        raise invalid("parameters.mechanism", f"{text} (records.classes); ask the operator")
    if not _labels_suffice(mechanism, data):
        text = f"{mechanism.name!r} is not offered: it needs the label of every record, and some have none"
        raise invalid("parameters.mechanism", f"{text} (records.unlabelled)")
    declaration = mechanism.declaration.from_bytes(parameters.declaration)
    size, facts = RunSize(parameters.batch_size, parameters.steps), Facts(data, model)
    run: AdmittedRun = Declared(mechanism, declaration, size, facts, parameters.graph_digest)
    broken = _sizes(size, data, limits, whole=mechanism.whole)
    if model.input_shape != data.record_shape:
        text = f"takes records of shape {model.input_shape}; the data set's have {data.record_shape}"
        broken.append(("parameters.graph_digest", text))
    broken += run.violations(limits)
    if broken:
        raise RequestInvalid(tuple(broken))
    try:
        _ = run.event
    except InvalidValue as error:  # an event that cannot be priced: the sigma is outside what the accountant covers
        raise invalid("parameters.declaration", str(error)) from error
    return run


def offered(mechanisms: Mapping[str, AnyMechanism], data: DataSetFacts) -> tuple[str, ...]:
    """Names of the mechanisms that a run on this data set may declare."""
    return tuple(
        name
        for name, mechanism in mechanisms.items()
        if (data.classes or not mechanism.needs_labels) and _labels_suffice(mechanism, data)
    )


def _labels_suffice(mechanism: AnyMechanism, data: DataSetFacts) -> bool:
    return not (data.partly_labelled and mechanism.needs_labels and not mechanism.partial_labels)


def _sizes(run: RunSize, data: DataSetFacts, limits: Limits, *, whole: bool) -> list[Violation]:
    """Rules about the sample, the same for all mechanisms."""
    field, batch = "parameters.batch_size", run.batch
    if whole:
        if batch == data.records:
            return []
        return [(field, f"is {batch}; this mechanism reads all {data.records} records, send that number")]
    broken = []
    most = min(limits.max_batch_size, protocol.MAX_BATCH_SIZE, data.records)
    if batch > most:
        text = f"is {batch}; the data set has {data.records} records, at most {most} are allowed"
        broken.append((field, text))
    least = min(limits.min_batch_size, most)
    if batch < least:
        text = f"is {batch}; at least {least} are allowed, so that one record is a small part of what a step works on"
        broken.append((field, text))
    record_values = math.prod(data.record_shape)
    if batch * record_values > limits.max_sample_values:
        fit = limits.max_sample_values // record_values
        text = f"is {batch}; of records of {record_values} values at most {fit} in one sample are allowed"
        broken.append((field, text))
    return broken
