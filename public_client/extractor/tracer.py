"""A run of a module's forward on symbols, whose leaves are the layers that are lowered as a whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from dpswd.public_client.extractor.modules import is_normalize, lowered_type
from dpswd.public_client.extractor.rewriting import in_fewer_words
from dpswd.public_client.extractor.sequence_layers import written_out
from dpswd.public_client.extractor.sizes import BATCH_TRIED, SizedProxy, sample_of
from dpswd.public_client.extractor.windows import is_window_attention
from dpswd.shared.sandbox.operations import Shape

_TRACED_THROUGH = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Flatten, nn.Unflatten)


class VocabularyTracer(fx.Tracer):
    """A tracer whose leaves are the vocabulary's layers and every other layer of torch itself.

    Args:
        input_shape: of one record.

    Attributes:
        failed_at: path of the innermost layer in which tracing failed.
    """

    def __init__(self, input_shape: Shape) -> None:
        super().__init__()
        self.failed_at: str | None = None
        self._input_shape = input_shape
        self._aside = False
        if (einops := sys.modules.get("einops._backends")) is not None:  # which goes by the type of what it is given
            getattr(einops, "_type2backend", {})[SizedProxy] = einops.get_backend(torch.empty(0))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """A symbol that knows its sides."""
        return SizedProxy(node, self)

    def create_proxy(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *others: Any, **options: Any
    ) -> Any:
        """Notes the sides of what is computed."""
        if kind in ("call_function", "call_method"):
            with suppress(AttributeError, TypeError, IndexError, ValueError, RuntimeError):  # it is refused later
                if (made := in_fewer_words(target, args, kwargs)) is not NotImplemented:
                    return made
        made = super().create_proxy(kind, target, args, kwargs, *others, **options)
        if not isinstance(made, SizedProxy):
            return made
        if kind == "placeholder":
            made.sample = args[0] if args else torch.empty(BATCH_TRIED, *self._input_shape, device="meta")
        else:
            self._aside = True
            made.sample = sample_of(self.root, kind, target, args, kwargs)
            self._aside = False
        return made

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """A module's tensor is a symbol to the forward that is traced, and itself beside it."""
        return attr_val if self._aside else super().getattr(attr, attr_val, parameter_proxy_cache)

    def iter(self, obj: Any) -> Any:
        """Of several tensors, as chunk and unbind give them, each in its turn."""
        several = getattr(obj, "sample", None)
        return (obj[i] for i in range(len(several))) if isinstance(several, (tuple, list)) else super().iter(obj)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 - fx's signature
        """Whether a layer stays one node."""
        return is_leaf(m)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Traces one layer, and notes where tracing failed."""
        if (made := written_out(m)) is not None:
            forward = partial(made.forward, m)
        if m not in (self.submodule_paths or ()) and next(m.parameters(), None) is None:
            return forward(*args, **kwargs)  # nn.Softmax(dim=-1)(x), made on the way
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            if self.failed_at is None:
                self.failed_at = self.path_of_module(m)
            raise


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is lowered, or refused, as a whole."""
    if type(module) is nn.Module or isinstance(module, (*_TRACED_THROUGH, fx.GraphModule)) or written_out(module):
        return False
    if hasattr(module, "parametrizations") or type(module).__module__.startswith("torch."):
        return True
    return lowered_type(module) is not None or is_window_attention(module) or is_normalize(module)
