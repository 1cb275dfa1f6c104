"""The methods of the ladder and of labelled hospitals, one file each, each a frozen value with its settings.

To add a method, add its file and its line here, or in `dpswd.public_client.published_methods` if the ladder does not
need it.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from dpswd.public_client.methods.normalisation import Normalisation
from dpswd.public_client.methods.recalibrate import Recalibrate
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.methods.statistics import Statistics
from dpswd.public_client.training.method import Method

__all__ = ["Method", "Normalisation", "Recalibrate", "Replay", "Statistics", "method_kinds"]

_OWN = (Replay, Normalisation, Recalibrate, Statistics)
_ANNEX = "dpswd.public_client.published_methods"


@cache
def method_kinds() -> Mapping[str, type[Method]]:
    """Every method by its name on the command line, those of the annex among them."""
    return MappingProxyType({kind.name: kind for kind in (*_OWN, *import_module(_ANNEX).METHODS)})
