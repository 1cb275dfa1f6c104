"""What an ONNX file says of itself, read without onnxruntime, and what in it is refused before that sees the bytes.

ONNX is a protocol buffer, which onnx reads by the same rules as onnxruntime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from dpswd.shared.core.errors import InvalidValue

_SHOWN = 20  # inputs, outputs and operators that are told
_NAME = 60  # characters of a name that are told
_STANDARD = ("", "ai.onnx")
_RUNTIME = ("ai.onnx", "com.microsoft", "com.ms", "org.pytorch")
"""Domains, with all below them, in which onnxruntime may have operators of its own."""
_RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
)
"""onnxruntime draws them from a generator as old as the session: one record would move another's feature."""


@dataclass(frozen=True)
class OnnxModel:
    """What the file says.

    Attributes:
        inputs: without those that are weights.
        outputs: of the graph.
        operators: how often each stands in it.
        weights: numbers in all initial tensors.
    """

    inputs: tuple[ValueInfoProto, ...]
    outputs: tuple[ValueInfoProto, ...]
    operators: Counter[str]
    weights: int

    def summarise(self) -> dict[str, Any]:
        """For the operator's terminal; names are cut and made printable."""
        names = [f"{printable(name)} {count}" for name, count in self.operators.most_common(_SHOWN)]
        return {
            "weights": self.weights,
            "inputs": "; ".join(map(words_of, self.inputs[:_SHOWN])),
            "outputs": "; ".join(map(words_of, self.outputs[:_SHOWN])),
            "operators": ", ".join([*names, "..."] if len(self.operators) > _SHOWN else names),
        }


def read_model(data: bytes) -> OnnxModel:
    """Reads a file's bytes.

    Raises:
        InvalidValue: they are no ONNX model, or one that needs other files or operators than ONNX's own.
    """
    try:
        model = ModelProto.FromString(data)
    except DecodeError as error:
        raise InvalidValue("this is no ONNX model, or a damaged one; export it anew") from error
    graph = model.graph
    if not graph.node:
        raise InvalidValue("this is no ONNX model: it holds no graph of operators; export the network to ONNX")
    for function in model.functions:
        # onnxruntime would take an operator of its own by that name
        if function.domain in _STANDARD or f"{function.domain}.".startswith(tuple(f"{one}." for one in _RUNTIME)):
            raise InvalidValue(
                f"it defines a function {printable(function.name)} in the domain {printable(function.domain)!r}, where "
                "onnxruntime may have an operator of that name; export the model without fused operators"
            )
    own = {(function.domain, function.name) for function in model.functions}
    operators: Counter[str] = Counter()
    for part in _parts(model):
        kind = part.DESCRIPTOR.name
        if kind == "TensorProto" and (part.data_location == TensorProto.EXTERNAL or part.external_data):
            raise InvalidValue(
                "weights lie in another file, which is not read; export the model with its weights inside "
                "(torch.onnx.export: external_data=False)"
            )
        if kind == "NodeProto":
            if part.domain not in _STANDARD and (part.domain, part.op_type) not in own:
                raise InvalidValue(
                    f"the operator {printable(part.op_type)} of {printable(part.domain)} is not one of ONNX's own; "
                    "export the model without custom or fused operators"
                )
            if part.op_type in _RANDOM or (part.op_type == "Dropout" and any(part.input[2:])):
                raise InvalidValue(
                    f"the operator {part.op_type} may be random: what it draws depends on what it was asked before, "
                    "and a feature must follow from its own record; export the model in evaluation mode (model.eval())"
                )
            operators[part.op_type] += 1
    held = {tensor.name for tensor in graph.initializer} | {one.values.name for one in graph.sparse_initializer}
    return OnnxModel(
        inputs=tuple(value for value in graph.input if value.name not in held),
        outputs=tuple(graph.output),
        operators=operators,
        weights=sum(prod(max(0, dim) for dim in tensor.dims) for tensor in graph.initializer),
    )


def type_of(value: ValueInfoProto) -> int:
    """Of `TensorProto.DataType`; 0 where the file does not say."""
    return int(value.type.tensor_type.elem_type)


def shape_of(value: ValueInfoProto) -> tuple[int | None, ...] | None:
    """An input's or output's, with None for a size that the file leaves open; None as a whole where it says nothing."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(one.dim_value if one.HasField("dim_value") else None for one in kind.shape.dim)


def words_of(value: ValueInfoProto) -> str:
    """An input or an output: its name, what numpy calls its type, and its shape."""
    try:
        kind = helper.tensor_dtype_to_np_dtype(type_of(value)).name
    except KeyError:
        kind = "another type"
    sizes = shape_of(value)
    words = " x ".join("n" if size is None else str(size) for size in sizes or ()) or "one value"
    return f"{printable(value.name)}: {kind} {'of any shape' if sizes is None else words}"


def printable(text: str, *, most: int = _NAME) -> str:
    """A name or a message of a file's making, for a terminal: no control characters, not long."""
    plain = "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in text[: most + 1])
    return plain if len(plain) <= most else f"{plain[:most]}..."


def _parts(message: Any) -> Iterator[Any]:
    """The message and every message in it, whichever field it stands in."""
    waiting = [message]
    while waiting:
        current = waiting.pop()
        yield current
        for field, value in current.ListFields():
            if field.message_type is not None:
                waiting.extend([value] if hasattr(value, "DESCRIPTOR") else value)
