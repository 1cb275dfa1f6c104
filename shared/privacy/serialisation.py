"""The canonical text of an event: what the ledger stores, and the only text that is read back.

**What must never change.** A text of version 1 is read to the same event for ever. One event has exactly one text
(keys sorted, no spaces, floats as Python's shortest repr), so texts can be compared and hashed. Anything else is
refused: unknown kinds, missing or surplus fields, NaN, wrong types, repeated keys, other spellings of a number.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any, NoReturn

from shared.errors import InvalidEvent
from shared.privacy.event_parts import BoundedSum, Part, QuantileCoefficients, RowProjections, SanitizedGradient
from shared.privacy.event_types import (
    ApproximateCharge,
    Event,
    LaplaceRelease,
    NeighbouringRelation,
    RunEvent,
    StepEvent,
)

VERSION = 1
MAX_TEXT_LENGTH = 10_000
"""Characters; a run with a few parts needs some hundred."""

_PARTS: dict[str, type[Part]] = {
    "row-projections": RowProjections,
    "quantile-coefficients": QuantileCoefficients,
    "sanitized-gradient": SanitizedGradient,
    "bounded-sum": BoundedSum,
}
_PART_KINDS = {part: kind for kind, part in _PARTS.items()}
_CHARGES: dict[str, type[LaplaceRelease] | type[ApproximateCharge]] = {
    "laplace": LaplaceRelease,
    "approximate": ApproximateCharge,
}
_CHARGE_KINDS = {charge: kind for kind, charge in _CHARGES.items()}


def event_to_json(event: Event) -> str:
    """The canonical text of an event.

    Raises:
        InvalidEvent: not an event that can be priced.
    """
    if type(event) is RunEvent:
        step = event.step
        body: dict[str, Any] = {
            "kind": "run",
            "steps": event.steps,
            "step": {
                "records": step.records,
                "batch": step.batch,
                "relation": step.relation.value,
                "parts": [{"kind": _PART_KINDS[type(part)], **_plain(part)} for part in step.parts],
            },
        }
    elif type(event) in _CHARGE_KINDS:
        assert isinstance(event, (LaplaceRelease, ApproximateCharge))
        body = {"kind": _CHARGE_KINDS[type(event)], **_plain(event), "relation": event.relation.value}
    else:
        raise InvalidEvent(f"a {type(event).__name__} is not an event; allowed are a run, a Laplace or other charge")
    return json.dumps({"version": VERSION, **body}, sort_keys=True, separators=(",", ":"), allow_nan=False)


def event_from_json(text: str) -> Event:
    """The event of a canonical text.

    Raises:
        InvalidEvent: malformed, of an unknown version or kind, or not the canonical spelling.
    """
    if not isinstance(text, str) or len(text) > MAX_TEXT_LENGTH:
        raise InvalidEvent(f"an event's text must be a string of at most {MAX_TEXT_LENGTH} characters")
    try:
        body = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidEvent):
            raise
        raise InvalidEvent("an event's text is not JSON") from error
    event = _event(body)
    if event_to_json(event) != text:
        raise InvalidEvent("an event's text is not in canonical form; write it with event_to_json")
    return event


def _event(body: object) -> Event:
    top = _record(body, "event")
    version, kind = top.pop("version", None), top.pop("kind", None)
    if type(version) is not int or version != VERSION:
        raise InvalidEvent(f"version is {version!r}; this accountant reads version {VERSION}")
    if kind == "run":
        _names(top, {"steps", "step"}, "run")
        step = _record(top["step"], "step")
        _names(step, {"records", "batch", "relation", "parts"}, "step")
        parts = step.pop("parts")
        if not isinstance(parts, list):
            raise InvalidEvent("parts must be a list")
        step["relation"] = _relation(step["relation"])
        return RunEvent(step=StepEvent(parts=tuple(_part(part) for part in parts), **step), steps=top["steps"])
    if isinstance(kind, str) and kind in _CHARGES:
        charge = _CHARGES[kind]
        _names(top, {field.name for field in fields(charge)}, kind)
        top["relation"] = _relation(top["relation"])
        charged: Event = charge(**top)
        return charged
    raise InvalidEvent(f"kind is {kind!r}; known kinds are run, {', '.join(_CHARGES)}")


def _part(body: object) -> Part:
    record = _record(body, "part")
    kind = record.pop("kind", None)
    if not isinstance(kind, str) or kind not in _PARTS:
        raise InvalidEvent(f"a part's kind is {kind!r}; known kinds are {', '.join(_PARTS)}")
    part = _PARTS[kind]
    _names(record, {field.name for field in fields(part)}, kind)
    built: Part = part(**record)
    return built


def _plain(value: Part | LaplaceRelease | ApproximateCharge) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _record(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidEvent(f"{what} must be a JSON object, not {type(value).__name__}")
    return dict(value)


def _names(record: dict[str, Any], wanted: set[str], what: str) -> None:
    if set(record) != wanted:
        missing, surplus = sorted(wanted - set(record)), sorted(set(record) - wanted)
        raise InvalidEvent(f"{what} has the wrong fields: missing {missing}, unknown {surplus}")


def _relation(value: object) -> NeighbouringRelation:
    try:
        return NeighbouringRelation(value)
    except ValueError as error:
        allowed = ", ".join(relation.value for relation in NeighbouringRelation)
        raise InvalidEvent(f"relation is {value!r}; allowed is {allowed}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise InvalidEvent("an event's text repeats a key")
    for value in record.values():
        if isinstance(value, float) and not math.isfinite(value):  # 1e999 parses to infinity
            raise InvalidEvent("an event's text holds a number that is not finite")
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidEvent(f"an event's text holds {name}; every number must be finite")
