"""What a request may ask for: decided from public values alone, before anything is charged. Pure; opens nothing.

A refusal names every broken rule at once, so that a client need not find them one by one. Refusals depend on the
declaration, the extractor and the data set's public shape only, never on a record: whether a request is refused says
nothing about the records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpswd.shared.core.errors import InvalidValue, RequestInvalid
from dpswd.shared.core.mechanisms.interface import (
    AnyMechanism,
    DataSetFacts,
    Facts,
    Limits,
    ModelFacts,
    PublicArrays,
    RunSize,
)
from dpswd.shared.core.privacy.events import RunEvent, StepEvent
from dpswd.shared.core.wire import limits as protocol
from dpswd.shared.core.wire.checks import Violation, invalid
from dpswd.shared.core.wire.messages import RunParameters


@dataclass(frozen=True)
class AdmittedRun:
    """A run whose declaration is checked.

    Attributes:
        parameters: as declared.
        mechanism: what its steps release.
        declared: the mechanism's own declaration, decoded.
        facts: of the data set and of the uploaded graph.
        event: prices the run as a whole.
    """

    parameters: RunParameters
    mechanism: AnyMechanism
    declared: Any
    facts: Facts
    event: RunEvent

    @property
    def size(self) -> RunSize:
        """Batch and steps."""
        return RunSize(self.parameters.batch_size, self.parameters.steps)


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
    declared = mechanism.declaration.from_bytes(parameters.declaration)
    facts, run = Facts(data, model), RunSize(parameters.batch_size, parameters.steps)
    broken = _sizes(run, data, limits, whole=mechanism.whole)
    if model.input_shape != data.record_shape:
        text = f"takes records of shape {model.input_shape}; the data set's have {data.record_shape}"
        broken.append(("parameters.graph_digest", text))
    broken += mechanism.violations(declared, run, facts, limits)
    if broken:
        raise RequestInvalid(tuple(broken))
    try:
        event = run_event(mechanism, declared, run, facts)
    except InvalidValue as error:  # an event that cannot be priced: the sigma is outside what the accountant covers
        raise invalid("parameters.declaration", str(error)) from error
    return AdmittedRun(parameters, mechanism, declared, facts, event)


def run_event(mechanism: AnyMechanism, declared: Any, run: RunSize, facts: Facts) -> RunEvent:
    """The event that prices a run as a whole; the same function at both parties.

    Raises:
        InvalidValue: the accountant does not cover such a release.
    """
    parts = mechanism.parts(declared, run, facts)
    return RunEvent(StepEvent(records=facts.data.records, batch=run.batch, parts=parts), run.steps)


def admit_step(run: AdmittedRun, payload: bytes, *, public: PublicArrays, limits: Limits) -> Any:
    """Checks a step against its run and returns the mechanism's request, decoded and complete.

    Args:
        run: to which the step belongs.
        payload: as it was sent.
        public: finds uploaded source features.
        limits: the operator's.

    Raises:
        RequestInvalid: every broken rule.
    """
    request = run.mechanism.resolved(run.mechanism.request.from_bytes(payload), public)
    broken = run.mechanism.check(request, run.declared, run.facts, limits)
    if broken:
        raise RequestInvalid(tuple(broken))
    return request


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
