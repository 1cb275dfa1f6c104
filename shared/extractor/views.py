"""Lowering of what changes the shape of a record: views, flattening, concatenation, reduction over the sides.

The batch dimension is never merged, dropped or permuted: that is what would let one record see another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from shared.extractor.functions import Function, adaptive_pool
from shared.extractor.lowering import BATCH, UNKNOWN, Batch, Builder, Refused, Traced


def side_reduction(form: str) -> Function:
    """Mean or maximum over all spatial sides, as global pooling."""

    def lower(builder: Builder, input: Traced, dim: Any = None, keepdim: bool = False) -> Traced:
        if input.shape is None:
            return UNKNOWN
        rank = len(input.shape) + 1
        given = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
        dims = {d % rank for d in given if isinstance(d, int)}
        if len(given) != len(dims) or dims != set(range(2, rank)) or rank < 3:
            raise Refused(
                "only a reduction over all spatial sides (dim=(2, 3)) keeps records and channels apart",
                "use nn.AdaptiveAvgPool2d(1) and nn.Flatten, or reduce over the spatial sides",
            )
        pooled = adaptive_pool(form, rank - 2)(builder, input, 1)
        return pooled if keepdim else builder.reshape(pooled, input.shape[:1])

    return lower


def reshaping(function: Callable[..., Tensor], instead: str) -> Function:
    """What changes nothing but a record's shape, found by trying it on a batch without storage.

    Args:
        function: of torch; takes the records first.
        instead: what to use where the batch dimension does not stay apart.
    """

    def lower(builder: Builder, input: Traced, *arguments: Any, **options: Any) -> Traced:
        if input.shape is None or any(value is UNKNOWN for value in arguments):
            return UNKNOWN
        shapes = set()
        for records in _TRIED:
            batch = torch.empty(records, *input.shape, device="meta")
            try:
                seen = function(batch, *_known(arguments, records), **_known(options, records))
                shapes.add(tuple(seen.shape[1:]) if seen.shape[:1] == (records,) else None)
            except RuntimeError:  # the sizes do not fit
                shapes.add(None)
        shape = shapes.pop()
        if shapes or shape is None:
            reason = f"{function.__name__} of records of shape {input.shape} as {_shown(arguments)}"
            raise Refused(f"{reason} mixes the records of a batch, or does not keep the batch dimension apart", instead)
        return builder.reshape(input, shape)

    return lower


_TRIED = (1, 2**31 - 1)
"""Numbers of records that a view is tried with: one is what squeeze() drops, a prime is what no constant splits."""


def _known(value: Any, records: int) -> Any:
    """The arguments of a call with a number in the place of the batch size."""
    return fx.node.map_aggregate(value, lambda entry: records if isinstance(entry, Batch) else entry)


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_shown(entry) for entry in value) + ")"
    return "batch" if isinstance(value, Batch) else str(value)


flatten = reshaping(Tensor.flatten, "use torch.flatten(x, 1)")
unflatten = reshaping(Tensor.unflatten, "use dim=1")
view = reshaping(Tensor.reshape, "use x.flatten(1) or x.view(x.size(0), -1)")
squeeze = reshaping(Tensor.squeeze, "use squeeze(dim) with another dimension than 0, or flatten(1)")
unsqueeze = reshaping(Tensor.unsqueeze, "use unsqueeze(1)")


def concatenate(builder: Builder, tensors: Any, dim: int = 0, axis: int | None = None) -> Traced:
    """torch.cat along the channels or features."""
    values = list(tensors)
    if any(not isinstance(value, Traced) for value in values):
        raise Refused("torch.cat takes a list of traced tensors", "keep constants out")
    if any(value.shape is None for value in values):
        return UNKNOWN
    where = dim if axis is None else axis
    if where % (len(values[0].shape) + 1) != 1:
        raise Refused(f"torch.cat along dimension {where} is not in the vocabulary", "concatenate along dim=1")
    return values[0] if len(values) == 1 else builder.emit("concat", *values)


def size(builder: Builder, input: Traced, dim: int | None = None) -> Any:
    """x.size() and x.shape: the batch stays symbolic."""
    if input.shape is None:
        return UNKNOWN
    sizes = (BATCH, *input.shape)
    return sizes if dim is None else sizes[dim]


def attribute(builder: Builder, input: Any, name: str) -> Any:
    """Getattr in the traced program: only the shape of a tensor."""
    if name == "shape" and isinstance(input, Traced):
        return size(builder, input)
    raise Refused(f"attribute {name[:40]!r} is not in the vocabulary", "only .shape can be read")


def item(builder: Builder, input: Any, index: Any) -> Any:
    """Indexing: only of a shape."""
    if input is UNKNOWN:
        return UNKNOWN
    if isinstance(input, tuple) and isinstance(index, (int, slice)):
        return input[index]
    raise Refused("indexing a tensor is not in the vocabulary", "use layers that keep the whole record")
