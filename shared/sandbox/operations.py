"""What an operation of the closed vocabulary is, and the shape arithmetic that its entries share.

Everything here is exact integer arithmetic on declared sizes: a hostile graph is measured before a single tensor
exists. Shapes are those of ONE record, without a batch dimension: (features,), (channels, length) or
(channels, height, width).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.attributes import Attributes, Rule

Shape = tuple[int, ...]
ShapeRule = Callable[[Sequence[Shape], Attributes], Shape]
Apply = Callable[[Sequence[Tensor], Attributes, Mapping[str, Tensor]], Tensor]
Tensors = Callable[[Attributes], dict[str, Shape]]


@dataclass(frozen=True)
class Operation:
    """One word of the vocabulary.

    Attributes:
        name: how the word is spelled in a graph; its meaning must never change (digests are approved by operators).
            A changed meaning is a new word.
        about: one line for docs/ml-team/extractors.md.
        shape: (input shapes, attributes) -> output shape; raises InvalidValue where they do not fit.
        apply: (inputs, attributes, tensors by name) -> output, for one record, in torch functions that vmap maps.
        attributes: the rule of each attribute; all are required, others are refused.
        parameters: attributes -> shape of each trainable parameter.
        buffers: attributes -> shape of each tensor that is stored but never trained.
        work: (input shapes, output shape, attributes) -> floating point operations of one record.
        inner: (input shapes, output shape, attributes) -> numbers of one record that it makes besides its output.
        workspace: (output shape, attributes) -> scratch numbers that a backend may need for one record for a while.
        steps: (output shape, attributes) -> parts that are computed one after the other, whatever their size.
        inputs: fewest and most inputs.
        differentiable: whether a gradient reaches the inputs; a comparison has none.
    """

    name: str
    about: str
    shape: ShapeRule
    apply: Apply
    attributes: Mapping[str, Rule] = field(default_factory=dict)
    parameters: Tensors = field(default=lambda _: {})
    buffers: Tensors = field(default=lambda _: {})
    work: Callable[[Sequence[Shape], Shape, Attributes], int] = field(default=lambda _i, out, _a: math.prod(out))
    inner: Callable[[Sequence[Shape], Shape, Attributes], int] = field(default=lambda _i, _o, _a: 0)
    workspace: Callable[[Shape, Attributes], int] = field(default=lambda _o, _a: 0)
    steps: Callable[[Shape, Attributes], int] = field(default=lambda _o, _a: 1)
    inputs: tuple[int, int] = (1, 1)
    differentiable: bool = True

    def check_attributes(self, attributes: Attributes) -> None:
        """Raises InvalidValue unless exactly this operation's attributes are there, each of them allowed."""
        if set(attributes) != set(self.attributes):
            missing = sorted(set(self.attributes) - set(attributes))
            surplus = len(set(attributes) - set(self.attributes))  # counted only: the names come from outside
            raise InvalidValue(
                f"{self.name} takes the attributes {sorted(self.attributes)}; missing {missing}, unknown: {surplus}"
            )
        for key, rule in self.attributes.items():
            try:
                rule.check(attributes[key])
            except InvalidValue as error:
                raise InvalidValue(f"{self.name}: attribute {key!r} {error}") from error

    def tensors(self, attributes: Attributes) -> dict[str, Shape]:
        """Shapes of parameters and buffers together."""
        return {**self.parameters(attributes), **self.buffers(attributes)}


def need_rank(shape: Shape, rank: int, what: str) -> None:
    """Raises InvalidValue unless one record has `rank` dimensions."""
    if len(shape) != rank:
        raise InvalidValue(f"{what} needs {rank} dimensions per record, got shape {shape}")


def same(shapes: Sequence[Shape], attributes: Attributes) -> Shape:  # noqa: ARG001 - the common signature
    """The shape rule of an elementwise operation."""
    return shapes[0]


def broadcast(inputs: Sequence[Shape], _at: Attributes) -> Shape:
    """The shape rule of arithmetic of two values: sides are alike, or 1."""
    first, second = inputs
    if len(first) != len(second) or any(a != b and 1 not in (a, b) for a, b in zip(first, second, strict=True)):
        raise InvalidValue(f"the two values must have one shape, or sides of 1, got {first} and {second}")
    return tuple(max(a, b) for a, b in zip(first, second, strict=True))


def declared(key: str, axis: int) -> ShapeRule:
    """The shape rule of an operation that keeps a shape whose side `axis` is the attribute `key`."""

    def shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
        if inputs[0][axis] != at[key]:
            raise InvalidValue(f"{key} is declared for {at[key]} but receives {inputs[0][axis]}")
        return inputs[0]

    return shape


def convolved(size: int, *, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Length of a convolution's output along one dimension."""
    span = dilation * (kernel - 1) + 1
    if size + 2 * padding < span:
        raise InvalidValue(f"window of {span} is larger than the padded input of {size + 2 * padding}")
    return (size + 2 * padding - span) // stride + 1


def pooled(size: int, *, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Length of a pool's output along one dimension, torch's rule."""
    span = dilation * (kernel - 1) + 1
    if 2 * padding > span:
        raise InvalidValue(f"padding {padding} is more than half of the window {span}")
    floor = convolved(size, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    if not ceil_mode:
        return floor
    length = -(-(size + 2 * padding - span) // stride) + 1
    # The last window must start inside the input or its left padding.
    return length - 1 if (length - 1) * stride >= size + padding else length


def spatial(shape: Shape, at: Attributes, rule: Callable[..., int], **extra: object) -> Shape:
    """Applies a per-dimension rule to the sides of (channels, *sides), with the node's window attributes."""
    sides = shape[1:]
    columns = (at["kernel_size"], at["stride"], at["padding"], at.get("dilation", (1,) * len(sides)))
    return tuple(
        rule(side, kernel=k, stride=s, padding=p, dilation=d, **extra)
        for side, k, s, p, d in zip(sides, *columns, strict=True)
    )
