"""The public client: an ML team's side of differentially private domain adaptation.

`Curator` talks to a hospital, `DomainAdaptation` trains against it. Both are imported on first use, so that commands
that need no tensors (``dpswd-client calibrate``) start without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from public_client.curator.stub import Curator
    from public_client.plans.plan import Plan
    from public_client.training.adaptation import DomainAdaptation
    from public_client.training.federation import Federation

__all__ = ["Curator", "DomainAdaptation", "Federation", "Plan"]

_HOMES = {
    "Curator": "public_client.curator.stub",
    "DomainAdaptation": "public_client.training.adaptation",
    "Federation": "public_client.training.federation",
    "Plan": "public_client.plans.plan",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'public_client' has no attribute {name!r}; it has {', '.join(__all__)}")
