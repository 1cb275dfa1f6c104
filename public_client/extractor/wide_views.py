"""Views of a record with more sides than a value has, as between a projection and its heads, or of windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from dpswd.public_client.extractor.lowering import BATCH, Batch, Builder, Refused, Traced
from dpswd.public_client.extractor.unlowered import MAX_SIDES, Lower, Unlowered, place
from dpswd.public_client.extractor.windows import rearranged, split_batch
from dpswd.shared.sandbox.operations import Shape


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

    def called(self, builder: Builder, name: str, lower: Lower, *arguments: Any, **options: Any) -> Any:  # noqa: ARG002 - the common signature
        """Turns the view, or takes places of one of its sides."""
        order, rank = self.order, len(self.order)
        given = (*arguments, *options.values())
        if name == "permute":
            target = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
            if all(type(d) is int for d in target) and sorted(d % rank for d in target) == list(range(rank)):
                return replace(self, order=tuple(order[d] for d in target))
        if name == "transpose" and len(given) == 2:
            turned = list(range(rank))
            turned[given[0]], turned[given[1]] = turned[given[1]], turned[given[0]]
            return replace(self, order=tuple(order[d] for d in turned))
        if name == "unbind" and len(given) <= 1:
            at = given[0] if given else 0
            return tuple(self._place(builder, at, k) for k in range((0, *self.sides)[order[at]] or 1))
        if name == "getitem":
            *before, last = given[0] if isinstance(given[0], tuple) else given
            if type(last) is int and all(entry == slice(None) for entry in before):
                return self._place(builder, len(before), last)
        if name == "getattr" and given == ("shape",):
            batch = BATCH if self.windows == 1 else Batch(self.windows)
            return tuple((batch, *self.sides)[d] for d in order)
        if name in ("reshape", "view"):
            return self._reshaped(builder, *arguments)
        if name == "flatten" and len(given) == 1 and 1 <= given[0] < rank and order[0] == 0:
            seen = tuple(self.sides[d - 1] for d in order[1:])
            begin = given[0] - 1
            return self._reshaped(builder, -1, *seen[:begin], math.prod(seen[begin:]))
        if name == "contiguous":
            return self
        raise self.refused(name)

    def _reshaped(self, builder: Builder, *arguments: Any) -> Traced | View:
        """With other sides; windows may be put beside the batch, and taken from there."""
        given = tuple(arguments[0]) if isinstance(arguments[0], (tuple, list)) else arguments
        if self.order[0] != 0:
            raise self.refused("a reshape")
        sides = tuple(self.sides[d - 1] for d in self.order[1:])
        split = split_batch(given, self.windows, sides)
        if split is None:
            raise self.refused("a reshape")
        straight = rearranged(builder, self.base, (self.windows, *self.sides), self.order)
        windows, new = split
        return viewed(builder, straight, new) if windows == 1 else View(straight, new, windows=windows)

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
            f"{name} of a view of shape ({', '.join(map(str, shape))}): a value has the batch first "
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
