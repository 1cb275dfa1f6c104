"""The closed vocabulary: every operation that a graph from outside may name.

A name is looked up in `VOCABULARY`, a fixed table; nothing from the wire ever reaches `getattr`, an import or a class
loader. The operations without weights stand here, those with weights in `layers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from shared.errors import InvalidValue
from shared.extractor.attributes import (
    MAX_CONSTANT,
    MAX_EXTENT,
    Attributes,
    Check,
    as_float,
    as_tuple,
    boolean,
    integers,
    real,
    window,
)
from shared.extractor.layers import LAYERS
from shared.extractor.operations import Operation, Shape, need_rank, pooled, same, spatial

MAX_CONCATENATED = 64
"""Most inputs of one concatenation; DenseNet-201's widest block has 48."""


def _max_pool(dimensions: int) -> Operation:
    def shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
        need_rank(inputs[0], dimensions + 1, f"max_pool{dimensions}d")
        return (inputs[0][0], *spatial(inputs[0], at, pooled, ceil_mode=at["ceil_mode"]))

    def apply(x: Sequence[Tensor], at: Attributes, _w: Mapping[str, Tensor]) -> Tensor:
        pool = functional.max_pool1d if dimensions == 1 else functional.max_pool2d
        return pool(
            x[0],
            as_tuple(at["kernel"]),
            as_tuple(at["stride"]),
            as_tuple(at["padding"]),
            as_tuple(at["dilation"]),
            ceil_mode=bool(at["ceil_mode"]),
        )

    return Operation(
        name=f"max_pool{dimensions}d",
        about=f"nn.MaxPool{dimensions}d, F.max_pool{dimensions}d",
        attributes={
            "kernel": window(dimensions),
            "stride": window(dimensions),
            "padding": window(dimensions, low=0),
            "dilation": window(dimensions),
            "ceil_mode": boolean,
        },
        shape=shape,
        apply=apply,
        work=_window_work,
        workspace=lambda out, _: 2 * math.prod(out),  # 64-bit indices
    )


def _window_work(_inputs: Sequence[Shape], out: Shape, at: Attributes) -> int:
    return math.prod(out) * math.prod(as_tuple(at["kernel"]))


def _avg_pool(dimensions: int) -> Operation:
    def shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
        need_rank(inputs[0], dimensions + 1, f"avg_pool{dimensions}d")
        return (inputs[0][0], *spatial(inputs[0], at, pooled, ceil_mode=at["ceil_mode"]))

    def apply(x: Sequence[Tensor], at: Attributes, _w: Mapping[str, Tensor]) -> Tensor:
        pool = functional.avg_pool1d if dimensions == 1 else functional.avg_pool2d
        return pool(
            x[0],
            as_tuple(at["kernel"]),
            as_tuple(at["stride"]),
            as_tuple(at["padding"]),
            ceil_mode=bool(at["ceil_mode"]),
            count_include_pad=bool(at["count_include_pad"]),
        )

    return Operation(
        name=f"avg_pool{dimensions}d",
        about=f"nn.AvgPool{dimensions}d, F.avg_pool{dimensions}d",
        attributes={
            "kernel": window(dimensions),
            "stride": window(dimensions),
            "padding": window(dimensions, low=0),
            "ceil_mode": boolean,
            "count_include_pad": boolean,
        },
        shape=shape,
        apply=apply,
        work=_window_work,
    )


def _adaptive_pool(dimensions: int, kind: str) -> Operation:
    functions: dict[tuple[int, str], Callable[..., Tensor]] = {
        (1, "avg"): functional.adaptive_avg_pool1d,
        (2, "avg"): functional.adaptive_avg_pool2d,
        (1, "max"): functional.adaptive_max_pool1d,
        (2, "max"): functional.adaptive_max_pool2d,
    }
    function = functions[dimensions, kind]
    name = f"adaptive_{kind}_pool{dimensions}d"

    def shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
        need_rank(inputs[0], dimensions + 1, name)
        return (inputs[0][0], *as_tuple(at["output"]))

    def work(inputs: Sequence[Shape], out: Shape, _at: Attributes) -> int:
        # Windows overlap by at most one line at either side.
        return math.prod(out) * math.prod(side // o + 2 for side, o in zip(inputs[0][1:], out[1:], strict=True))

    return Operation(
        name=name,
        about=f"nn.Adaptive{kind.title()}Pool{dimensions}d" + (", mean over the sides" if kind == "avg" else ""),
        attributes={"output": integers(1, MAX_EXTENT, length=dimensions)},
        shape=shape,
        apply=lambda x, at, _w: function(x[0], list(as_tuple(at["output"]))),
        work=work,
        workspace=lambda out, _: 2 * math.prod(out),
    )


def _reshape_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    wanted = as_tuple(at["shape"])
    if math.prod(wanted) != math.prod(inputs[0]):
        raise InvalidValue(f"cannot reshape {inputs[0]} to {wanted}: the number of values differs")
    return wanted


def _equal_shapes(inputs: Sequence[Shape], _at: Attributes) -> Shape:
    if inputs[0] != inputs[1]:
        raise InvalidValue(f"the two terms must have one shape, got {inputs[0]} and {inputs[1]}")
    return inputs[0]


def _broadcast(inputs: Sequence[Shape], _at: Attributes) -> Shape:
    first, second = inputs
    if len(first) != len(second) or any(a != b and 1 not in (a, b) for a, b in zip(first, second, strict=True)):
        raise InvalidValue(f"the two factors must have one shape, or sides of 1, got {first} and {second}")
    return tuple(max(a, b) for a, b in zip(first, second, strict=True))


def _concatenated(inputs: Sequence[Shape], _at: Attributes) -> Shape:
    if any(shape[1:] != inputs[0][1:] for shape in inputs):
        raise InvalidValue(f"only the first dimension of a record may differ, got {list(inputs)}")
    return (sum(shape[0] for shape in inputs), *inputs[0][1:])


def _activation(name: str, about: str, function: Callable[..., Tensor], **attributes: Check) -> Operation:
    keys = tuple(attributes)

    def apply(x: Sequence[Tensor], at: Attributes, _w: Mapping[str, Tensor]) -> Tensor:
        return function(x[0], *(as_float(at[key]) for key in keys))

    return Operation(
        name=name,
        about=about,
        attributes=attributes,
        shape=same,
        apply=apply,
        work=lambda _i, out, _a: 8 * math.prod(out),
    )


_SLOPE = real(0.0, 1.0)
_CONSTANT = real(-MAX_CONSTANT, MAX_CONSTANT)

_ACTIVATIONS = (
    _activation("relu", "nn.ReLU, F.relu, torch.relu, .relu()", functional.relu),
    _activation("leaky_relu", "nn.LeakyReLU, F.leaky_relu", functional.leaky_relu, slope=_SLOPE),
    _activation("elu", "nn.ELU, F.elu", functional.elu, alpha=real(1e-6, 100.0)),
    _activation("selu", "nn.SELU, F.selu", functional.selu),
    _activation("gelu", "nn.GELU, F.gelu", functional.gelu),
    _activation("gelu_tanh", "nn.GELU(approximate='tanh')", lambda x: functional.gelu(x, approximate="tanh")),
    _activation("silu", "nn.SiLU, F.silu", functional.silu),
    _activation("mish", "nn.Mish, F.mish", functional.mish),
    _activation("tanh", "nn.Tanh, torch.tanh, .tanh()", torch.tanh),
    _activation("sigmoid", "nn.Sigmoid, torch.sigmoid, .sigmoid()", torch.sigmoid),
    _activation(
        "softplus", "nn.Softplus, F.softplus", functional.softplus, beta=real(1e-3, 1e3), threshold=real(1.0, 1e3)
    ),
    _activation("hardtanh", "nn.Hardtanh, nn.ReLU6, F.relu6", functional.hardtanh, low=_CONSTANT, high=_CONSTANT),
    _activation("hardswish", "nn.Hardswish, F.hardswish", functional.hardswish),
    _activation("hardsigmoid", "nn.Hardsigmoid, F.hardsigmoid", functional.hardsigmoid),
)

_STRUCTURE = (
    Operation(
        name="reshape",
        about="nn.Flatten, nn.Unflatten, torch.flatten(x, 1), x.view(x.size(0), -1), x.reshape(...)",
        attributes={"shape": integers(1, 2**31 - 1, length=(1, 3))},
        shape=_reshape_shape,
        apply=lambda x, at, _w: x[0].reshape(as_tuple(at["shape"])),
        work=lambda _i, _o, _a: 0,
    ),
    Operation(
        name="add",
        about="x + y (residual connections)",
        attributes={},
        shape=_equal_shapes,
        apply=lambda x, _at, _w: x[0] + x[1],
        inputs=(2, 2),
    ),
    Operation(
        name="multiply",
        about="x * y (gates, squeeze and excitation)",
        attributes={},
        shape=_broadcast,
        apply=lambda x, _at, _w: x[0] * x[1],
        inputs=(2, 2),
    ),
    Operation(
        name="concat",
        about="torch.cat([...], dim=1)",
        attributes={},
        shape=_concatenated,
        apply=lambda x, _at, _w: torch.cat(list(x), dim=0),
        inputs=(2, MAX_CONCATENATED),
    ),
    Operation(
        name="scale_shift",
        about="arithmetic with constants: x * 2 - 1, x / 255, (x - mean) / std",
        attributes={"gain": _CONSTANT, "shift": _CONSTANT},
        shape=same,
        apply=lambda x, at, _w: x[0] * as_float(at["gain"]) + as_float(at["shift"]),
        work=lambda _i, out, _a: 2 * math.prod(out),
    ),
)

VOCABULARY: Mapping[str, Operation] = MappingProxyType(
    {
        operation.name: operation
        for operation in (
            *LAYERS,
            *(_max_pool(n) for n in (1, 2)),
            *(_avg_pool(n) for n in (1, 2)),
            *(_adaptive_pool(n, kind) for kind in ("avg", "max") for n in (1, 2)),
            *_ACTIVATIONS,
            *_STRUCTURE,
        )
    }
)
"""Every operation by its name."""
