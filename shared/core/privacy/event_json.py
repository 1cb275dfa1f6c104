"""The canonical text of an event: what the ledger stores, and the only text that is read back.

**What must never change.** A text of version 1 is read to the same event for ever. One event has exactly one text
(keys sorted, no spaces, floats as Python's shortest repr), so texts can be compared and hashed. Anything else is
refused: unknown kinds, missing or surplus fields, NaN, wrong types, repeated keys, other spellings of a number.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from dpswd.shared.core.errors import InvalidEvent
from dpswd.shared.core.privacy import events

VERSION = 1
MAX_TEXT_LENGTH = 10_000
"""Characters; a run with a few parts needs some hundred."""

_PARTS: dict[str, type[events.Part]] = {
    "row-projections": events.RowProjections,
    "quantile-coefficients": events.QuantileCoefficients,
    "sanitized-gradient": events.SanitizedGradient,
    "bounded-sum": events.BoundedSum,
    "clipped-vector": events.ClippedVector,
}
_RELATIONS = {relation.value: relation for relation in events.NeighbouringRelation}
_PART_KINDS = {part: kind for kind, part in _PARTS.items()}


def event_to_json(event: events.RunEvent) -> str:
    """The canonical text of a run.

    Raises:
        InvalidEvent: not a run.
    """
    if type(event) is not events.RunEvent:
        raise InvalidEvent(f"a {type(event).__name__} is not an event that can be charged; a RunEvent is")
    step = event.step
    body = {
        "version": VERSION,
        "kind": "run",
        "steps": event.steps,
        "step": {
            "records": step.records,
            "batch": step.batch,
            "relation": step.relation.value,
            "parts": [{"kind": _PART_KINDS[type(part)], **asdict(part)} for part in step.parts],
        },
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def event_from_json(text: str) -> events.RunEvent:
    """The run of a canonical text.

    Raises:
        InvalidEvent: malformed, of an unknown version or kind, or not the canonical spelling.
    """
    if not isinstance(text, str) or len(text) > MAX_TEXT_LENGTH:
        raise InvalidEvent(f"an event's text must be a string of at most {MAX_TEXT_LENGTH} characters")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent("an event's text is not JSON") from error
    if not isinstance(body, dict) or (body.get("version"), body.get("kind")) != (VERSION, "run"):
        raise InvalidEvent(f"an event's text is a JSON object of version {VERSION} and kind 'run'")
    try:
        step = body["step"]
        stated, parts = step.pop("relation"), tuple(map(_part, step.pop("parts")))
        relation = _RELATIONS.get(stated, stated)  # a StepEvent refuses an unknown one by its name
        event = events.RunEvent(step=events.StepEvent(relation=relation, parts=parts, **step), steps=body["steps"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidEvent(f"an event's text has a missing, unknown or wrong field: {error}") from error
    # Surplus fields at the top, repeated keys and other spellings of a number end here.
    if event_to_json(event) != text:
        raise InvalidEvent("an event's text is not in canonical form; write it with event_to_json")
    return event


def _part(body: dict[str, Any]) -> events.Part:
    kind = body.pop("kind")
    if kind not in _PARTS:
        raise InvalidEvent(f"a part's kind is {kind!r}; known kinds are {', '.join(_PARTS)}")
    return _PARTS[kind](**body)
