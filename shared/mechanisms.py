"""Every mechanism by its name: the core's, and those of published methods, which are an annex and loaded here alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from dpswd.shared.core.mechanisms import MECHANISMS
from dpswd.shared.core.mechanisms.interface import AnyMechanism

PUBLISHED = ("rows", "labelled_rows", "gradient", "critic", "sinkhorn", "labelled_gradient")
"""Names of what only published methods ask for: a curator that has them off says so without loading them."""
SWITCH = "clients.published_mechanisms"
"""The setting of a curator that turns them on, as both sides name it."""
_ANNEX = "dpswd.shared.published_mechanisms"


@cache
def every_mechanism() -> Mapping[str, AnyMechanism]:
    """The core's mechanisms and those of published methods."""
    every: Mapping[str, AnyMechanism] = import_module(_ANNEX).ALL_MECHANISMS
    return every


def mechanisms(*, published: bool) -> Mapping[str, AnyMechanism]:
    """What a curator is composed with.

    Args:
        published: whether its operator offers what only published methods ask for.
    """
    return every_mechanism() if published else MECHANISMS
