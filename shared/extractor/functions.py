"""Lowering of activations, pools and arithmetic in their functional forms, with torch's own argument names."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from shared.extractor.lowering import UNKNOWN, Builder, Refused, Traced, tuple_of

Function = Callable[..., Any]


def plain(name: str) -> Function:
    """An activation without attributes."""

    def lower(builder: Builder, input: Traced, inplace: bool = False) -> Traced:  # noqa: A002, ARG001
        return builder.emit(name, input)

    return lower


def relu6(builder: Builder, input: Traced, inplace: bool = False) -> Traced:  # noqa: A002, ARG001
    """min(max(x, 0), 6)."""
    return builder.emit("hardtanh", input, low=0.0, high=6.0)


def leaky_relu(builder: Builder, input: Traced, negative_slope: float = 0.01, inplace: bool = False) -> Traced:  # noqa: A002, ARG001
    """F.leaky_relu."""
    return builder.emit("leaky_relu", input, slope=float(negative_slope))


def elu(builder: Builder, input: Traced, alpha: float = 1.0, inplace: bool = False) -> Traced:  # noqa: A002, ARG001
    """F.elu."""
    return builder.emit("elu", input, alpha=float(alpha))


def gelu(builder: Builder, input: Traced, approximate: str = "none") -> Traced:  # noqa: A002
    """F.gelu, exact or by tanh."""
    return builder.emit("gelu" if approximate == "none" else "gelu_tanh", input)


def softplus(builder: Builder, input: Traced, beta: float = 1.0, threshold: float = 20.0) -> Traced:  # noqa: A002
    """F.softplus."""
    return builder.emit("softplus", input, beta=float(beta), threshold=float(threshold))


def hardtanh(
    builder: Builder,
    input: Traced,  # noqa: A002
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,  # noqa: ARG001
) -> Traced:
    """F.hardtanh."""
    return builder.emit("hardtanh", input, low=float(min_val), high=float(max_val))


def clamp(builder: Builder, input: Traced, min: float | None = None, max: float | None = None) -> Traced:  # noqa: A002
    """torch.clamp with constant bounds."""
    if min == 0 and max is None:
        return builder.emit("relu", input)
    if min is None or max is None:
        raise Refused("clamp needs both bounds", "use nn.Hardtanh(min_val, max_val), or nn.ReLU")
    return hardtanh(builder, input, min, max)


def dropout(builder: Builder, input: Traced, p: float = 0.5, training: bool = True, inplace: bool = False) -> Traced:  # noqa: A002, ARG001
    """Dropout is the identity here: a private record is evaluated once, without randomness of its own."""
    return input


def max_pool(dimensions: int) -> Function:
    """F.max_pool1d / F.max_pool2d."""

    def lower(
        builder: Builder,
        input: Traced,  # noqa: A002
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Traced:
        _refuse_indices(return_indices)
        kernel = tuple_of(kernel_size, dimensions, "kernel_size")
        return builder.emit(
            f"max_pool{dimensions}d",
            input,
            kernel=kernel,
            stride=kernel if stride in (None, []) else tuple_of(stride, dimensions, "stride"),
            padding=tuple_of(padding, dimensions, "padding"),
            dilation=tuple_of(dilation, dimensions, "dilation"),
            ceil_mode=bool(ceil_mode),
        )

    return lower


def avg_pool(dimensions: int) -> Function:
    """F.avg_pool1d / F.avg_pool2d."""

    def lower(
        builder: Builder,
        input: Traced,  # noqa: A002
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Traced:
        if divisor_override is not None:
            raise Refused("divisor_override is not in the vocabulary", "leave it out")
        kernel = tuple_of(kernel_size, dimensions, "kernel_size")
        return builder.emit(
            f"avg_pool{dimensions}d",
            input,
            kernel=kernel,
            stride=kernel if stride in (None, []) else tuple_of(stride, dimensions, "stride"),
            padding=tuple_of(padding, dimensions, "padding"),
            ceil_mode=bool(ceil_mode),
            count_include_pad=bool(count_include_pad),
        )

    return lower


def adaptive_pool(dimensions: int, kind: str) -> Function:
    """F.adaptive_avg_pool*d and F.adaptive_max_pool*d; None keeps a side."""

    def lower(builder: Builder, input: Traced, output_size: Any, return_indices: bool = False) -> Traced:  # noqa: A002
        _refuse_indices(return_indices)
        if input.shape is None:
            return UNKNOWN
        entries = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * dimensions
        sides = input.shape[1:]
        if len(sides) != dimensions or len(entries) != dimensions:
            raise Refused(f"pooling over {dimensions} sides does not fit records of {input.shape}", "check the shapes")
        filled = tuple(side if entry is None else entry for entry, side in zip(entries, sides, strict=True))
        if filled == sides:
            return input
        return builder.emit(f"adaptive_{kind}_pool{dimensions}d", input, output=tuple_of(filled, dimensions, "output"))

    return lower


def _refuse_indices(return_indices: bool) -> None:
    if return_indices:
        raise Refused("return_indices gives a second output", "use return_indices=False")


def keep(builder: Builder, input: Traced, *_: Any, **__: Any) -> Traced:  # noqa: A002, ARG001
    """contiguous(), float(), clone(): nothing to do for float32 records."""
    return input


def binary(name: str) -> Function:
    """Arithmetic of two tensors, a tensor and a constant, or two sizes."""

    def lower(builder: Builder, input: Any, other: Any, alpha: Any = 1, inplace: bool = False) -> Any:  # noqa: A002, ARG001
        if alpha != 1:
            raise Refused("alpha is not in the vocabulary", "multiply first")
        if isinstance(input, Traced) and isinstance(other, Traced):
            return _of_tensors(builder, name, input, other)
        if isinstance(input, Traced) and type(other) in (int, float):
            return _with_constant(builder, name, input, float(other))
        if isinstance(other, Traced) and type(input) in (int, float):
            if name in ("add", "mul"):
                return _with_constant(builder, name, other, float(input))
            if name == "sub":
                return builder.emit("scale_shift", other, gain=-1.0, shift=float(input))
        if type(input) is int and type(other) is int and name in ("add", "sub", "mul", "floordiv"):
            return getattr(operator, name)(input, other)  # sizes in shape arithmetic; name is one of four
        raise Refused(f"{name} of these operands is not in the vocabulary", "use +, - and * of tensors and constants")

    return lower


def _of_tensors(builder: Builder, name: str, a: Traced, b: Traced) -> Traced:
    if name == "add":
        return builder.emit("add", a, b)
    if name == "mul":
        return builder.emit("multiply", a, b)
    if name == "sub":
        return builder.emit("add", a, builder.emit("scale_shift", b, gain=-1.0, shift=0.0))
    raise Refused("division of two tensors is not in the vocabulary", "use +, - and * of tensors")


def _with_constant(builder: Builder, name: str, x: Traced, constant: float) -> Traced:
    if name == "truediv" and constant != 0:
        return builder.emit("scale_shift", x, gain=1.0 / constant, shift=0.0)
    if name in ("add", "sub"):
        return builder.emit("scale_shift", x, gain=1.0, shift=constant if name == "add" else -constant)
    if name == "mul":
        return builder.emit("scale_shift", x, gain=constant, shift=0.0)
    raise Refused(f"{name} by {constant} is not in the vocabulary", "use +, -, * and / by constants other than zero")


def negative(builder: Builder, input: Traced) -> Traced:  # noqa: A002
    """-x."""
    return builder.emit("scale_shift", input, gain=-1.0, shift=0.0)
