"""Generators of labelled records, each method a frozen value with its settings.

To add a method, add its file and its line here.
"""

from collections.abc import Mapping
from types import MappingProxyType

from dpswd.public_client.generation.distributions import SlicedDistributions
from dpswd.public_client.generation.gaussian import Gaussian
from dpswd.public_client.generation.generator import Generator, load_generator
from dpswd.public_client.generation.method import GenerationMethod
from dpswd.public_client.generation.random_features import DpMerf
from dpswd.public_client.generation.replayed import Replayed
from dpswd.public_client.generation.schema import Column, Schema
from dpswd.public_client.generation.sinkhorn import DpSinkhorn
from dpswd.public_client.generation.sliced import DpSwd, DpSwdQuantiles
from dpswd.public_client.generation.tabular import Tabular

__all__ = [
    "GENERATION_METHODS",
    "Column",
    "DpMerf",
    "DpSinkhorn",
    "DpSwd",
    "DpSwdQuantiles",
    "Gaussian",
    "GenerationMethod",
    "Generator",
    "Replayed",
    "Schema",
    "SlicedDistributions",
    "Tabular",
    "load_generator",
]

GENERATION_METHODS: Mapping[str, type[GenerationMethod]] = MappingProxyType(
    {
        method.name: method
        for method in (Replayed, Tabular, Gaussian, SlicedDistributions, DpMerf, DpSinkhorn, DpSwd, DpSwdQuantiles)
    }
)
"""Every method by its name on the command line; the first is the default."""
