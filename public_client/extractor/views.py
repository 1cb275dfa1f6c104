"""Lowering of what changes the shape of a record: views, flattening, concatenation, reduction over the sides.

A value has the batch first and apart. What stands beside or before it for a while is a `View`: nothing but turning it
back, or what each record's own part of it allows, makes a value of that again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dpswd.public_client.extractor.functions import Function
from dpswd.public_client.extractor.lowering import BATCH, UNKNOWN, Batch, Builder, Refused, Traced
from dpswd.public_client.extractor.unlowered import PLACE, Held, indexed
from dpswd.public_client.extractor.wide_views import View, viewed


def reshape(builder: Builder, input: Traced, shape: Any) -> Traced | View:
    """x.reshape of known sizes; heads, or moments, may be put beside the batch."""
    batch, *sides = shape
    if not isinstance(batch, Batch) or not sides:
        raise Refused(
            f"a reshape of {input.shape} that mixes the records of a batch, or does not keep the batch dimension apart",
            "use x.flatten(1), x.view(x.size(0), -1), squeeze(1)",
        )
    return viewed(builder, input, tuple(sides)) if batch == BATCH else View(input, tuple(sides), windows=batch.windows)


def concatenate(builder: Builder, tensors: Any, dim: int = 0, axis: int | None = None) -> Any:
    """torch.cat along the channels or features."""
    if tensors and all(isinstance(value, Held) for value in tensors):
        return _own_concatenated(builder, tensors, dim if axis is None else axis)
    rank = max((len(value.shape) for value in tensors if isinstance(value, Traced)), default=0)
    values: list[Any] = [
        value.beside(builder, rank) if isinstance(value, Held) and rank else value for value in tensors
    ]
    if any(not isinstance(value, Traced) for value in values):
        raise Refused("torch.cat takes a list of traced tensors", "keep constants out")
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
    value = x.beside(builder, len(target) - 1) if isinstance(x, Held) and len(target) >= len(x.shape) else x
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
    return replace(first, shape=joined.shape, part=joined)


def pad(builder: Builder, input: Traced, pad: Any, mode: str = "constant", value: float | None = None) -> Traced:
    """F.pad with a constant."""
    if input is UNKNOWN:
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


def attribute(builder: Builder, input: Any, name: str) -> Any:
    """Getattr in the traced program: what does not depend on a tensor's values; sizes are numbers there."""
    readable = {"device": PLACE, "dtype": torch.float32}
    if isinstance(input, Traced) and name in readable:
        return readable[name]
    raise Refused(f"attribute {name[:40]!r} is not in the vocabulary", "read .shape, .ndim, .device or .dtype alone")


def item(builder: Builder, input: Any, index: Any) -> Any:
    """Indexing: of a shape, of what a layer returns, and of a record's sides by constants, as x[:, 0]."""
    if isinstance(input, tuple) and isinstance(index, (int, slice)):
        return input[index]
    if isinstance(input, Traced) and isinstance(index, tuple):
        return indexed(builder, input, index)
    raise Refused("indexing a tensor so is not in the vocabulary", "use x[:, 0], x[:, a:b] with constants")


def permute(builder: Builder, input: Traced, *dims: Any) -> Traced | View:
    """x.permute(0, 2, 1): the batch stays first."""
    order = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    rank = len(input.shape) + 1
    turned = tuple(d % rank for d in order)
    if sorted(turned) != list(range(rank)):
        raise Refused(f"permute{order} of {rank} dimensions", "name each of them once")
    return viewed(builder, input, input.shape, turned)


def over_last(name: str) -> Function:
    """What is computed along the last side, softmax, or after another one was brought there."""

    def lower(
        builder: Builder, input: Traced, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
    ) -> Traced:
        if input is UNKNOWN:
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
    axis = dim % (len(input.shape) + 1) - 1
    if p != 2 or axis < 0 or out is not None:
        raise Refused(f"normalize with p={p} along dimension {dim} is not in the vocabulary", "use p=2 and dim=1 or -1")
    return builder.emit("normalize", input, axis=axis, eps=eps)
