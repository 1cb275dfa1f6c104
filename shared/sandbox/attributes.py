"""Rules for the attributes that a graph node may carry.

A graph comes from outside. Each attribute of each operation therefore has one rule that accepts exactly one Python
type (``True`` is not an integer, ``1`` is not a float) within named bounds, and nothing has a default: two graphs that
compute the same have the same bytes only if nothing is implicit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpswd.shared.core.errors import InvalidValue

Attributes = Mapping[str, Any]
"""Checked values by name: int, float, bool, or a tuple of int."""

MAX_EXTENT = 65536
"""Largest channel count, feature count or side length: far above any published extractor (ResNet-152: 2048), and
small enough that a product of four extents still fits in 64 bits."""
MAX_WINDOW = 255
"""Largest kernel side, stride, dilation or padding of a convolution or a pool; published networks stop at 31."""
MAX_CONSTANT = 1e6
"""Largest magnitude of a scalar constant, so that float32 features cannot overflow by a constant alone."""


@dataclass(frozen=True)
class Rule:
    """What one attribute may hold.

    Attributes:
        check: raises InvalidValue unless a value from a graph is allowed.
        read: makes the attribute of what torch's layers and functions take (2 for (2, 2), a bias for True); the result
            is still to be checked.
    """

    check: Callable[[object], None]
    read: Callable[[Any], Any]


def integer(low: int, high: int) -> Rule:
    """An integer in [low, high]."""

    def check(value: object) -> None:
        if type(value) is not int or not low <= value <= high:
            raise InvalidValue(f"must be an integer between {low} and {high}, got {_shown(value)}")

    return Rule(check, read=lambda value: value)


def real(low: float, high: float) -> Rule:
    """A finite float in [low, high]."""

    def check(value: object) -> None:
        if type(value) is not float or not math.isfinite(value) or not low <= value <= high:
            raise InvalidValue(f"must be a float between {low:g} and {high:g}, got {_shown(value)}")

    return Rule(check, read=float)


def integers(low: int, high: int, *, length: int | tuple[int, int]) -> Rule:
    """A tuple of `length` integers (or between the two given lengths), each in [low, high]."""
    shortest, longest = (length, length) if isinstance(length, int) else length

    def check(value: object) -> None:
        if type(value) is not tuple or not shortest <= len(value) <= longest:
            raise InvalidValue(f"must be a list of {shortest} to {longest} integers, got {_shown(value)}")
        for entry in value:
            if type(entry) is not int or not low <= entry <= high:
                raise InvalidValue(f"must hold integers between {low} and {high}, got {_shown(entry)}")

    def read(value: Any) -> tuple[Any, ...]:
        entries = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        return entries * shortest if len(entries) == 1 else entries

    return Rule(check, read)


def window(dimensions: int, *, low: int = 1) -> Rule:
    """One integer in [low, MAX_WINDOW] for each spatial dimension; torch accepts one integer for all."""
    return integers(low, MAX_WINDOW, length=dimensions)


def _check_flag(value: object) -> None:
    if type(value) is not bool:
        raise InvalidValue(f"must be true or false, got {_shown(value)}")


flag = Rule(_check_flag, read=lambda value: isinstance(value, Tensor) or bool(value))
"""True or False, and nothing that merely behaves like it; a layer says by its tensor that it has one."""
extent = integer(1, MAX_EXTENT)
small_epsilon = real(1e-12, 1.0)
"""The epsilon inside a norm's square root: never zero, or a constant record would divide by zero."""


def _shown(value: object) -> str:
    """The value for a message, cut: it may come from outside and be large."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**18 else "a huge integer"
    return text if len(text) <= 60 else text[:57] + "..."
