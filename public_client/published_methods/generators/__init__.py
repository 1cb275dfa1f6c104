"""Generators of others' papers, and those that are compared with them; see `dpswd.public_client.published_methods`."""

from dpswd.public_client.published_methods.generators.sinkhorn import DpSinkhorn
from dpswd.public_client.published_methods.generators.sliced import DpSwd, DpSwdQuantiles

__all__ = ["DpSinkhorn", "DpSwd", "DpSwdQuantiles"]
