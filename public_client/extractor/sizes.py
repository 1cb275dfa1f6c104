"""Sizes while a module is traced: what a forward reads of a tensor's shape is a number.

`torch.fx` runs a forward on symbols, on which `if x.shape[1] > 14` fails. So every symbol has beside it what the
operation gives of tensors without storage, and its sides are told from that. A number that is a multiple of the tried
batch's size is the batch when calls are lowered: nothing may depend on how many records there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from dpswd.public_client.extractor.lowering import Batch, Builder, Traced
from dpswd.public_client.extractor.modules import lower_module

BATCH_TRIED = 7919
"""Records of the tensors without storage: a prime that no network has as a size."""


class SizedProxy(fx.Proxy):
    """A symbol that knows its sides.

    Attributes:
        sample: what stands for it without storage; NotImplemented where it is not known.
    """

    sample: Any = NotImplemented

    @property
    def shape(self) -> Any:
        """The sides, as numbers."""
        return tuple(self.sample.shape) if isinstance(self.sample, Tensor) else fx.Proxy.__getattr__(self, "shape")

    def size(self, dim: int | None = None) -> Any:
        """`Tensor.size`."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> Any:
        """`Tensor.dim`, and the same read as `Tensor.ndim`."""
        return self.sample.dim() if isinstance(self.sample, Tensor) else fx.Proxy.__getattr__(self, "ndim")

    ndim = property(dim)

    T = mT = property(lambda self: self.t())  # noqa: N815 - as torch calls them

    def __len__(self) -> int:
        """`len(x)`."""
        return len(self.sample) if isinstance(self.sample, Tensor) else super().__len__()


def with_batch(given: Any) -> Any:
    """What a call was given, with the batch where a number stands for it."""

    def seen(one: Any) -> Any:
        return Batch(one // BATCH_TRIED) if type(one) is int and one and one % BATCH_TRIED == 0 else one

    return fx.node.map_aggregate(given, seen)


def sample_of(root: nn.Module, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives of tensors without storage; NotImplemented where that is not known.

    Args:
        root: the traced module.
        kind: of the node.
        target: that is called or read.
        args: with symbols.
        kwargs: with symbols.
    """
    try:
        samples, options = (fx.node.map_aggregate(given, _sample) for given in (args, kwargs))
        with torch.no_grad():
            if kind == "call_function":
                return target(*samples, **options)
            if kind == "call_method":
                return getattr(samples[0], target)(*samples[1:], **options)
            if kind == "call_module":
                return _of_layer(root.get_submodule(target), samples, options)
            if kind == "get_attr":
                owner, _, name = target.rpartition(".")
                place = root.get_submodule(owner)  # whose attributes are symbols while it is traced
                held = {**place._parameters, **place._buffers}.get(name)
                return NotImplemented if held is None else torch.empty_like(held, device="meta")
    except Exception:  # noqa: BLE001 - any layer's own code ran; its sizes are then symbols, as without this
        return NotImplemented
    return NotImplemented


def _of_layer(layer: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """By its lowering: while a module is traced, a layer's own call is a symbol's."""
    first = arguments[0]
    builder = Builder(tuple(first.shape[1:]))
    record = builder.record()
    same = [record if value is first else None for value in arguments]
    result = lower_module(builder, layer, "layer", tuple(same), dict.fromkeys(options))
    whole = result if isinstance(result, tuple) else (result,)
    made = [
        torch.empty(len(first), *one.shape, device="meta") if isinstance(one, Traced) else NotImplemented
        for one in whole
    ]
    return tuple(made) if isinstance(result, tuple) else made[0]


_PLACES = {"device": "meta", "dtype": torch.float32}


def _sample(value: Any) -> Any:
    if isinstance(value, fx.proxy.Attribute) and value.attr in _PLACES:
        return _PLACES[value.attr]
    if isinstance(value, fx.Proxy) and (not isinstance(value, SizedProxy) or value.sample is NotImplemented):
        raise LookupError("a symbol without a sample")
    if isinstance(value, SizedProxy):
        return value.sample
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value
