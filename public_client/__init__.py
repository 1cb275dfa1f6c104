"""The public client: an ML team's side of differentially private domain adaptation.

`Curator` talks to a hospital, `DomainAdaptation` trains against it. Both are imported on first use, so that commands
that need no tensors (``dpswd-client calibrate``) start without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from public_client.adaptation import DomainAdaptation
    from public_client.curator import Curator
    from public_client.federation import Federation
    from public_client.planning import Plan

__all__ = ["Curator", "DomainAdaptation", "Federation", "Plan"]

_HOMES = {
    "Curator": "public_client.curator",
    "DomainAdaptation": "public_client.adaptation",
    "Federation": "public_client.federation",
    "Plan": "public_client.planning",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'public_client' has no attribute {name!r}; it has {', '.join(__all__)}")
