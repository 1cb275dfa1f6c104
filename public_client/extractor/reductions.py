"""Lowering of sums, means and maxima over sides of a record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpswd.public_client.extractor.functions import Function, adaptive_pool
from dpswd.public_client.extractor.lowering import Builder, Refused, Traced
from dpswd.public_client.extractor.unlowered import Lower, Unlowered
from dpswd.shared.sandbox.operations import Shape


def reduction(form: str) -> Function:
    """Mean ("avg"), sum or maximum ("max") over sides, the batch apart."""

    def lower(builder: Builder, input: Traced, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Traced:
        sides = _sides(input.shape, dim)
        length = math.prod(input.shape[side] for side in sides)
        if form != "sum":
            return _pooled(builder, form, input, sides, keepdim=keepdim)
        mean = _pooled(builder, "avg", input, sides, keepdim=keepdim)
        return builder.emit("scale_shift", mean, gain=length, shift=0.0)

    return lower


def _sides(shape: Shape, dim: Any) -> list[int]:
    """Sides of a record, in order, from dimensions of a batch."""
    given = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    rank = len(shape) + 1
    if any(type(d) is not int or not -rank <= d < rank or d % rank == 0 for d in given):
        raise Refused("a reduction over the batch mixes records", "name the sides of a record, as dim=1 or dim=(2, 3)")
    return sorted({d % rank - 1 for d in given})


def _pooled(builder: Builder, form: str, x: Traced, sides: list[int], *, keepdim: bool) -> Traced:
    shape = x.shape
    rest = [side for side in range(len(shape)) if side not in sides]
    left = tuple(1 if side in sides else shape[side] for side in range(len(shape)))
    out = left if keepdim else tuple(shape[side] for side in rest)
    if rest == [0] and len(shape) > 1:  # as global pooling
        pooled = adaptive_pool(form, len(shape) - 1)(builder, x, 1)
        return pooled if keepdim else builder.reshape(pooled, out)
    if not out:
        raise Refused("a reduction of a whole record to one number", "keep a side: keepdim=True")
    order = [*rest, *sides]
    if order != list(range(len(shape))):
        x = builder.emit("permute", x, order=order)
    flat = builder.reshape(x, (math.prod(shape[side] for side in rest), math.prod(shape[side] for side in sides)))
    return builder.reshape(adaptive_pool(form, 1)(builder, flat, 1), out)


@dataclass(frozen=True)
class Largest(Unlowered):
    """What x.max(dim) returns: the values, and places that no word gives.

    Attributes:
        values: of the maximum.
    """

    values: Traced

    def called(self, builder: Builder, name: str, lower: Lower, *arguments: Any, **options: Any) -> Any:  # noqa: ARG002 - the common signature
        """Takes the values: .values, [0]."""
        if arguments in (("values",), (0,)) and name in ("getattr", "getitem"):
            return self.values
        raise self.refused(name)

    def refused(self, name: str) -> Refused:
        """What to write."""
        return Refused(f"{name} of a maximum and its places", "take its values: x.max(dim=1).values, or x.amax(dim=1)")


def largest(builder: Builder, input: Traced, dim: Any = None, keepdim: bool = False) -> Any:
    """x.max(dim=1)."""
    if isinstance(dim, Traced):
        raise Refused("the maximum of two tensors is not in the vocabulary", "use torch.relu(x - y) + y")
    if dim is None:
        raise Refused("the maximum of a whole batch mixes records", "name a side: x.amax(dim=1)")
    return Largest(reduction("max")(builder, input, dim, keepdim))
