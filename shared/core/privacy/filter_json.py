"""Canonical JSON of filters, prices and sums: sorted keys, no spaces, infinity as null, NaN refused.

**What must never change.** A text of version 2 is read to the same value for ever.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from dpswd.shared.core.errors import InvalidValue

VERSION = 2
_LARGEST = sys.float_info.max
MAX_TEXT_LENGTH = 100_000
"""Characters; a filter with some fifty orders needs a few thousand."""


def dump(kind: str, **values: float | str | tuple[float, ...]) -> str:
    """The canonical text of a value."""
    body = {name: _encode(value) for name, value in values.items()}
    return json.dumps(
        {"version": VERSION, "kind": kind, **body}, sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def load(text: str, kind: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a canonical text of the given kind.

    Raises:
        InvalidValue: malformed, another kind or version, missing or surplus fields.
    """
    if not isinstance(text, str) or len(text) > MAX_TEXT_LENGTH:
        raise InvalidValue(f"a {kind}'s text must be a string of at most {MAX_TEXT_LENGTH} characters")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"a {kind}'s text is not JSON") from error
    if not isinstance(body, dict) or body.get("kind") != kind or body.get("version") != VERSION:
        raise InvalidValue(f"not a {kind} of version {VERSION}")
    if set(body) != {*names, "kind", "version"}:
        raise InvalidValue(f"a {kind} has the fields {', '.join(sorted(names))}, no more and no fewer")
    return body


def numbers(body: dict[str, Any], name: str) -> tuple[float, ...]:
    """The floats of a field (a single number is a tuple of one); each must be >= 0, null is infinity.

    Raises:
        InvalidValue: another type, negative, or NaN.
    """
    value = body[name]
    decoded = []
    for item in value if isinstance(value, list) and value else [value]:
        if item is None:
            decoded.append(math.inf)
        elif isinstance(item, bool) or not isinstance(item, (int, float)) or not 0.0 <= item <= _LARGEST:
            raise InvalidValue(f"{name} holds {item!r}; numbers must be finite and not negative, or null for infinity")
        else:
            decoded.append(float(item))
    return tuple(decoded)


def _encode(value: float | str | tuple[float, ...]) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return None if value == math.inf else float(value)
