"""The methods that train for a target, one file each, each a frozen value with its settings.

To add a method, add its file and its line here.
"""

from collections.abc import Mapping
from types import MappingProxyType

from dpswd.public_client.methods.adapter import Adapter
from dpswd.public_client.methods.all_weights import AllWeights, Rows
from dpswd.public_client.methods.dp_dann import DpDann
from dpswd.public_client.methods.dpda import Dpda
from dpswd.public_client.methods.finetune import Finetune
from dpswd.public_client.methods.normalisation import Normalisation
from dpswd.public_client.methods.pseudo_labels import PseudoLabels
from dpswd.public_client.methods.recalibrate import Recalibrate
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.methods.statistics import Statistics
from dpswd.public_client.training.method import Method

__all__ = [
    "METHODS",
    "Adapter",
    "AllWeights",
    "DpDann",
    "Dpda",
    "Finetune",
    "Method",
    "Normalisation",
    "PseudoLabels",
    "Recalibrate",
    "Replay",
    "Rows",
    "Statistics",
]

METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {
        method.name: method
        for method in (
            Replay,
            PseudoLabels,
            Normalisation,
            Adapter,
            AllWeights,
            Rows,
            DpDann,
            Recalibrate,
            Statistics,
            Finetune,
            Dpda,
        )
    }
)
"""Every method by its name on the command line."""
