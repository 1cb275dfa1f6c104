"""Lowering of what changes the shape of a record: views, flattening, concatenation, reduction over the sides.

The batch dimension is never merged, dropped or permuted: that is what would let one record see another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from dpswd.public_client.extractor.functions import Function
from dpswd.public_client.extractor.lowering import BATCH, UNKNOWN, Batch, Builder, Refused, Traced
from dpswd.public_client.extractor.unlowered import MAX_SIDES, PLACE, Held, indexed, place
from dpswd.public_client.extractor.wide_views import View, viewed


def reshaping(function: Callable[..., Tensor], instead: str) -> Function:
    """What changes nothing but a record's shape, found by trying it on a batch without storage.

    Args:
        function: of torch; takes the records first.
        instead: what to use where the batch dimension does not stay apart.
    """

    def lower(builder: Builder, input: Traced, *arguments: Any, **options: Any) -> Traced | View:
        if input.shape is None or any(value is UNKNOWN for value in arguments):
            return UNKNOWN
        shapes = set()
        for records in _TRIED:
            batch = torch.empty(records, *input.shape, device="meta")
            try:
                seen = function(batch, *_with_count(arguments, records), **_with_count(options, records))
                shapes.add(tuple(seen.shape[1:]) if seen.shape[:1] == (records,) else None)
            except RuntimeError:  # the sizes do not fit
                shapes.add(None)
        shape = shapes.pop()
        if shapes or shape is None:
            reason = f"{function.__name__} of records of shape {input.shape} as {_shown(arguments)}"
            raise Refused(f"{reason} mixes the records of a batch, or does not keep the batch dimension apart", instead)
        return viewed(builder, input, shape)

    return lower


_TRIED = (1, 2**31 - 1)
"""Numbers of records that a view is tried with: one is what squeeze() drops, a prime is what no constant splits."""


def _with_count(value: Any, records: int) -> Any:
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


def concatenate(builder: Builder, tensors: Any, dim: int = 0, axis: int | None = None) -> Any:
    """torch.cat along the channels or features."""
    if tensors and all(isinstance(value, Held) for value in tensors):
        return _own_concatenated(builder, tensors, dim if axis is None else axis)
    shapes = [value.shape for value in tensors if isinstance(value, Traced)]
    rank = max((len(shape) for shape in shapes if shape is not None), default=0)
    values: list[Any] = [
        value.beside(builder, rank) if isinstance(value, Held) and rank else value for value in tensors
    ]
    if any(not isinstance(value, Traced) for value in values):
        raise Refused("torch.cat takes a list of traced tensors", "keep constants out")
    if any(value.shape is None for value in values):
        return UNKNOWN
    where = (dim if axis is None else axis) % (len(values[0].shape) + 1) - 1
    if where < 0:
        raise Refused("torch.cat along the batch mixes records", "concatenate along dim=1")
    if len(values) == 1:
        only: Traced = values[0]
        return only
    if where == 0:
        return builder.emit("concat", *values)
    # `concat` joins first sides: the one that is meant is brought there and back.
    order = (where, *(side for side in range(rank) if side != where))
    joined = builder.emit("concat", *(builder.emit("permute", value, order=order) for value in values))
    return builder.emit("permute", joined, order=tuple(order.index(side) for side in range(rank)))


def expanded(builder: Builder, x: Any, *sizes: Any) -> Any:
    """x.expand(b, ...): sides of 1 are copied; x.repeat(b, 1, 1) of a tensor of one's own."""
    target = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    value = x.beside(builder, len(x.shape) - 1) if isinstance(x, Held) and x.shape[:1] == (1,) else x
    if value.shape is None:
        return UNKNOWN
    pairs = list(zip(target[1:], value.shape, strict=False))
    copied = len(target) == len(value.shape) + 1 and all(have == 1 or want in (-1, 1, have) for want, have in pairs)
    if (value is x and isinstance(x, Held)) or target[:1] not in ((BATCH,), (-1,)) or not copied:
        raise Refused(f"expand of {x.shape} to {target[1:]} is not in the vocabulary", "only sides of 1 are copied")
    for axis, (want, have) in enumerate(pairs):
        while have == 1 and (now := value.shape[axis]) < want:  # twice as much each time
            part = builder.emit("slice", value, axis=axis, begin=0, end=min(now, want - now))
            value = concatenate(builder, [value, part], axis + 1)
    return value


def _own_concatenated(builder: Builder, tensors: Any, dim: int) -> Held:
    """torch.cat of tensors of the module's own, along their first side."""
    first: Held = tensors[0]
    if dim % len(first.shape):
        raise Refused("torch.cat of the module's own tensors along another side than the first", "hold one tensor")
    parts = [value.beside(builder, len(value.shape)) for value in tensors]
    joined = builder.emit("concat", *parts)
    return replace(first, shape=joined.shape or (), part=joined)


def stack(builder: Builder, tensors: Any, dim: int = 0) -> Any:
    """torch.stack of values of the record: each with one more side, and joined."""
    if any(not isinstance(value, Traced) for value in tensors):
        raise Refused("torch.stack takes a list of traced tensors", "keep constants out")
    if any(value.shape is None for value in tensors):
        return UNKNOWN
    rank = len(tensors[0].shape) + 2
    if rank > MAX_SIDES + 1 or dim % rank == 0:
        raise Refused(f"torch.stack along dimension {dim} is not in the vocabulary", "use torch.cat along dim=1")
    at = dim % rank - 1
    wide = [builder.reshape(one, (*one.shape[:at], 1, *one.shape[at:])) for one in tensors]
    return concatenate(builder, wide, dim % rank)


def roll(builder: Builder, input: Traced, shifts: Any, dims: Any = None) -> Traced:
    """torch.roll over sides of a record."""
    if input.shape is None:
        return UNKNOWN
    given = (shifts, () if dims is None else dims)
    pairs = list(zip(*((one,) if isinstance(one, int) else one for one in given), strict=True))
    rank = len(input.shape) + 1
    if not pairs or any(side % rank == 0 for _, side in pairs):
        raise Refused("roll over the batch mixes records", "name the sides of a record, as dims=(1, 2)")
    rolled = input
    for shift, side in pairs:
        axis = side % rank - 1
        length = (rolled.shape or ())[axis]
        cut = -shift % length
        if cut:
            ends = ((cut, length), (0, cut))
            parts = [builder.emit("slice", rolled, axis=axis, begin=begin, end=end) for begin, end in ends]
            rolled = concatenate(builder, parts, axis + 1)
    return rolled


def pad(builder: Builder, input: Traced, pad: Any, mode: str = "constant", value: float | None = None) -> Traced:
    """F.pad with a constant."""
    if input.shape is None:
        return UNKNOWN
    sizes = [pad[i : i + 2] for i in range(0, len(pad), 2)]
    if mode != "constant" or (len(sizes) > len(input.shape) and any(map(any, sizes[len(input.shape) :]))):
        raise Refused(f"pad of mode {mode!r}, or of the batch, is not in the vocabulary", "pad sides by a constant")
    padded = input
    for number, (before, after) in enumerate(sizes[: len(input.shape)]):
        if before or after:
            axis = len(input.shape) - 1 - number
            padded = builder.emit("pad", padded, axis=axis, before=before, after=after, value=value or 0.0)
    return padded


def size(builder: Builder, input: Traced, dim: int | None = None) -> Any:
    """x.size() and x.shape: the batch stays symbolic."""
    if input.shape is None:
        return UNKNOWN
    sizes = (BATCH, *input.shape)
    return sizes if dim is None else sizes[dim]


def dim(builder: Builder, input: Traced) -> Any:
    """x.dim()."""
    return UNKNOWN if input.shape is None else len(input.shape) + 1


def attribute(builder: Builder, input: Any, name: str) -> Any:
    """Getattr in the traced program: what does not depend on a tensor's values."""
    if input is UNKNOWN:
        return UNKNOWN
    readable = {"shape": size, "ndim": dim, "device": lambda *_: PLACE, "dtype": lambda *_: torch.float32}
    if isinstance(input, Traced) and name in readable:
        return readable[name](builder, input)
    raise Refused(f"attribute {name[:40]!r} is not in the vocabulary", "read .shape, .ndim, .device or .dtype alone")


def item(builder: Builder, input: Any, index: Any) -> Any:
    """Indexing: of a shape, of what a layer returns, and of a record's sides by constants, as x[:, 0]."""
    if input is UNKNOWN:
        return UNKNOWN
    if isinstance(input, tuple) and isinstance(index, (int, slice)):
        return input[index]
    if isinstance(input, Traced) and isinstance(index, tuple) and input.shape is not None:
        return indexed(builder, input, index)
    raise Refused("indexing a tensor so is not in the vocabulary", "use x[:, 0], x[:, a:b] with constants")


def permute(builder: Builder, input: Traced, *dims: Any) -> Traced:
    """x.permute(0, 2, 1): the batch stays first."""
    order = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    if input.shape is None:
        return UNKNOWN
    rank = len(input.shape) + 1
    turned = tuple(d % rank for d in order)
    if len(turned) != rank or turned[0] != 0:
        raise Refused(f"permute{order} moves the batch", "leave dimension 0 first")
    return builder.emit("permute", input, order=tuple(d - 1 for d in turned[1:]))


def transpose(builder: Builder, input: Traced, dim0: int, dim1: int) -> Traced:
    """x.transpose(1, 2)."""
    if input.shape is None:
        return UNKNOWN
    order = list(range(len(input.shape) + 1))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(builder, input, *order)


def split(builder: Builder, input: Traced, split_size: Any, dim: int = 0) -> Any:
    """x.split(size, dim) and x.split([a, b], dim)."""
    if input.shape is None:
        return UNKNOWN
    axis = dim % (len(input.shape) + 1) - 1
    if axis < 0:
        raise Refused("a split along the batch mixes records", "name another dimension")
    length = input.shape[axis]
    if isinstance(split_size, int):
        sizes = [min(split_size, length - begin) for begin in range(0, length, split_size)]
    else:
        sizes = list(split_size)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(
        builder.emit("slice", input, axis=axis, begin=end - size, end=end)
        for size, end in zip(sizes, ends, strict=True)
    )


def chunk(builder: Builder, input: Traced, chunks: int, dim: int = 0) -> Any:
    """x.chunk(3, dim=-1)."""
    if input.shape is None:
        return UNKNOWN
    length = (0, *input.shape)[dim % (len(input.shape) + 1)]
    return split(builder, input, max(1, -(-length // chunks)), dim)


def unbind(builder: Builder, input: Traced, dim: int = 0) -> Any:
    """q, k, v = x.unbind(2): the places of a side, which is dropped."""
    if input.shape is None:
        return UNKNOWN
    axis = dim % (len(input.shape) + 1) - 1
    if axis < 0:
        raise Refused("unbind of the batch mixes records", "name another dimension")
    return tuple(place(builder, input, axis, number) for number in range(input.shape[axis]))


def over_last(name: str) -> Function:
    """What is computed along the last side, softmax, or after another one was brought there."""

    def lower(
        builder: Builder, input: Traced, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
    ) -> Traced:
        if input.shape is None:
            return UNKNOWN
        last = len(input.shape)
        if dim is None or not (axis := dim % (last + 1)):
            raise Refused(f"{name} along dimension {dim} is not in the vocabulary", "use dim=-1")
        order = [side for side in range(last) if side != axis - 1] + [axis - 1]
        if axis == last:
            return builder.emit(name, input)
        turned = builder.emit(name, builder.emit("permute", input, order=order))
        return builder.emit("permute", turned, order=[order.index(side) for side in range(last)])

    return lower


def normalize(
    builder: Builder, input: Traced, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Traced:
    """F.normalize by the Euclidean norm."""
    if input.shape is None:
        return UNKNOWN
    axis = dim % (len(input.shape) + 1) - 1
    if p != 2 or axis < 0 or out is not None:
        raise Refused(f"normalize with p={p} along dimension {dim} is not in the vocabulary", "use p=2 and dim=1 or -1")
    return builder.emit("normalize", input, axis=axis, eps=eps)
