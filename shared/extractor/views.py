"""Lowering of what changes the shape of a record: views, flattening, concatenation, reduction over the sides.

The batch dimension is never merged, dropped or permuted: that is what would let one record see another.
"""

from __future__ import annotations

import math
from typing import Any

from shared.extractor.functions import Function, adaptive_pool
from shared.extractor.lowering import BATCH, UNKNOWN, Batch, Builder, Refused, Traced


def side_reduction(kind: str) -> Function:
    """Mean or maximum over all spatial sides, as global pooling."""

    def lower(builder: Builder, input: Traced, dim: Any = None, keepdim: bool = False) -> Traced:  # noqa: A002
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
        pooled = adaptive_pool(rank - 2, kind)(builder, input, 1)
        return pooled if keepdim else builder.reshape(pooled, input.shape[:1])

    return lower


def flatten(builder: Builder, input: Traced, start_dim: int = 0, end_dim: int = -1) -> Traced:  # noqa: A002
    """torch.flatten; the batch dimension must stay."""
    if start_dim == 0:
        raise Refused("flattening from dimension 0 mixes the records of a batch", "use torch.flatten(x, 1)")
    if input.shape is None:
        return UNKNOWN
    rank = len(input.shape) + 1
    start, end = start_dim % rank, end_dim % rank
    if start == 0:
        raise Refused("flattening from dimension 0 mixes the records of a batch", "use torch.flatten(x, 1)")
    sides = input.shape
    merged = (*sides[: start - 1], math.prod(sides[start - 1 : end]), *sides[end:])
    return builder.reshape(input, merged)


def unflatten(builder: Builder, input: Traced, dim: int, sizes: Any) -> Traced:  # noqa: A002
    """Tensor.unflatten with constant sizes."""
    if input.shape is None:
        return UNKNOWN
    axis = dim % (len(input.shape) + 1) - 1
    if axis < 0:
        raise Refused("unflattening dimension 0 mixes the records of a batch", "use dim=1")
    return view(builder, input, BATCH, *input.shape[:axis], *sizes, *input.shape[axis + 1 :])


def view(builder: Builder, input: Traced, *sizes: Any, shape: Any = None) -> Traced:  # noqa: A002
    """Tensor.view and reshape, where the first size stands for the batch: x.size(0) or -1."""
    wanted = list(shape if shape is not None else sizes)
    if len(wanted) == 1 and isinstance(wanted[0], (tuple, list)):
        wanted = list(wanted[0])
    if input.shape is None or any(size is UNKNOWN for size in wanted):
        return UNKNOWN
    numbers = math.prod(input.shape)
    rest = wanted[1:]
    if not rest or not (isinstance(wanted[0], Batch) or wanted[0] == -1) or any(type(size) is not int for size in rest):
        raise Refused(
            f"a view as {_shown(wanted)} does not keep the batch dimension apart",
            "use x.flatten(1) or x.view(x.size(0), -1)",
        )
    if rest.count(-1) == 1 and isinstance(wanted[0], Batch):
        known = math.prod(size for size in rest if size != -1)
        rest[rest.index(-1)] = numbers // known if known > 0 and numbers % known == 0 else 0
    if math.prod(rest) != numbers or min(rest) < 1:
        raise Refused(
            f"a view as {_shown(wanted)} of records of shape {input.shape} mixes the records of a batch",
            "use x.flatten(1)",
        )
    return builder.reshape(input, tuple(rest))


def _shown(sizes: list[Any]) -> str:
    return "(" + ", ".join("batch" if isinstance(size, Batch) else str(size) for size in sizes) + ")"


def squeeze(builder: Builder, input: Traced, dim: Any = None) -> Traced:  # noqa: A002
    """Removes sides of one; never the batch dimension."""
    if input.shape is None:
        return UNKNOWN
    if dim is None:
        raise Refused("squeeze() without a dimension drops a batch of one record", "use squeeze(dim) or flatten(1)")
    rank = len(input.shape) + 1
    dims = {d % rank for d in (dim if isinstance(dim, (tuple, list)) else (dim,))}
    if 0 in dims:
        raise Refused("squeezing dimension 0 touches the batch dimension", "use flatten(1)")
    return builder.reshape(
        input, tuple(side for axis, side in enumerate(input.shape, start=1) if axis not in dims or side != 1)
    )


def unsqueeze(builder: Builder, input: Traced, dim: int) -> Traced:  # noqa: A002
    """Inserts a side of one after the batch dimension."""
    if input.shape is None:
        return UNKNOWN
    axis = dim % (len(input.shape) + 2)
    if axis == 0:
        raise Refused("unsqueezing at dimension 0 makes the batch a channel", "use unsqueeze(1)")
    return builder.reshape(input, (*input.shape[: axis - 1], 1, *input.shape[axis - 1 :]))


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


def size(builder: Builder, input: Traced, dim: int | None = None) -> Any:  # noqa: A002, ARG001
    """x.size() and x.shape: the batch stays symbolic."""
    if input.shape is None:
        return UNKNOWN
    sizes = (BATCH, *input.shape)
    return sizes if dim is None else sizes[dim]


def attribute(builder: Builder, input: Any, name: str) -> Any:  # noqa: A002
    """Getattr in the traced program: only the shape of a tensor."""
    if name == "shape" and isinstance(input, Traced):
        return size(builder, input)
    raise Refused(f"attribute {name[:40]!r} is not in the vocabulary", "only .shape can be read")


def item(builder: Builder, input: Any, index: Any) -> Any:  # noqa: A002, ARG001
    """Indexing: only of a shape."""
    if input is UNKNOWN:
        return UNKNOWN
    if isinstance(input, tuple) and isinstance(index, (int, slice)):
        return input[index]
    raise Refused("indexing a tensor is not in the vocabulary", "use layers that keep the whole record")
