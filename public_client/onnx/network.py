"""A network that comes as ONNX, as the `nn.Module` that it was: layers that can be split, given statistics, and sent.

What depends on the record becomes layers and functions of torch; all else (shapes, constants) is evaluated once by
ONNX's own reference. What comes out is compared with onnxruntime before anyone relies on it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dpswd.shared.core.errors import DataInvalid, InvalidValue

_TRIED = 2  # records by which both are compared
_SAME = 1e-4  # relative difference of the scores: sums in another order
_INSTALL = "ONNX files are read with onnx and onnxruntime: pip install 'dpswd[onnx]'"
_INSTEAD = (
    "pass the network that the file was exported from, or have the hospital's operator turn records into its outputs "
    "(`dpswd-curator records embed`)"
)

Lower = Callable[..., Any]


def read_onnx(path: str | Path, records: Tensor) -> nn.Module:
    """The network of an ONNX file, in eval mode.

    Args:
        path: of a file with its weights inside; one input of records (batch, ...), one output of scores (batch, k).
        records: (m, ...) public ones; both forms are compared on the first two.

    Raises DataInvalid where it is no ONNX file or does not take such records, InvalidValue where an operator has no
    counterpart here or it computes something else than onnxruntime.
    """
    try:
        import onnx
        import onnxruntime
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        raise InvalidValue(f"{error}; {_INSTALL}") from error
    try:
        model = onnx.load(str(path))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        shown = records[:_TRIED].float()
        (expected, *_) = session.run(None, {session.get_inputs()[0].name: shown.numpy()})
    except Exception as error:  # of protobuf, onnx or onnxruntime, which share no base class
        raise DataInvalid(
            f"{path} cannot be run on records of shape {tuple(records.shape[1:])} ({str(error).splitlines()[0]}); "
            "needed is a file with its weights inside and a free batch dimension (dynamic_shapes of torch.onnx.export)"
        ) from error
    network = _Building(model.graph, shown, ReferenceEvaluator).network()
    with torch.no_grad():
        scores = network(shown)
    if scores.shape != expected.shape or not np.allclose(scores, expected, _SAME, _SAME * np.abs(expected).max()):
        raise InvalidValue(f"{path}, read as layers, computes something else than onnxruntime; {_INSTEAD}")
    return network


class _Building:
    """One pass over an ONNX graph with records (2, ...), by which sides are known; the batch's stays free.

    The evaluator is of an operator of constants, as ONNX defines it.
    """

    def __init__(self, graph: Any, records: Tensor, evaluator: Any) -> None:
        from onnx import numpy_helper

        self._onnx, self._evaluator = graph, evaluator
        self._layers, self._graph = nn.Module(), fx.Graph()
        self._values: dict[str, Any] = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        (source,) = (each.name for each in graph.input if each.name not in self._values)
        self._values[source] = self._graph.placeholder("records")
        self._samples: dict[fx.Node, Tensor] = {self._values[source]: records}

    def network(self) -> nn.Module:
        """The module."""
        from onnx.helper import get_attribute_value

        for node in self._onnx.node:
            inputs = [self._values[name] if name else None for name in node.input]
            attributes = {each.name: get_attribute_value(each) for each in node.attribute}
            values = self._lowered(node, inputs, attributes)
            self._values.update(zip(node.output, values if isinstance(values, list) else [values], strict=False))
        self._graph.output(self._values[self._onnx.output[0].name])
        return fx.GraphModule(self._layers, self._graph).eval()

    def _lowered(self, node: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        if node.op_type == "Shape":
            sides = np.array(self._samples[inputs[0]].shape) if isinstance(inputs[0], fx.Node) else inputs[0].shape
            sides[:1] = -1 if isinstance(inputs[0], fx.Node) else sides[:1]  # as many records as there are
            return sides[attributes.get("start", 0) : attributes.get("end", len(sides))]
        if not any(isinstance(each, fx.Node) for each in inputs):
            if node.op_type == "Expand":
                inputs[1] = np.maximum(inputs[1], 1)  # once, for as many records as there are
            named = {name: value for name, value in zip(node.input, inputs, strict=True) if name}
            return np.asarray(self._evaluator(node).run(None, named)[0])
        if node.op_type not in _LOWERED or (node.domain not in ("", "ai.onnx")):
            raise InvalidValue(f"operator {node.op_type} of {node.name or node.output[0]!r} is not read; {_INSTEAD}")
        try:
            return _LOWERED[node.op_type](self, *inputs, **attributes)
        except (TypeError, ValueError, IndexError, RuntimeError, KeyError, AttributeError) as error:
            where = f"operator {node.op_type} of {node.name or node.output[0]!r}"
            raise InvalidValue(f"{where} is not read in this form ({error}); {_INSTEAD}") from error

    def layer(self, layer: nn.Module, x: fx.Node) -> fx.Node:
        """A layer's output."""
        name = f"{type(layer).__name__.lower()}_{len(self._samples)}"
        self._layers.add_module(name, layer.eval())
        return self._noted(self._graph.call_module(name, (x,)), layer, (x,), {})

    def call(self, function: Callable[..., Any] | str, *arguments: Any, **options: Any) -> fx.Node:
        """A function's or a method's output; arrays become buffers, single numbers constants."""
        arguments = tuple(map(self._held, arguments))
        if isinstance(function, str):
            node = self._graph.call_method(function, arguments, options)
            return self._noted(node, getattr(Tensor, function), arguments, options)
        return self._noted(self._graph.call_function(function, arguments, options), function, arguments, options)

    def takes(self, node: Any, bias: Any) -> bool:
        """Whether a value is that of a linear layer, which nothing else reads yet, and the layer now has this bias."""
        if not isinstance(node, fx.Node) or node.op != "call_module" or node.users:
            return False
        layer = self._layers.get_submodule(str(node.target))
        fits = isinstance(layer, nn.Linear) and layer.bias is None and np.shape(bias) == (layer.out_features,)
        if fits:
            layer.bias = _parameter(bias)
            self._samples[node] = self._samples[node] + torch.tensor(bias)
        return fits

    def sides(self, node: fx.Node) -> tuple[int, ...]:
        """Of a value, with the batch's."""
        return tuple(self._samples[node].shape)

    def sample(self, node: fx.Node) -> np.ndarray:
        """A value of two records."""
        return self._samples[node].numpy()

    def _held(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if value.size == 1 and value.ndim <= 1:
            return value.item()
        name, held = f"constant_{len(self._samples)}", torch.from_numpy(value.copy())
        self._layers.register_buffer(name, held)
        node = self._graph.get_attr(name)
        self._samples[node] = held
        return node

    def _noted(self, node: fx.Node, run: Callable[..., Any], arguments: Any, options: dict[str, Any]) -> fx.Node:
        with torch.no_grad():
            self._samples[node] = run(*fx.node.map_arg(arguments, self._samples.__getitem__), **options)
        return node


def _parameter(value: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.array(value, dtype=np.float32)))


def _ints(value: Any) -> list[int]:
    return [int(each) for each in np.asarray(value).ravel()]


def _give(layer: nn.Module, **tensors: np.ndarray | None) -> nn.Module:
    for name, value in tensors.items():
        if value is not None:
            held = _parameter(value)
            setattr(layer, name, held.data if name.startswith("running") else held)
    return layer


def _padding(pads: Any, auto_pad: bytes, dimensions: int) -> list[int]:
    sides = _ints(pads or [0] * 2 * dimensions)
    if auto_pad not in (b"NOTSET", b"VALID") or sides[:dimensions] != sides[dimensions:]:
        raise ValueError("padding that differs from side to side")
    return sides[:dimensions]


def _conv(
    on: _Building, x: fx.Node, weight: np.ndarray, bias: np.ndarray | None = None, *, strides: Any = 1,
    pads: Any = None, dilations: Any = 1, group: int = 1, auto_pad: bytes = b"NOTSET", **_: Any,
) -> fx.Node:  # fmt: skip
    dimensions = weight.ndim - 2
    layer = getattr(nn, f"Conv{dimensions}d")(
        weight.shape[1] * group, weight.shape[0], weight.shape[2:], stride=strides, dilation=dilations,
        padding=_padding(pads, auto_pad, dimensions), groups=group, bias=bias is not None,
    )  # fmt: skip
    return on.layer(_give(layer, weight=weight, bias=bias), x)


def _pool(form: str) -> Lower:
    def lower(
        on: _Building, x: fx.Node, *, kernel_shape: Any, strides: Any = None, pads: Any = None, dilations: Any = 1,
        storage_order: int = 0, auto_pad: bytes = b"NOTSET", **options: Any,
    ) -> fx.Node:  # fmt: skip
        if set(_ints(dilations)) != {1} or storage_order:
            raise ValueError("dilated, or by columns")
        dimensions = len(kernel_shape)
        layer = getattr(nn, f"{form}Pool{dimensions}d")(
            tuple(kernel_shape), tuple(strides or [1] * dimensions), tuple(_padding(pads, auto_pad, dimensions)),
            **{name: bool(each) for name, each in options.items()},
        )  # fmt: skip
        return on.layer(layer, x)

    return lower


def _batch_norm(
    on: _Building, x: fx.Node, weight: Any, bias: Any, mean: Any, variance: Any, *, epsilon: float = 1e-5, **_: Any
) -> fx.Node:
    kind = nn.BatchNorm2d if len(on.sides(x)) == 4 else nn.BatchNorm1d
    layer = kind(len(mean), eps=epsilon)
    return on.layer(_give(layer, weight=weight, bias=bias, running_mean=mean, running_var=variance), x)


def _layer_norm(
    on: _Building, x: fx.Node, weight: Any, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> fx.Node:
    sides = on.sides(x)
    return on.layer(
        _give(nn.LayerNorm(sides[axis % len(sides) :], eps=float(f"{epsilon:.7g}")), weight=weight, bias=bias), x
    )


def _gemm(
    on: _Building, x: fx.Node, weight: np.ndarray, bias: np.ndarray | None = None, *, alpha: float = 1.0,
    beta: float = 1.0, transA: int = 0, transB: int = 0,
) -> fx.Node:  # fmt: skip
    if transA:
        raise ValueError("of transposed records")
    weight = alpha * (weight if transB else weight.T)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    return on.layer(_give(layer, weight=weight, bias=None if bias is None else beta * bias), x)


def _matmul(on: _Building, x: Any, y: Any) -> fx.Node:
    if isinstance(y, np.ndarray) and y.ndim == 2:
        return _gemm(on, x, y)
    return on.call(torch.matmul, x, y)


def _add(on: _Building, x: Any, y: Any) -> Any:
    for node, bias in ((x, y), (y, x)):
        if not isinstance(bias, fx.Node) and on.takes(node, bias):
            return node
    return on.call(operator.add, x, y)


def _reduced_mean(
    on: _Building, x: fx.Node, given: Any = None, *, axes: Any = None, keepdims: int = 1, **_: int
) -> fx.Node:
    return on.call(torch.mean, x, dim=_ints(axes if given is None else given), keepdim=bool(keepdims))


def _reshape(on: _Building, x: fx.Node, shape: Any, **_: Any) -> fx.Node:
    sides = on.sides(x)
    new = [sides[place] if side == 0 else side for place, side in enumerate(_ints(shape))]
    if new[0] in (sides[0], -1):  # the batch, however large
        rest = int(np.prod(sides[1:])) // abs(int(np.prod(new[1:])))
        new = [-1, *(rest if side == -1 else side for side in new[1:])]
    return on.call(torch.reshape, x, tuple(new))


def _slice(on: _Building, x: fx.Node, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> fx.Node:
    sides = on.sides(x)
    parts = [slice(None)] * len(sides)
    axes = _ints(axes) if axes is not None else list(range(len(_ints(starts))))
    for axis, begin, end, step in zip(axes, _ints(starts), _ints(ends), _ints(steps or [1] * len(axes)), strict=True):
        parts[axis] = slice(begin, min(end, sides[axis]), step)
    return on.call(operator.getitem, x, tuple(parts))


def _gather(on: _Building, x: Any, indices: Any, *, axis: int = 0) -> fx.Node:
    if isinstance(x, np.ndarray):
        table = nn.Embedding(*x.shape)
        return on.layer(_give(table, weight=x), on.call("long", indices))
    if np.size(indices) != 1:
        raise ValueError("of several places at once")
    parts: list[Any] = [slice(None)] * len(on.sides(x))
    parts[axis] = int(indices) if np.ndim(indices) == 0 else slice(int(indices[0]), int(indices[0]) + 1)
    return on.call(operator.getitem, x, tuple(parts))


def _split(on: _Building, x: fx.Node, sizes: Any = None, *, axis: int = 0, num_outputs: int = 0) -> list[fx.Node]:
    ends = np.cumsum(_ints(sizes) if sizes is not None else [on.sides(x)[axis] // num_outputs] * num_outputs)
    return [_slice(on, x, begin, end, axis) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _concat(on: _Building, *parts: Any, axis: int) -> fx.Node:
    """What is the same for all records is put beside each."""
    of_records = next(part for part in parts if isinstance(part, fx.Node))
    count = on.call("size", of_records, 0) if any(isinstance(part, np.ndarray) for part in parts) else None
    sides = (count, *[-1] * (len(on.sides(of_records)) - 1))
    return on.call(torch.cat, [on.call("expand", x, *sides) if isinstance(x, np.ndarray) else x for x in parts], axis)


def _clip(on: _Building, x: fx.Node, *bounds: Any) -> fx.Node:
    return on.call(torch.clamp, x, *(None if each is None else float(each) for each in bounds))


def _global_average(on: _Building, x: fx.Node) -> fx.Node:
    return on.layer(getattr(nn, f"AdaptiveAvgPool{len(on.sides(x)) - 2}d")(1), x)


def _same(_: _Building, x: fx.Node, *__: Any, **___: Any) -> fx.Node:
    return x


def _function(function: Lower) -> Lower:
    return lambda on, *inputs: on.call(function, *inputs)


_LOWERED: dict[str, Lower] = {
    "Add": _add,
    "AveragePool": _pool("Avg"),
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Cast": lambda on, x, **_: on.call("float", x) if on.sample(x).dtype == bool else x,
    "Concat": _concat,
    "Conv": _conv,
    "Elu": lambda on, x, alpha=1.0: on.call(F.elu, x, alpha),
    "Flatten": lambda on, x, axis=1: on.call(torch.flatten, x, axis),
    "Gather": _gather,
    "Gelu": lambda on, x, approximate=b"none": on.call(F.gelu, x, approximate=approximate.decode()),
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda on, x, alpha=0.01: on.call(F.leaky_relu, x, alpha),
    "MatMul": _matmul,
    "MaxPool": _pool("Max"),
    "Pow": lambda on, x, exponent: on.call(operator.pow, x, int(exponent) if exponent == int(exponent) else exponent),
    "ReduceMean": _reduced_mean,
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": lambda on, x, axis=-1: on.call(F.softmax, x, dim=axis),
    "Split": _split,
    "Squeeze": lambda on, x, axes: _reshape(on, x, np.squeeze(on.sample(x), tuple(_ints(axes))).shape),
    "Transpose": lambda on, x, perm: on.call(torch.permute, x, tuple(perm)),
    "Unsqueeze": lambda on, x, axes: _reshape(on, x, np.expand_dims(on.sample(x), tuple(_ints(axes))).shape),
    **dict.fromkeys(("Dropout", "Identity"), _same),
    **{
        name: _function(function)
        for name, function in (
            ("Div", operator.truediv), ("Equal", operator.eq), ("Erf", torch.erf), ("HardSwish", F.hardswish),
            ("Mul", operator.mul), ("Neg", operator.neg), ("Relu", F.relu), ("Sigmoid", torch.sigmoid),
            ("Sqrt", torch.sqrt), ("Sub", operator.sub), ("Tanh", torch.tanh), ("Abs", torch.abs),
        )
    },
}  # fmt: skip
"""How each operator of ONNX is called here, by its inputs and attributes."""
