"""Mechanisms that only methods of others' papers ask for, and the mapping of all that a curator offers.

They are mechanisms like the core's, held by the same tests, and their price is checked by the same bracket.
"""

from collections.abc import Mapping
from types import MappingProxyType

from dpswd.shared.core.mechanisms import MECHANISMS
from dpswd.shared.core.mechanisms.interface import AnyMechanism
from dpswd.shared.published_mechanisms.critic.mechanism import CRITIC
from dpswd.shared.published_mechanisms.gradient.mechanism import GRADIENT
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import LABELLED_GRADIENT
from dpswd.shared.published_mechanisms.rows.mechanism import LABELLED_ROWS, ROWS
from dpswd.shared.published_mechanisms.sinkhorn.mechanism import SINKHORN

PUBLISHED_MECHANISMS: Mapping[str, AnyMechanism] = MappingProxyType(
    {each.name: each for each in (ROWS, LABELLED_ROWS, GRADIENT, CRITIC, SINKHORN, LABELLED_GRADIENT)}
)
"""Those of published methods, by name."""

ALL_MECHANISMS: Mapping[str, AnyMechanism] = MappingProxyType({**MECHANISMS, **PUBLISHED_MECHANISMS})
"""Every mechanism by its name: what curator, cluster and mock are composed with."""
