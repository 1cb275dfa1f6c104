"""Lowering of activations, pools and arithmetic in their functional forms, with torch's own argument names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from dpswd.public_client.extractor.lowering import UNKNOWN, Builder, Refused, Traced
from dpswd.public_client.extractor.unlowered import Held

Function = Callable[..., Any]


def activation(name: str, **defaults: float) -> Function:
    """An activation of the vocabulary.

    Args:
        name: of the operation.
        defaults: its other arguments with torch's values, in torch's order; `inplace` stands behind them.
    """
    names = (*defaults, "inplace")

    def lower(builder: Builder, input: Traced, *given: Any, **options: Any) -> Traced:
        if len(given) > len(names) or options.keys() & set(names[: len(given)]):
            raise TypeError(f"{name} takes {', '.join(names)}, each once")
        arguments = defaults | dict(zip(names, given, strict=False)) | options
        arguments.pop("inplace", None)
        if unknown := arguments.keys() - defaults.keys():
            raise TypeError(f"{name} does not take {', '.join(sorted(unknown))}")
        return builder.emit(name, input, **arguments)

    return lower


def gelu(builder: Builder, input: Traced, approximate: str = "none") -> Traced:
    """F.gelu, exact or by tanh."""
    return builder.emit("gelu" if approximate == "none" else "gelu_tanh", input)


def clamp(builder: Builder, input: Traced, min: float | None = None, max: float | None = None) -> Traced:
    """torch.clamp with constant bounds."""
    if min == 0 and max is None:
        return builder.emit("relu", input)
    low, high = torch.finfo(torch.float32).min, torch.finfo(torch.float32).max
    return builder.emit("hardtanh", input, min_val=low if min is None else min, max_val=high if max is None else max)


def keep(builder: Builder, input: Traced, *_: Any, **__: Any) -> Traced:
    """What is the identity here: dropout of any kind (a record is evaluated once, not at random), float(), clone()."""
    return input


def max_pool(dimensions: int) -> Function:
    """F.max_pool1d / F.max_pool2d."""

    def lower(
        builder: Builder, input: Traced, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Traced:  # fmt: skip
        _refuse_indices(return_indices)
        options = {"kernel_size": kernel_size, "stride": kernel_size if stride in (None, []) else stride}
        return builder.emit(
            f"max_pool{dimensions}d", input, **options, padding=padding, dilation=dilation, ceil_mode=ceil_mode
        )

    return lower


def avg_pool(dimensions: int) -> Function:
    """F.avg_pool1d / F.avg_pool2d."""

    def lower(
        builder: Builder, input: Traced, kernel_size: Any, stride: Any = None, padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Traced:  # fmt: skip
        if divisor_override is not None:
            raise Refused("divisor_override is not in the vocabulary", "leave it out")
        options = {"kernel_size": kernel_size, "stride": kernel_size if stride in (None, []) else stride}
        options |= {"padding": padding, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
        return builder.emit(f"avg_pool{dimensions}d", input, **options)

    return lower


def adaptive_pool(form: str, dimensions: int) -> Function:
    """F.adaptive_avg_pool*d and F.adaptive_max_pool*d; None keeps a side."""

    def lower(builder: Builder, input: Traced, output_size: Any, return_indices: bool = False) -> Traced:
        _refuse_indices(return_indices)
        if input is UNKNOWN:
            return UNKNOWN
        entries = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * dimensions
        sides = input.shape[1:]
        if len(sides) != dimensions or len(entries) != dimensions:
            raise Refused(f"pooling over {dimensions} sides does not fit records of {input.shape}", "check the shapes")
        filled = tuple(side if entry is None else entry for entry, side in zip(entries, sides, strict=True))
        name = f"adaptive_{form}_pool{dimensions}d"
        return input if filled == sides else builder.emit(name, input, output_size=filled)

    return lower


def _refuse_indices(return_indices: bool) -> None:
    if return_indices:
        raise Refused("return_indices gives a second output", "use return_indices=False")


def binary(name: str) -> Function:
    """Arithmetic of two tensors, or a tensor and a constant."""

    def lower(builder: Builder, input: Any, other: Any, alpha: Any = 1, inplace: bool = False) -> Any:
        if alpha != 1:
            raise Refused("alpha is not in the vocabulary", "multiply first")
        own = [value for value in (input, other) if isinstance(value, Held)]
        traced = [value for value in (input, other) if isinstance(value, Traced)]
        rank = max((len(value.shape) for value in traced or own), default=0)  # of one's own, all sides
        if name == "matmul" and rank == 1 and isinstance(other, Held) and len(other.shape) == 2:  # a row times a matrix
            product = builder.emit("matmul", builder.reshape(input, (1, *input.shape)), other.beside(builder, 2))
            return builder.reshape(product, product.shape[1:])
        a, b = (value.beside(builder, rank) if isinstance(value, Held) else value for value in (input, other))
        if own and not traced:
            made = lower(builder, a, b)
            return replace(own[0], shape=made.shape, part=made)
        if isinstance(a, Traced) and isinstance(b, Traced):
            return _of_tensors(builder, name, a, b)
        if isinstance(input, Traced) and type(other) in (int, float):
            return _with_constant(builder, name, input, float(other))
        if isinstance(other, Traced) and type(input) in (int, float):
            if name in ("add", "mul"):
                return _with_constant(builder, name, other, float(input))
            if name == "sub":
                return builder.emit("scale_shift", other, gain=-1.0, shift=input)
        raise Refused(f"{name} of these operands is not in the vocabulary", "use +, - and * of tensors and constants")

    return lower


_WORDS = {"add": "add", "mul": "multiply", "matmul": "matmul", "truediv": "divide"}
"""Operations of two tensors, by the operator module's names."""


def _of_tensors(builder: Builder, name: str, a: Traced, b: Traced) -> Traced:
    if name == "sub":
        return builder.emit("add", a, negative(builder, b))
    if name in _WORDS:
        return builder.emit(_WORDS[name], a, b)
    raise Refused(f"{name} of two tensors is not in the vocabulary", "use +, -, *, / and @ of tensors")


def _with_constant(builder: Builder, name: str, x: Traced, constant: float) -> Traced:
    if name == "truediv" and constant != 0:
        return builder.emit("scale_shift", x, gain=1.0 / constant, shift=0.0)
    if name in ("add", "sub"):
        return builder.emit("scale_shift", x, gain=1.0, shift=constant if name == "add" else -constant)
    if name == "mul":
        return builder.emit("scale_shift", x, gain=constant, shift=0.0)
    raise Refused(f"{name} by {constant} is not in the vocabulary", "use +, -, * and / by constants other than zero")


def negative(builder: Builder, input: Traced) -> Traced:
    """-x."""
    return builder.emit("scale_shift", input, gain=-1.0, shift=0.0)
