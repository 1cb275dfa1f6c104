"""The methods of the ladder and of labelled hospitals, one file each, each a frozen value with its settings.

To add a method, put its file into the folder `published_methods`, where it is found; or here, with a line below, if the
ladder needs it.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from dpswd.public_client.methods.normalisation import Normalisation
from dpswd.public_client.methods.recalibrate import Recalibrate
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.methods.statistics import Statistics
from dpswd.public_client.plans.recipe import kinds_in
from dpswd.public_client.training.method import Method

__all__ = ["Method", "Normalisation", "Recalibrate", "Replay", "Statistics", "method_kinds"]

_OWN = (Replay, Normalisation, Recalibrate, Statistics)
_ANNEX = "dpswd.public_client.published_methods"


@cache
def method_kinds() -> Mapping[str, type[Method]]:
    """Every method by its name on the command line, those of the annex among them."""
    return MappingProxyType({kind.name: kind for kind in [*_OWN, *kinds_in(_ANNEX, Method)]})
