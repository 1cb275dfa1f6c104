"""Differentially private domain adaptation between a hospital and an ML team: what a script of either side imports.

The team: `Hospital` plans and opens runs over a `Curator`'s connection, `DomainAdaptation` trains against it,
`MockCurator` and `LocalHospital` stand in for a hospital. The hospital: `HomeDirectory` is what an operator's commands
open, `CuratorSettings` its settings, `Mechanism` a kind of release. Names are imported on first use, so that commands
that need no tensors (``dpswd-client calibrate``) start without loading torch.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpswd.private_curator.settings.tree import CuratorSettings
    from dpswd.private_curator.storage.home_directory import HomeDirectory
    from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
    from dpswd.public_client.adaptation.federation import Federation
    from dpswd.public_client.adaptation.hospital import Hospital
    from dpswd.public_client.adaptation.published import PublishedHospital
    from dpswd.public_client.curator.stub import Curator
    from dpswd.public_client.generation import Generator, Replayed, load_generator
    from dpswd.public_client.ladder.adapt import adapt, plan_ladder
    from dpswd.public_client.ladder.adapted import Adapted
    from dpswd.public_client.methods import Method, Recalibrate, Replay, Statistics
    from dpswd.public_client.methods.evaluation import Evaluate
    from dpswd.public_client.models.trees import as_module
    from dpswd.public_client.plans.plan import Plan
    from dpswd.public_client.published_methods import AllWeights, Dpda, Finetune, PseudoLabels, Rows
    from dpswd.public_client.published_methods.transport import Transport, transported
    from dpswd.public_client.replay.missing_columns import TableView
    from dpswd.public_client.testing.local_hospital import LocalHospital
    from dpswd.public_client.testing.mock import MockCurator, mock_description
    from dpswd.public_client.training.saved_model import load_adapted
    from dpswd.shared.core.errors import (
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
    from dpswd.shared.core.mechanisms.interface import Mechanism
    from dpswd.shared.protocol.contract import DataContract

_MODULES = {
    "dpswd.private_curator.settings.tree": ("CuratorSettings",),
    "dpswd.private_curator.storage.home_directory": ("HomeDirectory",),
    "dpswd.shared.core.mechanisms.interface": ("Mechanism",),
    "dpswd.public_client.ladder.adapt": ("adapt", "plan_ladder"),
    "dpswd.public_client.ladder.adapted": ("Adapted",),
    "dpswd.public_client.adaptation.domain_adaptation": ("DomainAdaptation",),
    "dpswd.public_client.adaptation.federation": ("Federation",),
    "dpswd.public_client.adaptation.hospital": ("Hospital",),
    "dpswd.public_client.adaptation.published": ("PublishedHospital",),
    "dpswd.public_client.curator.stub": ("Curator",),
    "dpswd.public_client.generation": ("Generator", "Replayed", "load_generator"),
    "dpswd.public_client.methods": ("Method", "Recalibrate", "Replay", "Statistics"),
    "dpswd.public_client.models.trees": ("as_module",),
    "dpswd.public_client.published_methods": ("AllWeights", "Dpda", "Finetune", "PseudoLabels", "Rows"),
    "dpswd.public_client.methods.evaluation": ("Evaluate",),
    "dpswd.public_client.published_methods.transport": ("Transport", "transported"),
    "dpswd.public_client.plans.plan": ("Plan",),
    "dpswd.public_client.replay.missing_columns": ("TableView",),
    "dpswd.public_client.testing.local_hospital": ("LocalHospital",),
    "dpswd.public_client.testing.mock": ("MockCurator", "mock_description"),
    "dpswd.public_client.training.saved_model": ("load_adapted",),
    "dpswd.shared.protocol.contract": ("DataContract",),
}
__version__ = metadata.version("dpswd")

__all__ = [
    "Adapted",
    "AllWeights",
    "BudgetExhausted",
    "CredentialsInvalid",
    "Curator",
    "CuratorSettings",
    "CuratorUnavailable",
    "DataContract",
    "DataInvalid",
    "DomainAdaptation",
    "Dpda",
    "DpswdError",
    "Evaluate",
    "ExtractorUnsupported",
    "Federation",
    "Finetune",
    "Generator",
    "HomeDirectory",
    "Hospital",
    "InvalidValue",
    "LocalHospital",
    "Mechanism",
    "Method",
    "MockCurator",
    "Plan",
    "PrivacyError",
    "ProtocolError",
    "PseudoLabels",
    "PublishedHospital",
    "Recalibrate",
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
    "adapt",
    "as_module",
    "load_adapted",
    "load_generator",
    "mock_description",
    "plan_ladder",
    "transported",
]

_DEFINED_IN = dict.fromkeys(__all__, "dpswd.shared.core.errors") | {
    name: file for file, names in _MODULES.items() for name in names
}
"""What is in none of the modules above is an error."""


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used (PEP 562)."""
    if name in _DEFINED_IN:
        return getattr(import_module(_DEFINED_IN[name]), name)
    raise AttributeError(f"module 'dpswd' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
