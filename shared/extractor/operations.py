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

from shared.errors import InvalidValue
from shared.extractor.attributes import Attributes, Check, as_tuple

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operation:
    """One word of the vocabulary.

    Attributes:
        name: how the word is spelled in a graph; its meaning must never change (digests are approved by operators).
            A changed meaning is a new word.
        about: one line for docs/extractors.md.
        attributes: the check of each attribute; all are required, others are refused.
        shape: (input shapes, attributes) -> output shape; raises InvalidValue where they do not fit.
        apply: (inputs, attributes, tensors by name) -> output, for one record, in torch functions that vmap maps.
        parameters: attributes -> shape of each trainable parameter.
        buffers: attributes -> shape of each tensor that is stored but never trained.
        work: (input shapes, output shape, attributes) -> floating point operations of one record.
        workspace: (output shape, attributes) -> scratch numbers that a backend may need for one record.
        inputs: fewest and most inputs.
    """

    name: str
    about: str
    attributes: Mapping[str, Check]
    shape: Callable[[Sequence[Shape], Attributes], Shape]
    apply: Callable[[Sequence[Tensor], Attributes, Mapping[str, Tensor]], Tensor]
    parameters: Callable[[Attributes], dict[str, Shape]] = field(default=lambda _: {})
    buffers: Callable[[Attributes], dict[str, Shape]] = field(default=lambda _: {})
    work: Callable[[Sequence[Shape], Shape, Attributes], int] = field(default=lambda _i, out, _a: math.prod(out))
    workspace: Callable[[Shape, Attributes], int] = field(default=lambda _o, _a: 0)
    inputs: tuple[int, int] = (1, 1)

    def check_attributes(self, attributes: Attributes) -> None:
        """Raises InvalidValue unless exactly this operation's attributes are there, each of them allowed."""
        if set(attributes) != set(self.attributes):
            missing = sorted(set(self.attributes) - set(attributes))
            surplus = len(set(attributes) - set(self.attributes))  # counted only: the names come from outside
            raise InvalidValue(
                f"{self.name} takes the attributes {sorted(self.attributes)}; missing {missing}, unknown: {surplus}"
            )
        for key, check in self.attributes.items():
            try:
                check(attributes[key])
            except InvalidValue as error:
                raise InvalidValue(f"{self.name}: attribute {key!r} {error}") from error

    def tensors(self, attributes: Attributes) -> dict[str, Shape]:
        """Shapes of parameters and buffers together."""
        return {**self.parameters(attributes), **self.buffers(attributes)}


def need_rank(shape: Shape, rank: int, what: str) -> None:
    """Raises InvalidValue unless one record has `rank` dimensions."""
    if len(shape) != rank:
        raise InvalidValue(f"{what} needs {rank} dimensions per record, got shape {shape}")


def need_size(actual: int, declared: int, what: str) -> None:
    """Raises InvalidValue unless a declared size is the one that arrives."""
    if actual != declared:
        raise InvalidValue(f"{what} is declared for {declared} but receives {actual}")


def same(shapes: Sequence[Shape], attributes: Attributes) -> Shape:  # noqa: ARG001 - the common signature
    """The shape rule of an elementwise operation."""
    return shapes[0]


def convolved(size: int, *, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Length of a convolution's output along one dimension."""
    reach = dilation * (kernel - 1) + 1
    if size + 2 * padding < reach:
        raise InvalidValue(f"window of {reach} is larger than the padded input of {size + 2 * padding}")
    return (size + 2 * padding - reach) // stride + 1


def pooled(size: int, *, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Length of a pool's output along one dimension, torch's rule."""
    if 2 * padding > dilation * (kernel - 1) + 1:
        raise InvalidValue(f"padding {padding} is more than half of the window {dilation * (kernel - 1) + 1}")
    floor = convolved(size, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    if not ceil_mode:
        return floor
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    length = -(-span // stride) + 1
    # The last window must start inside the input or its left padding.
    return length - 1 if (length - 1) * stride >= size + padding else length


def spatial(shape: Shape, attributes: Attributes, rule: Callable[..., int], **extra: object) -> Shape:
    """Applies a per-dimension rule to the sides of (channels, *sides), with the node's window attributes."""
    columns = [as_tuple(attributes[key]) for key in ("kernel", "stride", "padding")]
    dilations = as_tuple(attributes["dilation"]) if "dilation" in attributes else (1,) * (len(shape) - 1)
    return tuple(
        rule(side, kernel=k, stride=s, padding=p, dilation=d, **extra)
        for side, k, s, p, d in zip(shape[1:], *columns, dilations, strict=True)
    )
