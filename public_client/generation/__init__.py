"""Generators of labelled records, each method a frozen value with its settings.

To add a method, put its file into the folder `published_methods/generators`, where it is found; or here, with a line
below.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from dpswd.public_client.generation.gaussian import Gaussian
from dpswd.public_client.generation.generator import Generator, load_generator
from dpswd.public_client.generation.method import GenerationMethod
from dpswd.public_client.generation.replayed import Replayed
from dpswd.public_client.generation.schema import Column, Schema
from dpswd.public_client.generation.tabular import Tabular
from dpswd.public_client.plans.recipe import kinds_in

__all__ = [
    "Column",
    "Gaussian",
    "GenerationMethod",
    "Generator",
    "Replayed",
    "Schema",
    "Tabular",
    "generation_kinds",
    "load_generator",
]

_OWN = (Replayed, Tabular, Gaussian)
_ANNEX = "dpswd.public_client.published_methods.generators"


@cache
def generation_kinds() -> Mapping[str, type[GenerationMethod]]:
    """Every method by its name on the command line, those of the annex among them; the first is the default."""
    return MappingProxyType({kind.name: kind for kind in [*_OWN, *kinds_in(_ANNEX, GenerationMethod)]})
