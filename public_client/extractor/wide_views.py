"""Views of a record with more sides than a value has, as between a projection and its heads, or of windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dpswd.public_client.extractor.lowering import BATCH, Batch, Builder, Refused, Traced
from dpswd.public_client.extractor.unlowered import MAX_SIDES, Held, Lower, Unlowered, place
from dpswd.public_client.extractor.windows import rearranged
from dpswd.shared.sandbox.operations import Shape

_OF_EACH = {"matmul", "bmm", "add", "sub", "mul", "truediv", "dropout", "relu", "gelu", "silu", "tanh", "exp", "log"}
_OF_LAST = {"softmax", "mean", "sum", "amax"}


@dataclass(frozen=True)
class View(Unlowered):
    """A view of a record with more sides than a value has, as between a projection and its heads.

    Attributes:
        base: the value, its numbers in the order of `sides`.
        sides: of the record in the view.
        order: which dimension stands where, with 0 for the batch and i + 1 for side i.
        windows: of each record, that stand beside the batch; `sides` are of one of them.
    """

    base: Traced
    sides: Shape
    order: tuple[int, ...] = field(default=())
    windows: int = 1

    def called(self, builder: Builder, name: str, lower: Lower, *arguments: Any, **options: Any) -> Any:
        """Turns the view, or takes places of one of its sides."""
        order, rank = self.order, len(self.order)
        given = (*arguments, *options.values())
        if name == "permute":
            target = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
            if all(type(d) is int for d in target) and sorted(d % rank for d in target) == list(range(rank)):
                return self._in_order(builder, tuple(order[d] for d in target))
        if name == "getitem":
            *before, last = given[0] if isinstance(given[0], tuple) else given
            if type(last) is int and all(entry == slice(None) for entry in before):
                return self._place(builder, len(before), last)
        if name == "reshape":
            return self._reshaped(builder, *arguments)
        if name == "contiguous":
            return self
        if name == "matmul" and order == (1, 0, 2) and isinstance(given[0], Held) and len(given[0].shape) == rank:
            # One matrix for each place of a side that stands before the batch.
            rows = builder.reshape(self.base, (self.sides[0], 1, self.sides[1]))
            made = builder.emit("matmul", rows, given[0].beside(builder, rank))
            sides = (self.sides[0], made.shape[-1])
            return View(builder.reshape(made, sides), sides, order)
        if self.windows > 1 and (name in _OF_EACH or (name in _OF_LAST and given[0] in (-1, (-1,)))):
            return self.each(partial(lower, builder), builder, *arguments, **options)
        raise self.refused(name)

    def each(self, lower: Lower, builder: Builder, *others: Any, **options: Any) -> View:
        """What is computed of each window: heads that stand beside the batch, or moments."""
        if len(self.sides) >= MAX_SIDES:
            raise self.refused("computing with")
        values = [one.whole(builder) if isinstance(one, View) else one for one in (self, *others)]
        made = lower(*values, **options)
        return View(made, made.shape[1:], windows=self.windows)

    def whole(self, builder: Builder) -> Traced:
        """A value with the windows as its first side."""
        straight = self.straight(builder)
        return builder.reshape(straight.base, (self.windows, *straight.sides))

    def _in_order(self, builder: Builder, order: tuple[int, ...]) -> Traced | View:
        return replace(self, order=order) if self.windows > 1 else viewed(builder, self.base, self.sides, order)

    def _reshaped(self, builder: Builder, shape: Any) -> Traced | View:
        """With other sides; windows may be put beside the batch, and taken from there."""
        batch, *sides = shape
        if self.order[0] != 0 or not isinstance(batch, Batch):
            raise self.refused("a reshape")
        base, new = self.straight(builder).base, tuple(sides)
        return viewed(builder, base, new) if batch == BATCH else View(base, new, windows=batch.windows)

    def straight(self, builder: Builder) -> View:
        """With its numbers in the order of its sides."""
        base = rearranged(builder, self.base, (self.windows, *self.sides), self.order)
        return View(base, tuple(self.sides[d - 1] for d in self.order[1:]), windows=self.windows)

    def _place(self, builder: Builder, at: int, number: int) -> Traced | View:
        """One place of the view's dimension `at`, which is dropped."""
        side = self.order[at] - 1
        if side < 0:
            raise Refused("taking one record of the batch", "take places of another dimension")
        length = self.sides[side]
        if not -length <= number < length:
            raise IndexError(f"place {number} of {length}")
        before, after = self.sides[:side], self.sides[side + 1 :]
        if self.windows > 1:
            raise self.refused("a place of a side")
        cut = builder.reshape(self.base, (math.prod(before), length, math.prod(after)))
        one = place(builder, cut, 1, number % length)
        order = tuple(d - (d > side + 1) for d in self.order if d != side + 1)
        return viewed(builder, one, (*before, *after), order)

    def refused(self, name: str) -> Refused:
        """Which sides there are, and what to write."""
        shape = tuple("batch" if d == 0 else self.sides[d - 1] for d in self.order)
        shape = tuple(f"batch * {self.windows}" if d == "batch" and self.windows > 1 else d for d in shape)
        return Refused(
            f"{name} of a view of shape ({', '.join(map(str, shape))})"
            f"{', which moves the batch' if self.order[0] else ''}: a value has the batch first "
            f"and at most {MAX_SIDES} sides",
            "take it apart first (q, k, v = qkv.unbind(0)), or use chunk(3, dim=-1) or nn.MultiheadAttention",
        )

    def __post_init__(self) -> None:
        if not self.order:
            object.__setattr__(self, "order", tuple(range(len(self.sides) + 1)))


def viewed(builder: Builder, value: Traced, sides: Shape, order: tuple[int, ...] = ()) -> Traced | View:
    """A value seen with other sides, its dimensions in some order: a value where one can be, else a view."""
    order = order or tuple(range(len(sides) + 1))
    if len(sides) > MAX_SIDES or order[0] != 0:
        return View(value, sides, order)
    value = builder.reshape(value, sides)
    straight = order == tuple(range(len(order)))
    return value if straight else builder.emit("permute", value, order=[d - 1 for d in order[1:]])
