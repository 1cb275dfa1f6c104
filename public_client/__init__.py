"""The public client: an ML team's side of differentially private domain adaptation.

`Hospital` plans and opens runs over a `Curator`'s connection, `DomainAdaptation` trains against it, `MockCurator` and
`LocalHospital` stand in for a hospital. Names are imported on first use, so that commands that need no tensors
(``dpswd-client calibrate``) start without loading torch.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from public_client.adaptation.combined import CombinedAdaptation
    from public_client.adaptation.domain_adaptation import DomainAdaptation
    from public_client.adaptation.federation import Federation
    from public_client.adaptation.hospital import Hospital
    from public_client.adaptation.published import PublishedHospital
    from public_client.curator.stub import Curator
    from public_client.generation import Generator, Replayed, load_generator
    from public_client.methods import (
        Adapter,
        AllWeights,
        Dpda,
        DpDann,
        Finetune,
        Method,
        PseudoLabels,
        Replay,
        Rows,
        Statistics,
    )
    from public_client.methods.evaluation import Evaluate
    from public_client.methods.transport import Transport
    from public_client.plans.plan import Plan
    from public_client.replay.missing_columns import TableView
    from public_client.testing.local_hospital import LocalHospital
    from public_client.testing.mock import MockCurator, mock_description
    from public_client.training.saved_model import load_adapted
    from shared.errors import (
        BudgetExhausted,
        CredentialsInvalid,
        CuratorUnavailable,
        DataInvalid,
        DpswdError,
        ExtractorUnsupported,
        InvalidValue,
        PrivacyError,
        ProtocolError,
        RequestInvalid,
        RunFinished,
        SettingsError,
    )
    from shared.protocol.contract import DataContract

_MODULES = {
    "public_client.adaptation.combined": ("CombinedAdaptation",),
    "public_client.adaptation.domain_adaptation": ("DomainAdaptation",),
    "public_client.adaptation.federation": ("Federation",),
    "public_client.adaptation.hospital": ("Hospital",),
    "public_client.adaptation.published": ("PublishedHospital",),
    "public_client.curator.stub": ("Curator",),
    "public_client.generation": ("Generator", "Replayed", "load_generator"),
    "public_client.methods": (
        "Adapter",
        "AllWeights",
        "DpDann",
        "Dpda",
        "Finetune",
        "Method",
        "PseudoLabels",
        "Replay",
        "Rows",
        "Statistics",
    ),
    "public_client.methods.evaluation": ("Evaluate",),
    "public_client.methods.transport": ("Transport",),
    "public_client.plans.plan": ("Plan",),
    "public_client.replay.missing_columns": ("TableView",),
    "public_client.testing.local_hospital": ("LocalHospital",),
    "public_client.testing.mock": ("MockCurator", "mock_description"),
    "public_client.training.saved_model": ("load_adapted",),
    "shared.protocol.contract": ("DataContract",),
}
__version__ = metadata.version("dpswd")

__all__ = [
    "Adapter",
    "AllWeights",
    "BudgetExhausted",
    "CombinedAdaptation",
    "CredentialsInvalid",
    "Curator",
    "CuratorUnavailable",
    "DataContract",
    "DataInvalid",
    "DomainAdaptation",
    "DpDann",
    "Dpda",
    "DpswdError",
    "Evaluate",
    "ExtractorUnsupported",
    "Federation",
    "Finetune",
    "Generator",
    "Hospital",
    "InvalidValue",
    "LocalHospital",
    "Method",
    "MockCurator",
    "Plan",
    "PrivacyError",
    "ProtocolError",
    "PseudoLabels",
    "PublishedHospital",
    "Replay",
    "Replayed",
    "RequestInvalid",
    "Rows",
    "RunFinished",
    "SettingsError",
    "Statistics",
    "TableView",
    "Transport",
    "__version__",
    "load_adapted",
    "load_generator",
    "mock_description",
]

_DEFINED_IN = dict.fromkeys(__all__, "shared.errors") | {
    name: file for file, names in _MODULES.items() for name in names
}
"""What is in none of the modules above is an error."""


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used (PEP 562)."""
    if name in _DEFINED_IN:
        return getattr(import_module(_DEFINED_IN[name]), name)
    raise AttributeError(f"module 'public_client' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
