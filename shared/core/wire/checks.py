"""Small checks of decoded values; each gives the broken rule as (field path, what is wrong and what is allowed)."""

from __future__ import annotations

import math

from dpswd.shared.core.errors import RequestInvalid

Violation = tuple[str, str]


def between(field: str, value: int, most: int, *, least: int = 1) -> list[Violation]:
    """Holds a whole number to a range."""
    return [] if least <= value <= most else [(field, f"is {value}; allowed are {least} to {most}")]


def positive(field: str, value: float) -> list[Violation]:
    """Holds a number to be positive and finite."""
    return [] if math.isfinite(value) and value > 0 else [(field, f"is {value}; must be positive and finite")]


def positive_or_zero(field: str, value: float) -> list[Violation]:
    """Holds a number to be finite and not negative."""
    return [] if math.isfinite(value) and value >= 0 else [(field, f"is {value}; must be finite, positive or 0")]


def invalid(field: str, text: str) -> RequestInvalid:
    """The error of one broken rule."""
    return RequestInvalid(((field, text),))
