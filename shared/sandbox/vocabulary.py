"""The closed vocabulary: every operation that a graph from outside may name.

A name is looked up in `VOCABULARY`, a fixed table; nothing from the wire ever reaches `getattr`, an import or a class
loader. The operations without weights stand here, those with weights in `layers.py`. Attributes have the names of
torch's own arguments, so that most operations are one function of torch, called by name; where torch's takes longer for
some numbers than for others, `steady.py` has a form that does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox import steady
from dpswd.shared.sandbox.attributes import MAX_CONSTANT, MAX_EXTENT, Attributes, Rule, flag, integers, real, window
from dpswd.shared.sandbox.layers import LAYERS
from dpswd.shared.sandbox.operations import Apply, Operation, Shape, broadcast, need_rank, pooled, same, spatial
from dpswd.shared.sandbox.sequences import SEQUENCES

MAX_CONCATENATED = 64
"""Most inputs of one concatenation; DenseNet-201's widest block has 48."""


def _plain(function: Callable[..., Tensor]) -> Apply:
    """A function of torch of the inputs, with the attributes as its other arguments."""
    return lambda x, at, _w: function(*x, **at)


def _max_pool(x: Sequence[Tensor], at: Attributes, _w: Mapping[str, Tensor]) -> Tensor:
    window = {key: at[key] for key in ("kernel_size", "stride", "padding", "dilation")}
    return steady.max_pool(x[0], **window, sizes=spatial(tuple(x[0].shape), at, pooled, ceil_mode=at["ceil_mode"]))


def _pool(apply: Apply, form: str, dimensions: int, other: str, rule: Rule) -> Operation:
    name = f"{form}_pool{dimensions}d"

    def shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
        need_rank(inputs[0], dimensions + 1, name)
        return (inputs[0][0], *spatial(inputs[0], at, pooled, ceil_mode=at["ceil_mode"]))

    def inner(_inputs: Sequence[Shape], out: Shape, at: Attributes) -> int:
        # Every place of each window of maxima: along one side while those behind it still have their whole length.
        sides = enumerate(at["kernel_size"], 1)
        places = sum(k * math.prod(at["stride"][later:]) for later, k in sides)
        return places * math.prod(out) if form == "max" else 0

    return Operation(
        name=name,
        about=f"nn.{form.title()}Pool{dimensions}d, F.{name}",
        attributes={
            "kernel_size": window(dimensions),
            "stride": window(dimensions),
            "padding": window(dimensions, low=0),
            "ceil_mode": flag,
            other: rule,
        },
        shape=shape,
        apply=apply,
        work=lambda _i, out, at: math.prod(out) * math.prod(at["kernel_size"]),
        inner=inner,
        steps=lambda _, at: sum(at["kernel_size"]) if form == "max" else 1,
    )


def _adaptive_pool(function: Callable[..., Tensor], form: str, dimensions: int) -> Operation:
    name = f"adaptive_{form}_pool{dimensions}d"

    def shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
        need_rank(inputs[0], dimensions + 1, name)
        return (inputs[0][0], *at["output_size"])

    def work(inputs: Sequence[Shape], out: Shape, _at: Attributes) -> int:
        # Windows overlap by at most one line at either side.
        return math.prod(out) * math.prod(side // o + 2 for side, o in zip(inputs[0][1:], out[1:], strict=True))

    return Operation(
        name=name,
        about=f"nn.Adaptive{form.title()}Pool{dimensions}d" + (", mean over the sides" if form == "avg" else ""),
        attributes={"output_size": integers(1, MAX_EXTENT, length=dimensions)},
        shape=shape,
        apply=_plain(function),
        work=work,
        inner=lambda _i, out, _a: 2 * math.prod(out),
    )


def _reshape_shape(inputs: Sequence[Shape], at: Attributes) -> Shape:
    target: Shape = at["shape"]
    if math.prod(target) != math.prod(inputs[0]):
        raise InvalidValue(f"cannot reshape {inputs[0]} to {target}: the number of values differs")
    return target


def _concatenated(inputs: Sequence[Shape], _at: Attributes) -> Shape:
    if any(shape[1:] != inputs[0][1:] for shape in inputs):
        raise InvalidValue(f"only the first dimension of a record may differ, got {list(inputs)}")
    return (sum(shape[0] for shape in inputs), *inputs[0][1:])


def _clamped(inputs: Sequence[Shape], at: Attributes) -> Shape:
    if at.get("min_val", 0.0) > at.get("max_val", 0.0):
        raise InvalidValue(f"min_val {at['min_val']:g} is more than max_val {at['max_val']:g}")
    return inputs[0]


def _activation(name: str, about: str, function: Callable[..., Tensor], **attributes: Rule) -> Operation:
    return Operation(
        name=name,
        about=about,
        attributes=attributes,
        shape=_clamped,
        apply=_plain(function),
        work=lambda _i, out, _a: 8 * math.prod(out),
    )


def _arithmetic(name: str, about: str, function: Callable[..., Tensor]) -> Operation:
    return Operation(name=name, about=about, shape=broadcast, apply=_plain(function), inputs=(2, 2))


def _compared(name: str, about: str, function: Callable[..., Tensor], **constant: Rule) -> Operation:
    """1.0 where it is so, 0.0 elsewhere, without a gradient; every other comparison is made of these.

    NaN is less than nothing and equal to nothing, itself included, as in IEEE 754.
    """
    return Operation(
        name=name,
        about=about,
        attributes=constant,
        shape=same if constant else broadcast,
        apply=lambda x, at, _w: function(*x, *at.values()).to(x[0].dtype),
        inputs=(1, 1) if constant else (2, 2),
        differentiable=False,
    )


_POOLS = (
    _pool(_max_pool, "max", 1, "dilation", window(1)),
    _pool(_max_pool, "max", 2, "dilation", window(2)),
    _pool(_plain(functional.avg_pool1d), "avg", 1, "count_include_pad", flag),
    _pool(_plain(functional.avg_pool2d), "avg", 2, "count_include_pad", flag),
    _adaptive_pool(functional.adaptive_avg_pool1d, "avg", 1),
    _adaptive_pool(functional.adaptive_avg_pool2d, "avg", 2),
    _adaptive_pool(steady.adaptive_max_pool, "max", 1),
    _adaptive_pool(steady.adaptive_max_pool, "max", 2),
)

_SLOPE = real(-1.0, 1.0)
_CONSTANT, _BOUND = real(-MAX_CONSTANT, MAX_CONSTANT), real(-(most := torch.finfo(torch.float32).max), most)

_ACTIVATIONS = (
    _activation("relu", "nn.ReLU, F.relu, torch.relu, .relu()", functional.relu),
    _activation("leaky_relu", "nn.LeakyReLU, F.leaky_relu, torch.abs", functional.leaky_relu, negative_slope=_SLOPE),
    _activation("elu", "nn.ELU, F.elu", steady.elu, alpha=real(1e-6, 100.0)),
    _activation("selu", "nn.SELU, F.selu", steady.selu),
    _activation("gelu", "nn.GELU, F.gelu", functional.gelu),
    _activation("gelu_tanh", "nn.GELU(approximate='tanh')", lambda x: functional.gelu(x, approximate="tanh")),
    _activation("silu", "nn.SiLU, F.silu", functional.silu),
    _activation("mish", "nn.Mish, F.mish", steady.mish),
    _activation("tanh", "nn.Tanh, torch.tanh, .tanh()", steady.tanh),
    _activation("sigmoid", "nn.Sigmoid, torch.sigmoid, .sigmoid()", torch.sigmoid),
    _activation("cos", "torch.cos, .cos(): random Fourier features", steady.cos),
    _activation("exp", "torch.exp, .exp(), between 2^-126 and 2^126; with log, powers and roots", steady.exp),
    _activation("log", "torch.log, .log(); of what is not a normal positive number a finite number", steady.log),
    _activation("softplus", "nn.Softplus, F.softplus", steady.softplus, beta=real(1e-3, 1e3), threshold=real(1.0, 1e3)),
    _activation("hardtanh", "nn.Hardtanh, nn.ReLU6, clamp", functional.hardtanh, min_val=_BOUND, max_val=_BOUND),
    _activation("hardswish", "nn.Hardswish, F.hardswish", functional.hardswish),
    _activation("hardsigmoid", "nn.Hardsigmoid, F.hardsigmoid", functional.hardsigmoid),
)

_STRUCTURE = (
    Operation(
        name="reshape",
        about="nn.Flatten, nn.Unflatten, torch.flatten(x, 1), x.view(x.size(0), -1), x.reshape(...)",
        attributes={"shape": integers(1, 2**31 - 1, length=(1, 3))},
        shape=_reshape_shape,
        apply=_plain(torch.reshape),
        work=lambda _i, _o, _a: 0,
    ),
    _arithmetic("add", "x + y (residual connections)", torch.add),
    _arithmetic("multiply", "x * y (gates, squeeze and excitation)", torch.mul),
    _arithmetic("divide", "x / y of two values of the record, such as a buffer of deviations", torch.div),
    Operation(
        name="concat",
        about="torch.cat([...], dim=1)",
        shape=_concatenated,
        apply=lambda x, _at, _w: torch.cat(list(x), dim=0),
        inputs=(2, MAX_CONCATENATED),
    ),
    Operation(
        name="scale_shift",
        about="arithmetic with constants: x * 2 - 1, x / 255, (x - mean) / std",
        attributes={"gain": _CONSTANT, "shift": _CONSTANT},
        shape=same,
        apply=_plain(lambda x, gain, shift: x * gain + shift),
        work=lambda _i, out, _a: 2 * math.prod(out),
    ),
)

_COMPARISONS = (
    _compared("less", "x < y, x > y, x <= y, x >= y of two values, such as a buffer of thresholds", torch.lt),
    _compared("equal", "x == y, x != y; torch.isnan(x)", torch.eq),
    _compared("less_than", "x < 0.5, x > 0.5, ...", torch.lt, constant=_CONSTANT),
    _compared("equal_to", "x == 0, x != 0: padding", torch.eq, constant=_CONSTANT),
    Operation(
        name="nan_to_num",
        about="torch.nan_to_num(x), with a number of one's own for NaN",
        attributes={"nan": _CONSTANT},
        shape=same,
        apply=_plain(torch.nan_to_num),
    ),
)

VOCABULARY: Mapping[str, Operation] = MappingProxyType(
    {
        operation.name: operation
        for operation in (*LAYERS, *_POOLS, *_ACTIVATIONS, *_STRUCTURE, *_COMPARISONS, *SEQUENCES)
    }
)
"""Every operation by its name."""
