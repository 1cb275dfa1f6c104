"""Every mechanism by its name: the core's, and those of published methods, which are an annex and loaded here alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from dpswd.shared.core.mechanisms import MECHANISMS
from dpswd.shared.core.mechanisms.interface import AnyMechanism

_ANNEX = "dpswd.shared.published_mechanisms"


@cache
def every_mechanism() -> Mapping[str, AnyMechanism]:
    """What curator, cluster and mock are composed with."""
    offered: Mapping[str, AnyMechanism] = import_module(_ANNEX).ALL_MECHANISMS
    assert offered.keys() >= MECHANISMS.keys()
    return offered
