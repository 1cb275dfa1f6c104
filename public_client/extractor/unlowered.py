"""What a traced program holds that is no value of a record yet, and the few calls that make one of it.

A team's own tensors, the last states of a recurrent layer, views of a record with more sides than a value has. Every
other call is refused in words that say what the thing is and what to write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpswd.public_client.extractor.lowering import BATCH, Batch, Builder, Refused, Traced
from dpswd.shared.sandbox.operations import Shape

Lower = Callable[..., Any]
MAX_SIDES = 3
"""Sides that a value of one record has at most."""
PLACE = "the place where records lie"
"""Stands for x.device, which does not travel."""
_NO_CHANGE = ("to", "type_as", "contiguous", "clone", "float")
_TAKE_OWN = {"add", "sub", "mul", "div", "truediv", "matmul", "bmm", "iadd", "imul", "expand", "repeat"}
_TAKE_OWN |= {"lt", "le", "gt", "ge", "eq", "ne", "logical_not", "invert", "and_", "or_", "logical_and", "logical_or"}
_BY_NUMBER = {"relu", "tanh", "sigmoid", "softplus", "exp", "log", "cos", "neg", "abs"}
"""What makes a number of each number, also of a module's own tensor: gates, rates, frequencies."""
_FLOATS, _WHOLE = (torch.float32, torch.float), (torch.int64, torch.int32)


class Unlowered:
    """No value of a record yet."""

    def called(self, builder: Builder, name: str, lower: Lower, *arguments: Any, **options: Any) -> Any:  # noqa: ARG002 - the common signature
        """What a function or method gives that takes this first.

        Args:
            builder: of the graph.
            name: of the function or method.
            lower: what it is lowered by, for values of a record.
            arguments: its others.
            options: by keyword.

        Raises:
            Refused: there is no word for it.
        """
        raise self.refused(name)

    def refused(self, name: str) -> Refused:
        """Why it cannot be used so.

        Args:
            name: of the function, method or layer.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Last(Unlowered):
    """What a recurrent layer returns beside its outputs: the last state of each layer and direction.

    Attributes:
        path: of the recurrent layer.
        states: one for each layer and direction; none of an LSTM's cell, which no word gives.
    """

    path: str
    states: tuple[Traced, ...]

    def called(self, builder: Builder, name: str, lower: Lower, *arguments: Any, **options: Any) -> Any:  # noqa: ARG002 - the common signature
        """Takes one of them: h[-1], h.squeeze(0) where there is only one."""
        (index,) = (*arguments, *options.values()) if len(arguments) + len(options) == 1 else (None,)
        if name == "getitem" and type(index) is int and -len(self.states) <= index < len(self.states):
            return self.states[index]
        if name == "squeeze" and type(index) is int and index in (0, -3) and len(self.states) == 1:
            return self.states[0]
        raise self.refused(name)

    def refused(self, name: str) -> Refused:
        """What h is, and what to write."""
        layer = f"the recurrent layer {self.path!r}" if self.path else "the recurrent layer"
        if not self.states:
            return Refused(
                f"the cell state c of {layer} has no word ({name} uses it)",
                "use its last state h[-1] or its outputs, and leave the cell state out",
            )
        return Refused(
            f"{name} of the last states h of {layer}: h is (layers, batch, features), here ({len(self.states)}, b, "
            f"{(self.states[0].shape or ('?',))[-1]}), and only one layer's h[i] is a value of a record",
            "write h[-1]" + (", or torch.cat([h[-2], h[-1]], 1) of both directions" if len(self.states) > 1 else ""),
        )


@dataclass(frozen=True)
class Held(Unlowered):
    """A parameter or buffer that forward reads itself.

    Attributes:
        path: its name in the module.
        shape: as forward sees it; a leading 1 stands for the batch.
        trained: whether it is a parameter.
        stored: its shape in the module.
        part: the value, where only a part of it is meant.
        truth: whether it holds truths, which are 1.0 and 0.0 in a graph.
    """

    path: str
    shape: Shape
    trained: bool
    stored: Shape
    part: Traced | None = None
    truth: bool = False

    def beside(self, builder: Builder, rank: int) -> Traced:
        """As a value of one record of so many sides, as broadcasting against a batch of them would take it.

        Raises:
            Refused: it has a side for the batch.
        """
        shape = self.shape
        if not 1 <= len(shape) <= rank + 1 or (len(shape) == rank + 1 and shape[0] != 1):
            raise Refused(
                f"the tensor {self.path!r} of shape {shape} does not go with records of {rank} sides",
                "give it the shape of one record, or a leading 1",
            )
        own = shape[1:] if len(shape) == rank + 1 else (1,) * (rank - len(shape)) + shape
        return builder.reshape(self._value(builder), own)

    def _value(self, builder: Builder) -> Traced:
        name = "parameter" if self.trained else "buffer"
        return self.part or builder.emit(name, path=self.path, shape=self.stored)

    def rows(self, builder: Builder, begin: int, end: int) -> Held:
        """Consecutive rows of a table."""
        value = self._value(builder)
        if (begin, end) != (0, self.shape[0]):
            value = builder.emit("slice", value, axis=0, begin=begin, end=end)
        return replace(self, shape=(end - begin, *self.shape[1:]), part=value)

    def called(self, builder: Builder, name: str, lower: Lower, *arguments: Any, **options: Any) -> Any:
        """Reshapes it, cuts it, or takes it to arithmetic."""
        if name in _TAKE_OWN:
            return lower(builder, self, *arguments, **options)
        if name in _BY_NUMBER:
            return replace(self, part=lower(builder, self.beside(builder, len(self.shape)), *arguments, **options))
        if name in _NO_CHANGE:
            _refuse_types((*arguments, *options.values()), _FLOATS)
            return self
        if name == "reshape":
            return replace(self, shape=tuple(_without_batch(arguments[0])))
        if (name, arguments) == ("getattr", ("device",)):
            return PLACE
        if name == "getitem":
            return self._indexed(builder, arguments[0])
        if name == "permute":
            return self._turned(builder, *arguments)
        raise self.refused(name)

    def _turned(self, builder: Builder, *dims: Any) -> Held:
        """With its sides in another order."""
        order = [d % len(self.shape) for d in (tuple(dims[0]) if len(dims) == 1 else dims)]
        turned = builder.emit("permute", builder.reshape(self._value(builder), self.shape), order=order)
        return replace(self, shape=turned.shape, part=turned)

    def _looked_up(self, builder: Builder, whole: tuple[Any, ...]) -> Held:
        """table[index], table[:, index] of whole numbers that the module holds."""
        *before, index = whole
        if len(self.shape) != 2 or before not in ([], [slice(None)]) or not index.complete:
            raise self.refused("looking up places")
        table = self if not before else self._turned(builder, 1, 0)
        if int(index.numbers.min()) < 0 or int(index.numbers.max()) >= table.shape[0]:
            raise Refused(f"{index.path!r} holds places outside of {self.path!r}", "count from 0")
        stored = builder.emit("buffer", path=index.path, shape=index.stored)
        places = builder.reshape(stored, (index.numbers.numel(),))
        rows = builder.emit("look_up", table._value(builder), places)
        looked_up = replace(table, shape=rows.shape, part=rows)
        if before:
            looked_up = looked_up._turned(builder, 1, 0)
            return replace(looked_up, shape=(self.shape[0], *index.numbers.shape))
        return replace(looked_up, shape=(*index.numbers.shape, self.shape[1]))

    def _indexed(self, builder: Builder, index: Any) -> Held:
        whole = index if isinstance(index, tuple) else (index,)
        if isinstance(whole[-1], Whole):
            return self._looked_up(builder, whole)
        if any(entry not in (None, Ellipsis) and type(entry) not in (int, slice) for entry in whole):
            raise self.refused("indexing by anything but constants")
        seen = tuple(torch.empty(self.shape, device="meta")[index].shape)
        if math.prod(seen) == math.prod(self.shape):  # sides of 1 come and go
            return replace(self, shape=seen)
        lead = self.shape[0] == 1 and whole[0] == slice(None)
        if None in whole or len(self.shape) - lead > MAX_SIDES:
            raise self.refused("indexing")
        value = builder.reshape(self._value(builder), self.shape[1:] if lead else self.shape)
        cut = indexed(builder, value, whole if lead else (slice(None), *whole))
        return replace(self, shape=(1,) * lead + cut.shape, part=cut)

    def refused(self, name: str) -> Refused:
        """Which tensor, and what to write."""
        return Refused(
            f"{name} of the module's own tensor {self.path!r} is not in the vocabulary",
            "hold it as it is to be used, in +, -, *, /, @ and torch.cat with a record's value",
        )


@dataclass(frozen=True)
class Whole(Unlowered):
    """A buffer of whole numbers: positions, which an embedding's rows stand for.

    Attributes:
        path: its name in the module.
        numbers: as forward sees them.
        stored: their shape in the module.
        complete: whether all of them are there, in their order.
    """

    path: str
    numbers: Tensor
    stored: Shape = ()
    complete: bool = True

    def called(self, builder: Builder, name: str, lower: Lower, *arguments: Any, **options: Any) -> Any:  # noqa: ARG002 - the common signature
        """Computes with the numbers, which are no one's data."""
        if name in ("expand", "repeat"):
            sizes = arguments[0] if isinstance(arguments[0], (tuple, list)) else arguments
            unchanged = {1} if name == "repeat" else {-1, *self.numbers.shape[1:]}
            if self.numbers.shape[:1] == (1,) and sizes[0] == BATCH and set(sizes[1:]) <= unchanged:
                return self
        elif name in _NO_CHANGE[:-1] or name in ("long", "int"):
            _refuse_types((*arguments, *options.values()), _WHOLE)
            return self
        elif name == "reshape":
            return replace(self, numbers=self.numbers.reshape(_without_batch(arguments[0])))
        elif (name, arguments) == ("getattr", ("device",)):
            return PLACE
        elif name == "getitem":
            return replace(self, numbers=self.numbers[arguments[0]], complete=False)
        elif name in ("add", "sub") and type(arguments[0]) is int:
            return replace(self, numbers=getattr(torch, name)(self.numbers, arguments[0]), complete=False)
        raise self.refused(name)

    def rows_of(self, builder: Builder, path: str, table: Shape) -> Held:
        """An embedding of the numbers: rows of its table, without a record.

        Raises:
            Refused: they are not consecutive rows of it.
        """
        numbers = self.numbers.flatten().tolist()
        lead = self.numbers.dim() == 2 and self.numbers.shape[0] == 1
        begin, end = (numbers[0], numbers[0] + len(numbers)) if numbers else (0, 0)
        consecutive = numbers == list(range(begin, end)) and 0 <= begin < end <= table[0]
        if not consecutive or (self.numbers.dim() != 1 and not lead):
            raise Refused(
                f"an embedding of the buffer {self.path!r}, which does not hold consecutive rows (n, n + 1, ...)",
                "hold what it gives as an nn.Parameter of shape (positions, features), and add it",
            )
        held = Held(path, table, trained=True, stored=table).rows(builder, begin, end)
        return replace(held, shape=(1, *held.shape)) if lead else held

    def refused(self, name: str) -> Refused:
        """Which tensor, and what to write."""
        return Refused(
            f"{name} of the buffer {self.path!r}, which holds {self.numbers.dtype}; whole numbers can only be "
            "rows of an nn.Embedding",
            "register the buffer as float32 to compute with it",
        )


@dataclass(frozen=True)
class Column(Unlowered):
    """One number of a record (1,), whose only side forward has dropped: a code that an embedding looks up."""

    number: Traced

    def called(self, builder: Builder, name: str, lower: Lower, *arguments: Any, **options: Any) -> Any:
        """Looks it up, or gives it its side back."""
        if name == "embedding":
            row = lower(builder, self.number, *arguments, **options)
            return builder.reshape(row, row.shape[1:])
        if name in (*_NO_CHANGE, "long", "int"):
            _refuse_types((*arguments, *options.values()), (*_FLOATS, *_WHOLE))
            return self
        if name in ("getitem", "reshape"):
            seen = lower(builder, replace(self.number, shape=()), *arguments, **options)
            if seen.shape:
                return seen
        raise self.refused(name)

    def refused(self, name: str) -> Refused:
        """What to write."""
        return Refused(f"{name} of one column x[:, i] is not in the vocabulary", "keep its side: x[:, i : i + 1]")


def counted(builder: Builder, *bounds: Any, device: Any = None, dtype: Any = None) -> Whole:  # noqa: ARG001 - torch's
    """torch.arange of sizes: positions."""
    return Whole("torch.arange", torch.arange(*bounds), complete=False)


def place(builder: Builder, x: Traced, axis: int, number: int) -> Any:
    """One place of a side, which is dropped."""
    one = builder.emit("slice", x, axis=axis, begin=number, end=number + 1)
    left = (*x.shape[:axis], *x.shape[axis + 1 :])
    return builder.reshape(one, left) if left else Column(one)


def indexed(builder: Builder, x: Traced, index: tuple[Any, ...]) -> Any:
    """x[:, a:b, n]: the batch is left alone."""
    if Ellipsis in index:
        missing = len(x.shape) + 2 - len(index) + index.count(None)
        at = index.index(Ellipsis)
        index = (*index[:at], *(slice(None),) * missing, *index[at + 1 :])
    if None in index[1:]:  # new sides of 1
        x = indexed(builder, x, tuple(entry for entry in index if entry is not None))
        if isinstance(x, Column):
            return x.number
        left = [entry for entry in index if type(entry) is not int]
        sides_of_x = iter(x.shape)
        return builder.reshape(x, (*(1 if entry is None else next(sides_of_x) for entry in left[1:]), *sides_of_x))
    batch, *sides = index
    if batch != slice(None) or len(sides) > len(x.shape):
        raise Refused("indexing must leave the batch alone", "begin with x[:, ...]")
    axis = 0
    for one in sides:
        length = x.shape[axis]
        if type(one) is int and -length <= one < length:
            x = place(builder, x, axis, one % length)
            continue
        if not isinstance(one, slice) or one.step not in (None, 1):
            raise Refused("indexing by anything but constants and slices without a step", "use x[:, a:b]")
        begin, end, _ = one.indices(length)
        if (begin, end) != (0, length):
            x = builder.emit("slice", x, axis=axis, begin=begin, end=end)
        axis += 1
    return x


def moved(builder: Builder, x: Traced, *arguments: Any, **options: Any) -> Traced:  # noqa: ARG001 - the same
    """x.to(device), x.to(y), x.type_as(y): nothing changes where all is float32; whole numbers stay in a record."""
    _refuse_types((*arguments, *options.values()), (*_FLOATS, *_WHOLE))
    return x


def _refuse_types(arguments: tuple[Any, ...], allowed: tuple[torch.dtype, ...]) -> None:
    for given in arguments:
        if isinstance(given, torch.dtype) and given not in allowed:
            raise Refused(f"a change to {given}; only float32 travels", "leave the change of type out")


def _without_batch(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    if any(isinstance(side, Batch) for side in shape):
        raise Refused("a tensor of one's own reshaped by the batch size", "use expand(b, -1, -1), or let + broadcast")
    return shape
