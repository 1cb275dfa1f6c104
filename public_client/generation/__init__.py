"""Generators of labelled records, each method a frozen value with its settings.

To add a method, add its file and its line here, or in `dpswd.public_client.published_methods.generators`.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from dpswd.public_client.generation.gaussian import Gaussian
from dpswd.public_client.generation.generator import Generator, load_generator
from dpswd.public_client.generation.method import GenerationMethod
from dpswd.public_client.generation.replayed import Replayed
from dpswd.public_client.generation.schema import Column, Schema
from dpswd.public_client.generation.tabular import Tabular

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
    return MappingProxyType({kind.name: kind for kind in (*_OWN, *import_module(_ANNEX).METHODS)})
